"""Processes of their own for kernels: Triton is either interpreted or compiled, in a whole process."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from support.forks import python

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

DEFAULT_SHARE = 0.05
"""How many of a group's cases the default run compares; tests of wrong kernels compare as many."""


def run(script: str, *arguments: str, first: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a script of this directory; ``first`` is where packages are looked for first.

    Changed packages meet the default run's cases, which are so shown to be enough.
    """
    folders = [first, *(ROOT / name for name in ("", "scripts", "tests", "tests/golden"))]
    paths = [*map(str, folders), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    environment.pop("TRITON_INTERPRET", None)
    if first != ROOT:
        environment["GRADCOMP_TESTS"] = "default"
    # Without Triton, which reads its settings when it is imported. -P: the script's own directory would come first.
    command = [*python(("torch",)), "-W", "error", "-P", str(HERE / script), *arguments]
    return subprocess.run(
        command, env=environment, cwd=ROOT, text=True, capture_output=True, timeout=500, check=False
    )


def interpret(
    *groups: str, share: float = 1.0, first: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Run groups of `interpreted.py` with a share of their cases."""
    return run("interpreted.py", str(share), *groups, first=first)
