"""The transcripts of the command `gradcomp` in the pages are what the command prints.

A transcript is a code block with lines ``$ gradcomp ...``, each followed by its output. A line
``...`` stands for any lines. ``$ cat FILE`` shows a file that a later command of the block reads.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import gradcomp
from support.scope import FULL

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
WHOLE = DOCS / "tutorial.md"
"""tests/engines/test_tutorial.py runs all of it, in its order."""

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted({*DOCS.rglob("*.md")} - {WHOLE})]

NOT_RUN = {
    "advise": "its times are measured on the machine",
    "bench": "prints times",
    "doctor": "prints what the machine has",
    "profile": "prints times",
    "report": "reads runs of a training",
}
"""Commands with transcripts that are not run, with the reason."""


class Transcript(NamedTuple):
    place: str
    commands: list[tuple[str, str]]
    """Each command with its output."""


def transcripts_of(page: Path) -> list[Transcript]:
    found = []
    text = page.read_text(encoding="utf-8")
    for block in re.finditer(r"^```\w*\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        commands = re.findall(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", block[1], re.MULTILINE)
        if any(is_run(command) and output for command, output in commands):
            line = text.count("\n", 0, block.start()) + 2
            found.append(Transcript(f"{page.relative_to(ROOT)}:{line}", commands))
    return found


def is_run(command: str) -> bool:
    program, name, *_ = [*command.split(), ""]
    return program == "gradcomp" and name not in NOT_RUN


def make_files(folder: Path) -> None:
    """The files that transcripts name: the folder they ran in is one with these."""
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    first = re.search(r"^```yaml\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert first
    (folder / "my-model.yaml").write_text(first[1])
    (folder / "configs").symlink_to(ROOT / "configs")
    frame = gradcomp.get_codec("randomk(ratio=0.01)").encode(np.ones(10_000, np.float32))
    (folder / "frame.bin").write_bytes(bytes(frame))


def run(command: str, folder: Path) -> str:
    """What a command prints on a terminal of 80 columns, without blanks at the ends of lines."""
    done = subprocess.run(
        ["bash", "-c", f'gradcomp() {{ "{sys.executable}" -m gradcomp "$@"; }}; {command}'],
        cwd=folder,
        env={**os.environ, "COLUMNS": "80", "NO_COLOR": "1", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())


def matches(printed: str, shown: str) -> bool:
    parts = re.split(r"^\.\.\.\n", shown, flags=re.MULTILINE)
    return re.fullmatch("(?:.*\n)*".join(re.escape(part) for part in parts), printed) is not None


TRANSCRIPTS = [one for page in PAGES for one in transcripts_of(page)]


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda one: one.place)
def test_a_transcript_is_what_the_command_prints(transcript: Transcript, tmp_path: Path) -> None:
    make_files(tmp_path)
    for command, shown in transcript.commands:
        if command.startswith("cat "):
            (tmp_path / command.removeprefix("cat ")).write_text(shown)
        elif is_run(command) and (FULL or "resnet50" not in command):  # 25 million elements
            printed = run(command, tmp_path)
            assert matches(printed, shown), f"$ {command}\n{printed}"


def test_lines_are_left_out_by_three_dots() -> None:
    assert matches("a\nb\nc\n", "a\n...\nc\n")
    assert matches("a\nc\n", "a\n...\nc\n")
    assert not matches("a\nb\nc\n", "a\n...\nb\n")
    assert not matches("a.\n", "a\n")


def test_transcripts_are_found() -> None:
    commands = {
        command.split()[1] for one in TRANSCRIPTS for command, _ in one.commands if is_run(command)
    }
    assert commands == {"list", "explain", "check", "inspect", "polar-demo", "consensus"}
