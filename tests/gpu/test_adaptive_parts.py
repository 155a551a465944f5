"""What receivers of `adaptive` must decode alike, by kernels: docs/gpu.md, "adaptive on a GPU"."""

from __future__ import annotations

import re

from gpu.processes import run


def test_kernels_decode_the_elements_of_the_core() -> None:
    done = run("adaptive_parts.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(
        r"5 payloads, \d{5} levels, 3 products\n\[1, 2, 32\] states\n", done.stdout
    ), done.stdout
