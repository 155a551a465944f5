"""Runs the suite on the changed tree: once with all mutants asleep, then once for each mutant."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from .sites import Mutant

__all__ = ["SCOPES", "Records", "read_records", "record", "try_mutant"]

SCOPES = ("quick", "default", "full")
"""Amounts of tests, each within the next."""

_LIMIT = 120.0
"""Seconds of tests, as recorded, that are tried for one mutant and scope; the shortest come first."""
_AT_ONCE = 400
"""Tests of one command: its length is limited."""


@dataclass
class Records:
    """What the tests ran when no mutant was active."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """By the test's name."""
    failed: set[str] = field(default_factory=set)
    tests: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    """By mutant, the tests that ran its place; a file stands for all its tests: their fixtures did."""

    def of(self, mutant: Mutant, allowed: Sequence[str]) -> list[str]:
        """The tests that run a mutant's place, the shortest first, one of each function before its other cases.

        Args:
            mutant: the mutant.
            allowed: beginnings of the names of tests that may be taken.
        """
        named: set[str] = set()
        by_file: dict[str, list[str]] = defaultdict(list)
        for test in self.seconds:
            by_file[test.partition("::")[0]].append(test)
        for name in self.tests.get(mutant.number, ()):
            named.update([name] if "::" in name else by_file[name])
        named = {name for name in named - self.failed if name.startswith(tuple(allowed))}
        shortest = sorted(named, key=lambda name: (self.seconds[name], name))
        functions: set[str] = set()
        first: list[str] = []
        others: list[str] = []
        for name in shortest:
            function = name.partition("[")[0]
            (others if function in functions else first).append(name)
            functions.add(function)
        return [*first, *others]


def record(tree: Path, folder: Path, paths: Sequence[str]) -> None:
    """Run tests of the tree and write down which mutants' places each runs.

    Args:
        tree: the changed tree.
        folder: for the records; it may hold those of other tests.
        paths: tests, as arguments of pytest.
    """
    folder.mkdir(parents=True, exist_ok=True)
    environment = {"GRADCOMP_MUTANT_LOG": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    command = ["-q", "-p", "mutation.record", "-p", "no:cacheprovider", "-n", "0", *paths]
    subprocess.run(
        _pytest(tree, command), cwd=tree, env=_environment(tree, environment), check=False
    )


def read_records(folder: Path) -> Records:
    """Read what `record` has written."""
    records = Records()
    for path in folder.glob("*-tests"):
        for line in path.read_text().splitlines():
            name, seconds, outcome = json.loads(line)
            records.seconds[name] += seconds
            if outcome != "passed":
                records.failed.add(name)
    for path in (*folder.glob("*-core"), *folder.glob("*-python")):
        for line in path.read_text().splitlines():
            number, _, test = line.partition("\t")
            name, _, phase = test.rpartition(" ")
            if name:
                # A fixture may be shared, and a job of a test in engines has cases of all its file.
                whole_file = phase != "(call)" or name.startswith("tests/engines/")
                records.tests[int(number)].add(name.partition("::")[0] if whole_file else name)
    return records


def try_mutant(
    tree: Path, mutant: Mutant, tests: Sequence[str], seconds: dict[str, float], scope: str
) -> str:
    """Run tests until one fails.

    Args:
        tree: the changed tree.
        mutant: the active mutant.
        tests: names.
        seconds: of each test, without the mutant.
        scope: one of `SCOPES`.

    Returns:
        The name of a test that failed, ``crash`` or ``timeout``; or nothing.
    """
    chosen: list[str] = []
    total = 0.0
    for name in tests:
        total += seconds[name]
        if chosen and total > _LIMIT:
            break
        chosen.append(name)
    environment = {
        "GRADCOMP_MUTANT": str(mutant.number),
        "GRADCOMP_TESTS": "full" if scope == "full" else "default",
    }
    if scope == "default" and mutant.file.startswith("csrc/"):
        command = [str(tree / "build/cpp/cpp_tests")]
        try:
            done = subprocess.run(
                command, env={**os.environ, **environment}, capture_output=True, timeout=600
            )
        except subprocess.TimeoutExpired:
            return "tests/cpp: timeout"
        if done.returncode:
            return "tests/cpp"
    for begin in range(0, len(chosen), _AT_ONCE):
        part = chosen[begin : begin + _AT_ONCE]
        limit = 60 + 10 * sum(seconds[name] for name in part)
        found = _fails(tree, part, environment, limit)
        if found:
            return found
    return ""


def _fails(tree: Path, tests: Sequence[str], environment: dict[str, str], limit: float) -> str:
    arguments = ["-q", "-x", "-n", "0", "--tb=no", "-p", "no:cacheprovider", *tests]
    process = subprocess.Popen(
        _pytest(tree, arguments),
        cwd=tree,
        env=_environment(tree, environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return "timeout"
    finally:
        _end_jobs(environment["GRADCOMP_MUTANT"])
    if process.returncode == 0:
        return ""
    for line in output.splitlines():
        if line.startswith(("FAILED ", "ERROR ")):
            return line.split(" ")[1]
    if process.returncode == 4:
        # The mutant changed what tests are parametrized with: a test that is gone fails no suite.
        gone = {
            name.rpartition("/tests/")[2] for name in re.findall(r"ERROR: not found: (.*)", output)
        }
        left = [name for name in tests if name.removeprefix("tests/") not in gone]
        if len(left) < len(tests):
            return _fails(tree, left, environment, limit) if left else ""
    return "crash"


def _end_jobs(mutant: str) -> None:
    """End the processes of jobs that a mutant has left behind, in sessions of their own."""
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.environ().get("GRADCOMP_MUTANT") == mutant:
                process.kill()


def _pytest(tree: Path, arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "pytest", *arguments]


def _environment(tree: Path, more: dict[str, str]) -> dict[str, str]:
    # The second has the plug-in that records.
    paths = os.pathsep.join([str(tree), str(Path(__file__).parents[1])])
    return {**os.environ, "PYTHONPATH": paths, **more}
