"""The site of the documentation: the layout of its pages. ``scripts/docs`` checks the built links."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from pages.lay_out import API, ROOT, lay_out, tracked


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "pages"
    lay_out(folder)
    return folder


def test_pages_keep_their_places(site: Path) -> None:
    for page in tracked("*.md"):
        assert (site / page).read_bytes() == (ROOT / page).read_bytes()


def test_files_that_pages_link_to_come_along(site: Path) -> None:
    assert (site / "csrc/include/gradcomp/gradcomp.h").is_file()
    assert (site / "docs/codecs/figures/topk.png").is_file()
    assert not list(site.rglob("*.so"))
    assert (site / "examples/pytorch_digits.py").is_file()


def test_the_page_of_examples_names_every_example() -> None:
    text = (ROOT / "examples/README.md").read_text()
    sources = {str(p.relative_to("examples")) for p in tracked("examples/*.py", "examples/*.c")}
    assert set(re.findall(r"\((\S+\.(?:py|c))\)", text)) == sources


def test_the_navigation_names_every_page_once(site: Path) -> None:
    named = re.findall(r"[\w./-]+\.md", (ROOT / "mkdocs.yml").read_text())
    assert sorted(named) == sorted(str(page.relative_to(site)) for page in site.rglob("*.md"))


@pytest.mark.parametrize("module", [module for modules in API.values() for module in modules])
def test_the_api_lists_public_modules(module: str) -> None:
    path = ROOT.joinpath(*module.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    names = {
        target.id
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    assert "__all__" in names


def test_every_adapter_is_in_the_api() -> None:
    adapters = {path.parent.name for path in ROOT.glob("*_compressors/__init__.py")}
    assert set(API) == adapters | {"gradcomp"}
