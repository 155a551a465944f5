"""The pages of the repository: their width, their links, and the paths and names they mention."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection
from pathlib import Path
from pkgutil import resolve_name

from support.files import ROOT, rule_of

WIDTH = 120
SUFFIXES = (".md", ".py", ".cpp", ".hpp", ".h", ".yaml", ".sh", ".csv", ".png", ".json", ".txt")


def tracked() -> list[str]:
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [name for name in listing.stdout.split("\0") if name and (ROOT / name).is_file()]


FILES = tracked()
PAGES = [ROOT / name for name in FILES if name.endswith(".md")]
FOLDERS = sorted({name.split("/")[0] for name in FILES if "/" in name})
every_page = rule_of(PAGES)


def prose(page: Path) -> str:
    """The text with an empty line for each line of a fenced code block."""
    lines, fence = [], ""
    for line in page.read_text(encoding="utf-8").split("\n"):
        mark = re.match(r"\s*(`{3,}|~{3,})", line)
        if mark and not fence:
            fence = mark[1]
        elif mark and mark[1].startswith(fence):
            fence = ""
            line = ""
        lines.append("" if fence else line)
    return "\n".join(lines)


def spans(page: Path) -> list[str]:
    """The words of all code spans."""
    found = re.findall(r"(?<!`)`([^`]+)`(?!`)", prose(page))
    return [word for span in found for word in span.split()]


def anchors(page: Path) -> set[str]:
    """GitHub's anchors: lower case, no punctuation, hyphens for blanks, a number for repeats."""
    result: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.*?)[ #]*$", prose(page), re.MULTILINE):
        shown = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", shown.strip().lower()).replace(" ", "-")
        repeat = 0
        while (anchor := slug if repeat == 0 else f"{slug}-{repeat}") in result:
            repeat += 1
        result.add(anchor)
    return result


def is_path(word: str) -> bool:
    """Whether a word names a file or folder of the repository, without wildcards."""
    if re.match(r"gradcomp/(seconds|bytes|ratio|vnmse)\b", word):  # scalars in TensorBoard
        return False
    return word.split("/")[0] in FOLDERS and re.fullmatch(r"[\w.-]+(/[\w.-]+)+/?", word) is not None


def test_the_rules_of_anchors(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# `two_level` in detail\n```\n# no heading\n```\n## A, b\n## A b\n### [X](y.md)!\n"
    )
    assert anchors(page) == {"two_level-in-detail", "a-b", "a-b-1", "x"}


@every_page
def test_no_line_is_too_long(page: Path) -> Collection[str]:
    lines = enumerate(prose(page).split("\n"), 1)
    return [
        f"line {number}: {len(line)} characters, at most {WIDTH} outside tables and code blocks"
        for number, line in lines
        if len(line) > WIDTH and not line.lstrip().startswith("|")
    ]


@every_page
def test_every_link_leads_somewhere(page: Path) -> Collection[str]:
    text = re.sub(r"`[^`]*`", "", prose(page))
    broken = []
    for link in re.findall(r"\]\(\s*<?([^)\s>]+)>?[^)]*\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists():
            broken.append(f"{link}: no such file")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            broken.append(f"{link}: no such heading")
    return broken


@every_page
def test_every_external_link_is_a_whole_address(page: Path) -> Collection[str]:
    text = re.sub(r"`[^`]*`", "", prose(page))
    addresses = re.findall(r"\]\(\s*<?([a-z]+:[^)\s>]*)", text)
    return [one for one in addresses if not re.fullmatch(r"https://[\w-]+(\.[\w-]+)+(/\S*)?", one)]


@every_page
def test_every_path_exists(page: Path) -> Collection[str]:
    plain = [word.rstrip(".") for word in re.findall(r"[\w./-]+", prose(page))]
    words = [re.sub(r"(::.*|:\d+)$", "", word) for word in spans(page)]
    words += [word for word in plain if word.endswith(SUFFIXES)]
    missing = {word for word in words if is_path(word) and not (ROOT / word).exists()}
    if page.name.startswith("adding-"):  # a guide names new files of its example
        missing = {word for word in missing if not (ROOT / word).parent.is_dir()}
    return missing


@every_page
def test_commands_name_existing_files(page: Path) -> Collection[str]:
    blocks = re.findall(
        r"^ *```\w*\n(.*?)^ *```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    words = {word.strip("'\"") for block in blocks for word in block.split()}
    commands = {
        word
        for word in words
        if is_path(word) and word.startswith(("scripts/", "benchmarks/", "examples/", "configs/"))
    }
    return {word for word in commands if not (ROOT / word).exists()}


@every_page
def test_named_tests_exist(page: Path) -> Collection[str]:
    """A function in a file, ``tests/engines/workers/ddp.py::states``, or a link with its name as the title."""
    words = [word for word in spans(page) if re.fullmatch(r"tests/\S+\.py::\w+", word)]
    named = {(ROOT / path, name) for path, name in (word.split("::") for word in words)}
    for link, title in re.findall(r'\]\((\S*\btests/\S+\.py) "([^"]*)"\)', prose(page)):
        named.add((page.parent / link, title))
    return {
        f"{path}::{name}"
        for path, name in named
        if not re.search(rf"^def {name}\(", path.read_text(), re.MULTILINE)
    }


def test_answers_about_compatibility_link_their_tests() -> None:
    page = ROOT / "docs/compatibility.md"
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\(\S*tests/\S+\.py[^)]*\)", text)
    assert len(links) > 100
    assert [link for link in links if not re.search(r'\.py "\w+"\)$', link)] == []


NO_MODULES = {"gradcomp.h", "gradcomp.codecs"}
"""The C header, and the group of entry points for plug-ins."""


@every_page
def test_every_name_of_python_exists(page: Path) -> Collection[str]:
    missing = set()
    for word in set(spans(page)) - NO_MODULES:
        if match := re.fullmatch(r"(gradcomp(?:\.[A-Za-z_]\w*)+)(\(.*)?", word):
            try:
                resolve_name(match[1])
            except (ImportError, AttributeError):
                missing.add(match[1])
    return missing


def test_sources_refer_to_existing_pages_and_headings() -> None:
    sources = [name for name in FILES if name.endswith((".py", ".cpp", ".hpp", ".h", ".yaml"))]
    broken = set()
    for name in sources:
        text = (ROOT / name).read_text(encoding="utf-8")
        for page, anchor in re.findall(r"\b((?:docs|benchmarks)/[\w./-]+\.md)(?:#([\w-]+))?", text):
            if not (ROOT / page).is_file() or (anchor and anchor not in anchors(ROOT / page)):
                broken.add(f"{name}: {page}#{anchor}")
    assert broken == set()


def test_the_map_names_every_page() -> None:
    text = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    names = {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert {name for name in names if f"({name})" not in text} == set()
