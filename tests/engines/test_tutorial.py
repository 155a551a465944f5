"""docs/tutorial.md is true: its files are written to an empty folder, and its commands run there, in order."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from launch import ENVIRONMENT, HERE, HOROVODRUN, ROOT, finish

from support.forks import python
from support.guides import blocks_of, follow

PAGE = "tutorial"
NUMBER = r"\d[\d,]*(?:\.\d+)?"
CLOSE = 0.1
"""Largest relative difference of numbers: rounding differs by machine, and training amplifies it."""


def programs(folder: Path) -> None:
    """Put the programs of the page's commands into a folder; their ranks have PyTorch imported."""
    folder.mkdir()
    ranks = shlex.join(python())
    lines = {
        "python": f'[ "$1" != -u ] || shift; exec {ranks} "$@"',  # torchrun gives this option
        "torchrun": f'exec {ranks} {HERE / "torchrun.py"} "$@"',
        "horovodrun": f'exec {shlex.join(HOROVODRUN)} "$@"',
        "gradcomp": f'exec {sys.executable} -m gradcomp "$@"',
    }
    for name, line in lines.items():
        (folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / name).chmod(0o755)


def commands_of(text: str) -> list[tuple[str, str]]:
    """The commands of a block, each with the output below it."""
    return re.findall(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE)


def is_close(printed: str, shown: str) -> bool:
    """Whether an output is the page's, up to seconds and small differences of numbers; ``...`` is any lines."""
    pieces = re.split(rf"(^\.\.\.\n|{NUMBER}(?= m?s\b)|{NUMBER})", shown, flags=re.MULTILINE)
    pattern, numbers = "", []
    for piece, after in zip(pieces, [*pieces[1:], ""], strict=True):
        if piece == "...\n":
            pattern += "(?:.*\n)*"
        elif re.fullmatch(NUMBER, piece):
            pattern += f"({NUMBER})"
            numbers.append(None if re.match(r" m?s\b", after) else value(piece))
        else:
            pattern += re.escape(piece)
    found = re.fullmatch(pattern, printed)
    return found is not None and all(
        number is None or abs(value(text) - number) <= CLOSE * number
        for text, number in zip(found.groups(), numbers, strict=True)
    )


def value(text: str) -> float:
    return float(text.replace(",", ""))


def test_the_tutorial_runs_as_printed(tmp_path: Path) -> None:
    programs(tmp_path / "bin")
    folder = tmp_path / "empty"
    folder.mkdir()
    environment = {
        **os.environ,
        **ENVIRONMENT,
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTHON_EXEC": str(tmp_path / "bin/python"),  # of torchrun's ranks
        "PET_STANDALONE": "1",  # torchrun takes a free port
        "COLUMNS": "80",
        "NO_COLOR": "1",
    }
    ran = 0
    for block in blocks_of(PAGE):
        if block.language == "sh":  # the installation
            continue
        if block.language:
            follow(block, folder)
            continue
        for command, shown in commands_of(block.text):
            if export := re.fullmatch(r"export (\w+)=(\w+)", command):
                environment[export[1]] = export[2]
                continue
            process = subprocess.Popen(
                ["bash", "-euc", command],
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            done = finish(process, 120)
            printed = "".join(f"{line.rstrip()}\n" for line in done.output.splitlines())
            assert done.status == 0, f"$ {command}\n{printed}"
            if command.startswith("horovodrun"):  # its two streams have a thread each
                printed, shown = (
                    "".join(sorted(text.splitlines(True))) for text in (printed, shown)
                )
            assert is_close(printed, shown), f"$ {command}\n{printed}"
            ran += 1
    assert ran == 10


@pytest.mark.full  # compiles the core
@pytest.mark.timeout(1800)
def test_the_installation_of_the_tutorial(tmp_path: Path) -> None:
    """In a copy of the repository; all that pip would download is there already."""
    (installation,) = [block.text for block in blocks_of(PAGE) if block.language == "sh"]
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, listing.stdout.decode().split("\0")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    environment = {
        **os.environ,
        "PYTHONPATH": packages,
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip negates it: no isolation
    }
    if shutil.which("ccache"):  # files of the core that set-up has compiled
        environment |= {"CC": "ccache gcc", "CXX": "ccache g++", "CCACHE_BASEDIR": str(tmp_path)}
    done = subprocess.run(
        ["bash", "-euc", installation],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all that is installed works" in done.stdout


def test_the_readme_shows_what_the_tutorial_shows() -> None:
    """The first two blocks of code with their output are the tutorial's lines."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(?:python)?\n(.*?)^```$", readme, re.DOTALL | re.MULTILINE)[:3]
    tutorial = {line.strip() for block in blocks_of(PAGE) for line in block.text.splitlines()}
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    others = [line for line in lines if line and line not in tutorial]
    # The loop, and a flush that torchrun's output needs.
    assert others == ["train(model)", 'print(f"{state.stats.ratio:.1f} times fewer bytes")']


def test_numbers_may_differ_a_little() -> None:
    shown = "step 50: loss 1.50\n...\nin 3.1 s\n"
    assert is_close("step 50: loss 1.45\na\nb\nin 0.2 s\n", shown)
    assert is_close("step 50: loss 1.60\nin 12 s\n", shown)
    assert not is_close("step 50: loss 1.7\nin 3.1 s\n", shown)
    assert not is_close("step 50: a loss 1.50\nin 3.1 s\n", shown)
