"""The navigation of the site, from docs/README.md; a hook of MkDocs.

Headings of docs/README.md are sections of the navigation. A row of a table is a page, or a section of pages:

- ``| [Title](page.md) | ... |``: a page; all pages of a folder, if it is the folder's README.md;
- ``| Title | [A](a.md), [B](b.md) |``: a section with these pages;
- the row ``Python API`` stands for the pages that `pages.site_pages` makes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

__all__ = ["navigation", "on_config", "on_page_markdown"]

ROOT = Path(__file__).resolve().parents[2]
MAP = "docs/README.md"
API = "Python API"
WITHOUT_SEARCH = ("CHANGELOG.md", *(f"docs/results/{name}/" for name in ("chaos", "e2e", "proof")))
"""Beginnings of the paths of pages that are not search results: a history, and generated tables."""

_ROW = re.compile(r"^\| (?P<first>.*?) \| (?P<second>.*) \|$")
_LINK = re.compile(r"\[(?P<title>[^\]]+)\]\((?P<page>[^)\s#]+\.md)\)")


def navigation(api: list[str]) -> list[dict[str, Any]]:
    """Return the ``nav`` of mkdocs.yml.

    Args:
        api: paths of the pages of the Python API in the site.

    Raises:
        ValueError: a row of the map has no link to a page.
    """
    top: list[dict[str, Any]] = [{"Home": [{"Overview": "README.md"}, {"All pages": MAP}]}]
    items: list[Any] = []
    for line in (ROOT / MAP).read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section: list[Any] = []
            items = section
            top.append({line.removeprefix("## "): section})
        elif line.startswith("### "):
            items = []
            section.append({line.removeprefix("### "): items})
        elif (row := _ROW.match(line)) and row["first"] != "page":
            items.append(_item(row["first"], row["second"], api))
    return top


def _item(first: str, second: str, api: list[str]) -> dict[str, Any]:
    if first == API:
        return {API: api}
    if link := _LINK.fullmatch(first):
        page = _path(link["page"])
        if page.startswith("docs/") and page.endswith("/README.md"):
            others = sorted((ROOT / page).parent.glob("*.md"))
            pages = [
                path.relative_to(ROOT).as_posix() for path in others if path.name != "README.md"
            ]
            return {link["title"]: [page, *pages] if pages else page}
        return {link["title"]: page}
    pages = [_path(link["page"]) for link in _LINK.finditer(second)]
    if not pages:
        raise ValueError(f"{MAP}: the row '{first}' has no link to a page")
    return {first: pages}


def _path(link: str) -> str:
    """Return the path in the repository of a link in the map."""
    return (ROOT / MAP).parent.joinpath(link).resolve().relative_to(ROOT).as_posix()


def on_config(config: Any) -> Any:
    """Set the navigation; MkDocs calls it when it has read mkdocs.yml."""
    api = sorted(Path(config.docs_dir, "api").glob("*.md"))
    config.nav = navigation([path.relative_to(config.docs_dir).as_posix() for path in api])
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Keep some pages out of the search; MkDocs calls it for each page."""
    if page.file.src_uri.startswith(WITHOUT_SEARCH):
        page.meta["search"] = {"exclude": True}
    return markdown
