"""The pages of docs/codecs and their figures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gradcomp.codec.spec import ParamInfo, stages

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "codecs"
FIGURES = FOLDER / "figures"
WRITTEN = {
    ("inceptionn.md", "error_bound"): "powers of two",
    ("sketch.md", "rows"): "odd numbers only",
    ("threshold.md", "tau"): "the largest float32 stands for infinity",
}
"""Parameters with a range or default that a page writes in another way, with the reason."""
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


def parameters_of(page: Path) -> list[tuple[str, dict[str, str]]]:
    """The rows of a page's table of parameters: names, and cells by their column."""
    rows, columns = [], []
    for line in page.read_text().splitlines():
        # A link stands for its text.
        line = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", line)
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| parameter |"):
            columns = cells
        elif not line.startswith("|"):
            columns = []
        elif columns and not line.startswith("|---"):
            rows.append((cells[0], dict(zip(columns, cells, strict=True))))
    return rows


def spelled(param: ParamInfo) -> set[str]:
    """The ways to write a parameter's range in a table."""
    low, _, high = param.range.strip("[]()").partition(", ")
    whole = {f"{low} to {high}", f"{low} and up"} if high else set()
    return {param.range, param.range.replace("|", ", "), *whole}


def test_tables_of_parameters_are_those_of_the_registry() -> None:
    known = {row.name: row for row in stages()}
    wrong, tables = [], 0
    for page in PAGES:
        rows = parameters_of(page)
        if not rows:
            continue
        tables += 1
        params = {param.name: param for param in known[page.stem].params}
        named = {name for text, _ in rows for name in re.findall(r"`(\w+)`", text)}
        if named != set(params):
            wrong.append(f"{page.name}: {sorted(named ^ set(params))}")
        for text, cells in rows:
            name = text.strip("`")
            if name not in params or (page.name, name) in WRITTEN:  # "`ratio` or `k`", as in topk
                continue
            param = params[name]
            where = f"{page.name}: {param.name}"
            default = cells["default"].strip("`")
            if default != (param.default or ""):
                wrong.append(f"{where}: default {default}, not {param.default}")
            if "range" in cells and cells["range"] not in spelled(param):
                wrong.append(f"{where}: range {cells['range']}, not {param.range}")
    assert wrong == []
    assert tables > 10


def test_defaults_in_lists_of_parameters_are_those_of_the_registry() -> None:
    """Items such as "- `rank` (default 4): ..." on a page named after a stage."""
    known = {row.name: row for row in stages()}
    wrong, items = [], 0
    for page in [*PAGES, *sorted((FOLDER.parent / "algorithms").glob("*.md"))]:
        if page.stem not in known:
            continue
        params = {param.name: param for param in known[page.stem].params}
        # `masking` is the memory's name of the preset's `momentum_masking`.
        aliases = {"masking": "momentum_masking"} if page.stem == "dgc" else {}
        for name, default in re.findall(
            r"`(\w+)` \(default `?([^`;,):]+)`?[;,):]", page.read_text()
        ):
            param = params.get(aliases.get(name, name))
            if param is None:  # of another stage: dion.md has dion2, too
                continue
            items += 1
            if not same(default, str(param.default)):
                wrong.append(f"{page.name}: {name}: default {default}, not {param.default}")
    assert wrong == []
    assert items > 10


def same(one: str, other: str) -> bool:
    """Whether two texts are the same value: 1 is 1.0."""
    try:
        return float(one) == float(other)
    except ValueError:
        return one == other


def test_the_number_of_codecs_is_that_of_the_registry() -> None:
    """The change log counts codecs, README.md codecs and algorithms."""
    kinds = [row.kind for row in stages()]
    log = (ROOT / "CHANGELOG.md").read_text()
    assert re.findall(r"\b(\d+) codecs", log) == [str(kinds.count("codec"))]
    methods = kinds.count("codec") + kinds.count("algorithm")
    readme = (ROOT / "README.md").read_text()
    assert re.findall(r"\[(\d+) methods\]", readme) == [str(methods)]
