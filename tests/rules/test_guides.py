"""The guides for contributors are true: their code is written to a copy of the repository and run.

A guide names the file of a code block in the line above it; see `_EDIT`. A block of ``sh`` holds
commands.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal, NamedTuple

import pytest

from gradcomp import _core

ROOT = Path(__file__).resolve().parents[2]
GUIDES = ("adding-a-compressor", "adding-an-algorithm", "adding-an-engine")

# Parts of the repository that the guides' commands need.
COPIED = (
    *("csrc", "examples", "gradcomp", "docs", "scripts", "tests"),
    *(".clang-format", "pyproject.toml", "setup.py"),
)
BUILD = "python setup.py -q build_ext --inplace"
FIGURES = re.compile("codec_figures|test_codec_pages")
"""Commands not run here: a figure shows the errors of all codecs, which takes minutes."""

_EDIT = re.compile(
    r"New file `(?P<new>[^`]+)`:|In `(?P<old>[^`]+)`, (?P<where>before|after) `(?P<anchor>[^`]+)`:"
)


class Block(NamedTuple):
    above: str
    language: str
    text: str


def blocks_of(guide: str) -> list[Block]:
    """The code blocks of a guide, each with the last line of text above it."""
    blocks, above, language, text = [], "", None, ""
    for line in (ROOT / "docs" / f"{guide}.md").read_text().splitlines(keepends=True):
        if language is None:
            if line.startswith("```"):
                language, text = line.strip("`\n"), ""
            elif line.strip():
                above = line.strip()
        elif line == "```\n":
            blocks.append(Block(above, language, text))
            language = None
        else:
            text += line
    assert language is None, "a block that does not end"
    return blocks


def follow(block: Block, folder: Path) -> None:
    """Make the edit of a block."""
    edit = _EDIT.fullmatch(block.above)
    assert edit, f"this line does not say where the block below it goes: {block.above}"
    if edit["new"]:
        path = folder / edit["new"]
        assert not path.exists(), f"{edit['new']} is there already"
        assert path.parent.is_dir(), f"the folder of {edit['new']} does not exist"
        path.write_text(block.text)
        return
    path = folder / edit["old"]
    lines = path.read_text().splitlines(keepends=True)
    at = [i for i, line in enumerate(lines) if line.strip() == edit["anchor"]]
    assert len(at) == 1, f"{edit['old']} has the line {edit['anchor']} {len(at)} times"
    lines.insert(at[0] + (edit["where"] == "after"), block.text)
    path.write_text("".join(lines))


def run(command: str, folder: Path) -> str:
    path = f"{folder}/.venv/bin{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(folder)}
    if shutil.which("ccache"):  # most files of the core are those that set-up has compiled
        environment |= {"CC": "ccache gcc", "CXX": "ccache g++", "CCACHE_BASEDIR": str(folder)}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout


def edit_copy(folder: Path) -> None:
    """Copy the repository, and make the edits of all guides."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.so", "__pycache__")
            )
        else:
            shutil.copy(ROOT / name, folder / name)
    # As in the checkout, so that ccache finds the same command lines.
    (folder / ".venv").symlink_to(sys.prefix)
    for guide in GUIDES:
        for block in blocks_of(guide):
            if block.language != "sh":
                follow(block, folder)


def edited_files(which: Literal["old", "new"], suffix: str) -> list[str]:
    edits = [_EDIT.fullmatch(block.above) for guide in GUIDES for block in blocks_of(guide)]
    files = {edit[which] for edit in edits if edit and edit[which]}
    return sorted(file for file in files if file.endswith(suffix))


def run_commands_of(guide: str, folder: Path) -> None:
    commands = [
        command
        for block in blocks_of(guide)
        if block.language == "sh"
        for command in block.text.splitlines()
    ]
    printed = [run(one, folder) for one in commands if one != BUILD and not FIGURES.search(one)]
    assert any(" passed" in text for text in printed), f"{guide} runs no test"


def test_the_edits_fit_and_the_core_compiles(tmp_path: Path) -> None:
    """What needs no build; in scripts/test full, `test_the_guides_are_true` builds and runs all commands."""
    edit_copy(tmp_path)
    python, sources = (" ".join(edited_files("new", suffix)) for suffix in (".py", ".cpp"))
    # As `scripts/test lint` does it.
    run(f"ruff check {python}", tmp_path)
    run(f"ruff format --check {python}", tmp_path)
    run(f"clang-format --dry-run -Werror {sources}", tmp_path)
    run(f"python -m compileall -q {python} {' '.join(edited_files('old', '.py'))}", tmp_path)
    sources += "".join(f" {path}" for path in edited_files("old", ".cpp"))
    assert sources
    run(f"g++ -std=c++17 -fsyntax-only -Icsrc -Icsrc/include {sources}", tmp_path)
    # This guide leaves the core as it is.
    shutil.copy(_core.__file__, tmp_path / "gradcomp")
    run_commands_of("adding-an-engine", tmp_path)


# One test, as a build takes a minute and several tests may run in several processes.
@pytest.mark.full
@pytest.mark.timeout(1800)
def test_the_guides_are_true(tmp_path: Path) -> None:
    edit_copy(tmp_path)
    run(BUILD, tmp_path)
    for guide in GUIDES:
        run_commands_of(guide, tmp_path)
