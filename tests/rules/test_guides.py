"""The guides for contributors are true: their code is written to a copy of the repository and run.

The blocks are those of `support.guides`. A block of ``sh`` holds commands.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from gradcomp import _core
from support.files import ROOT
from support.guides import EDIT, blocks_of, follow

GUIDES = ("adding-a-compressor", "adding-an-algorithm", "adding-an-engine")

# Parts of the repository that the guides' commands need.
COPIED = (
    *("csrc", "examples", "gradcomp", "docs", "scripts", "tests"),
    *(".clang-format", "pyproject.toml", "setup.py"),
)
BUILD = "python setup.py -q build_ext --inplace"
FIGURES = re.compile("codec_figures|test_codec_pages")
"""Commands not run here: a figure shows the errors of all codecs, which takes minutes."""


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
    edits = [EDIT.fullmatch(block.above) for guide in GUIDES for block in blocks_of(guide)]
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
