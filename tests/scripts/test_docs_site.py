"""The site of the documentation: the layout of its pages. ``scripts/docs`` checks the built links."""

from __future__ import annotations

import ast
import filecmp
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pages.navigation import navigation, on_config
from pages.site_pages import API, ROOT, lay_out, tracked
from pages.tables import on_page_markdown


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
    assert (site / "examples/gpt_ddp.py").is_file()


def test_the_page_of_examples_names_every_example() -> None:
    text = (ROOT / "examples/README.md").read_text()
    kinds = ("py", "c", "ipynb")
    sources = {str(p.relative_to("examples")) for p in tracked(*(f"examples/*.{k}" for k in kinds))}
    assert set(re.findall(rf"\((\S+\.(?:{'|'.join(kinds)}))\)", text)) == sources


def pages_of(items: list[Any]) -> Iterator[str]:
    """The pages of a navigation, in its order."""
    for item in items:
        value = next(iter(item.values())) if isinstance(item, dict) else item
        if isinstance(value, str):
            yield value
        else:
            yield from pages_of(value)


def test_the_navigation_names_every_page_once_but_generated_tables(site: Path) -> None:
    config = SimpleNamespace(docs_dir=str(site))
    named = list(pages_of(on_config(config).nav))
    not_in_nav = re.search(r"not_in_nav: \|\n((?: +/.*\n)+)", (ROOT / "mkdocs.yml").read_text())
    assert not_in_nav
    left_out = tuple(line.strip().lstrip("/") for line in not_in_nav[1].splitlines())
    pages = [str(page.relative_to(site)) for page in site.rglob("*.md")]
    assert sorted(named) == sorted(page for page in pages if not page.startswith(left_out))


def test_specs_in_tables_have_no_backslash() -> None:
    row = r"| `a\|b`, `rotate\|polar` | text \| text |"
    block = "```\ngrep 'a\\|b'\n```"
    expected = r"| `a|b`, `rotate|polar` | text \| text |"
    assert on_page_markdown(f"{row}\n{block}\n`a\\|b`") == f"{expected}\n{block}\n`a\\|b`"
    assert "scripts/pages/tables.py" in (ROOT / "mkdocs.yml").read_text()


def test_sections_are_headings_of_the_map() -> None:
    home, *sections = navigation(["api/gradcomp.md"])
    assert home == {"Home": [{"Overview": "README.md"}, {"All pages": "docs/README.md"}]}
    assert [next(iter(section)) for section in sections] == [
        *("Tutorial", "How-to", "Reference", "Explanation"),
    ]
    reference = {title: value for item in sections[2]["Reference"] for title, value in item.items()}
    assert reference["Command"] == "docs/cli.md"
    assert reference["Codecs"][:2] == ["docs/codecs/README.md", "docs/codecs/adaptive.md"]
    assert reference["Algorithms"][0] == "docs/algorithms/powersgd.md"
    assert reference["Python API"] == ["api/gradcomp.md"]
    how_to = {title: value for item in sections[1]["How-to"] for title, value in item.items()}
    assert {"DDP": "docs/torch.md"} in how_to["Engines"]


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


@pytest.mark.full  # builds the site twice; scripts/test builds it once
def test_versions_of_the_site_lie_side_by_side(tmp_path: Path) -> None:
    """`scripts/docs --deploy` of two versions, in a repository of their own."""
    for path in tracked():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    tools, wanted = ROOT / "build/docs-tools", ROOT / "scripts/requirements-docs.txt"
    if (tools / "installed").is_file() and filecmp.cmp(tools / "installed", wanted, shallow=False):
        (tmp_path / "build").mkdir()
        (tmp_path / "build/docs-tools").symlink_to(tools)

    def run(*command: str) -> str:
        return subprocess.run(
            command, cwd=tmp_path, check=True, text=True, stdout=subprocess.PIPE
        ).stdout

    run("git", "init", "--quiet")
    run("git", "config", "user.name", "tester")
    run("git", "config", "user.email", "tester@example.org")
    project = (tmp_path / "pyproject.toml").read_text()
    for version in ("0.8.0", "0.9.0"):
        changed = re.sub(r'(?m)^version = ".*"', f'version = "{version}"', project)
        (tmp_path / "pyproject.toml").write_text(changed)
        run("git", "add", "--all")
        run("git", "commit", "--quiet", "--message", version)
        assert f"gh-pages has version {version}" in run("./scripts/docs", "--deploy")
    versions = json.loads(run("git", "show", "gh-pages:versions.json"))
    aliases = {one["version"]: one["aliases"] for one in versions}
    assert aliases == {"0.9.0": ["latest"], "0.8.0": []}
    assert "gradcomp" in run("git", "show", "gh-pages:0.8.0/index.html")
    api = run("git", "show", "gh-pages:0.9.0/api/horovod_compressors/index.html")
    for member in ("save", "load", "stats", "set_epoch", "from_config"):  # of base classes
        assert f'id="horovod_compressors.torch.Compression.{member}"' in api
    assert "<p>::" not in api
    index = json.loads(run("git", "show", "gh-pages:0.9.0/search/search_index.json"))
    found = {entry["location"].split("#")[0] for entry in index["docs"]}
    assert {"docs/torch/", "docs/results/", "api/gradcomp/"} <= found
    assert not [page for page in found if page.startswith(("CHANGELOG", "docs/results/e2e/"))]
