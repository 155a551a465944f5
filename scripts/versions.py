#!/usr/bin/env python3
"""Try gradcomp with the versions of the running Python, and record what passed: the table of docs/versions.md.

    python scripts/versions.py [PART...]    run parts of the tests (default: all), and record them
    python scripts/versions.py --page       write the table into the page

Any environment does that has PyTorch, pytest, pytest-timeout, pytest-xdist, hypothesis, psutil and matplotlib, and the
core of this checkout compiled for its Python: python setup.py egg_info build_ext --inplace. Results are in
docs/versions.csv, one line for each Python, PyTorch, system and part; a new run of these replaces the line.
"""

from __future__ import annotations

import csv
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "versions.csv"
PAGE = ROOT / "docs" / "versions.md"

JOBS = "tests/engines/"
PARTS: dict[str, Sequence[str]] = {
    "core": ("tests/codecs", "tests/exchange", "tests/golden"),
    "DDP, outer steps, FSDP2": (f"{JOBS}test_torch_alone.py",),
    "launcher": (f"{JOBS}test_unedited.py", "-k", "ddp_script or outer_steps"),
    "gossip": (f"{JOBS}test_gossip_apart.py", f"{JOBS}test_gossip_checkpoints.py"),
    "lost ranks": (f"{JOBS}test_ddp_failures.py", "-k", "torchrun"),
}
"""The arguments of pytest, by the name of the part."""

OPTIONS = (
    *("-q", "-n", "0", "-p", "no:cacheprovider"),
    # PyTorch 2.6 warns of its own code when it is imported by Python 3.13.
    *("-W", "ignore:functools.partial will be a method:FutureWarning"),
)

COLUMNS = ("Python", "PyTorch", "system", "part", "passed", "failed")


def main(arguments: Sequence[str]) -> int:
    """See the top of this file; returns the exit status."""
    if list(arguments) == ["--page"]:
        write_page()
        return 0
    unknown = set(arguments) - set(PARTS)
    if unknown:
        print(
            f"versions: unknown part {unknown.pop()!r}: it must be of {[*PARTS]}", file=sys.stderr
        )
        return 2
    failures = 0
    for part in arguments or PARTS:
        passed, failed = run(part)
        print(f"{part}: {passed} passed, {failed} failed", flush=True)
        record(part, passed, failed)
        failures += failed
    return 1 if failures else 0


def run(part: str) -> tuple[int, int]:
    """Run a part; the numbers of tests that passed and that failed, errors included."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *OPTIONS, *PARTS[part]],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    counts = {
        kind: int(n) for n, kind in re.findall(r"(\d+) (passed|failed|error)", last(done.stdout))
    }
    failed = counts.get("failed", 0) + counts.get("error", 0)
    if done.returncode:
        sys.stderr.write(done.stdout + done.stderr)
        failed = max(failed, 1)
    return counts.get("passed", 0), failed


def last(output: str) -> str:
    """The last line of pytest's output, which counts the tests."""
    return output.rstrip().rpartition("\n")[2]


def record(part: str, passed: int, failed: int) -> None:
    """Put a result into the file of results."""
    system = platform.freedesktop_os_release()["PRETTY_NAME"]
    torch = version("torch").partition("+")[0]
    key = (platform.python_version(), torch, system, part)
    rows = {row[:4]: row for row in results()}
    rows[key] = (*key, str(passed), str(failed))
    with RESULTS.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([COLUMNS, *sorted(rows.values(), key=order)])


def results() -> list[tuple[str, ...]]:
    """The recorded rows."""
    if not RESULTS.exists():
        return []
    with RESULTS.open(newline="", encoding="utf-8") as file:
        return [tuple(row) for row in csv.reader(file)][1:]


def order(row: Sequence[str]) -> tuple[object, ...]:
    """Versions by their numbers, and parts as in `PARTS`."""
    numbers = [tuple(map(int, re.findall(r"\d+", text))) for text in row[:2]]
    return (*reversed(numbers), row[2], [*PARTS].index(row[3]))


def table() -> str:
    """The results as a table: a row for each environment, with the tests that passed of each part."""
    environments: dict[tuple[str, ...], dict[str, str]] = {}
    for python, torch, system, part, passed, failed in results():
        text = passed if failed == "0" else f"{passed}, {failed} failed"
        environments.setdefault((torch, python, system), {})[part] = text
    head = ["PyTorch", "Python", "system", *PARTS]
    lines = [" | ".join(head), "|".join(["---"] * 3 + ["---:"] * len(PARTS))]
    for environment, of_parts in environments.items():
        lines.append(" | ".join([*environment, *(of_parts.get(part, "-") for part in PARTS)]))
    return "\n".join(f"| {line} |" if "---" not in line else f"|{line}|" for line in lines)


def write_page() -> None:
    """Put the table into the page, instead of the one that is there."""
    page, count = re.subn(
        r"\n\| PyTorch \|.*?\n\n", f"\n{table()}\n\n", PAGE.read_text(), count=1, flags=re.DOTALL
    )
    assert count == 1, f"{PAGE} has no table"
    PAGE.write_text(page)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
