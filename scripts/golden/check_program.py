#!/usr/bin/env python3
"""Compare a program that encodes and decodes without Python (tests/golden/frames.c) with the golden vectors.

    python scripts/golden/check_program.py PROGRAM [ARGUMENT...]

Vectors of whole matrices are left out: gradcomp.h has no call for them. Needs nothing besides Python.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

VECTORS = Path(__file__).resolve().parents[2] / "tests" / "golden" / "vectors"


def cases() -> list[dict[str, Any]]:
    """The vectors that gradcomp.h can make."""
    every = [
        case
        for path in sorted(VECTORS.glob("*.json"))
        for case in json.loads(path.read_text())["cases"]
    ]
    return [case for case in every if "shape" not in case and "basis" not in case]


def question(case: dict[str, Any]) -> str:
    """A line of the program's input."""
    words = (case["spec"], case["seed"], case["step"], case["tensor_id"], case["input"] or "-")
    return " ".join(map(str, words)) + "\n"


def main(command: Sequence[str]) -> int:
    """See the top of this file; returns the exit status."""
    asked = cases()
    done = subprocess.run(
        command,
        input="".join(map(question, asked)),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    answers = done.stdout.splitlines()
    expected = [f"{case['frame']} {case['decoded'] or '-'}" for case in asked]
    wrong = [
        case["name"]
        for case, answer, right in zip(asked, answers, expected, strict=True)
        if answer != right
    ]
    print(f"{len(asked) - len(wrong)} of {len(asked)} golden vectors", *wrong, sep="\n  ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
