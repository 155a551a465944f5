"""The pages of docs/codecs and their figures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "codecs"
FIGURES = FOLDER / "figures"
PAGES = sorted(page for page in FOLDER.glob("*.md") if page.name != "README.md")


def figures_of(page: Path) -> list[str]:
    return re.findall(r"!\[[^\]]+\]\((figures/[^)]+)\)", page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_page_has_a_figure_and_says_how_it_is_made(page: Path) -> None:
    figures = figures_of(page)
    assert figures, f"python benchmarks/codec_figures.py {page.stem} draws one"
    assert [name for name in figures if not (FOLDER / name).is_file()] == []
    command = " ".join(
        ["python benchmarks/codec_figures.py", *(Path(name).stem for name in figures)]
    )
    assert f"`{command}`" in page.read_text()


def test_every_figure_is_shown() -> None:
    shown = {name for page in PAGES for name in figures_of(page)}
    assert {f"figures/{path.name}" for path in FIGURES.iterdir()} == shown


def test_figures_are_small() -> None:
    sizes = {path.name: path.stat().st_size for path in FIGURES.iterdir()}
    assert {name: size for name, size in sizes.items() if size > 40_000} == {}
