"""Bits of kernels against those of the C++ core: the comparisons of tests/gpu, as a process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["compare"]

ROOT = Path(__file__).parents[2]
QUICK = ("half", "added")
"""Comparisons of a quick run without a GPU: ten seconds."""


def compare(*, compiled: bool, quick: bool) -> list[dict[str, Any]]:
    """Run comparisons, printing what they print; on this machine's GPU, or interpreted.

    Returns:
        For each group its name, and the numbers of cases and of differences.

    Raises:
        RuntimeError: the process ended in another way.
    """
    script = ROOT / "tests" / "gpu" / ("compiled.py" if compiled else "interpreted.py")
    # Interpreted groups of full size take minutes each.
    share = 1.0 if compiled and not quick else 0.1
    names = QUICK if quick and not compiled else ()
    paths = [ROOT, ROOT / "tests", os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-P", str(script), str(share), *names]
    rows = []
    with subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip():
                print(f"  {line.rstrip()}", flush=True)
            if found := re.match(r"(\w+): (\d+) cases, (\d+) differences$", line):
                row = {"name": found[1], "cases": int(found[2]), "differences": int(found[3])}
                rows.append(row)
    differ = any(row["differences"] for row in rows)
    if not rows or process.returncode != differ:
        raise RuntimeError(f"{script.name} ended with status {process.returncode}")
    return rows
