"""Kernels read and write as many bytes per element as their docstrings say, counted in the interpreter."""

from __future__ import annotations

import json
import re

from gpu.processes import run

NUMEL = 16 * 2048

TABLE = 0.1
"""Bytes per element of a tile's fields."""

ONCE = {"guess_kernel"}
"""Kernels whose bytes do not grow with the tensor."""

HISTOGRAMS = (2048 + 2048 + 512) * 8
"""Bytes for each tensor."""

REACHED = (512 + 1) * 4 / (16 * 2048)
"""Numbers for the last digits of a span."""


def topk(candidates: float) -> float:
    """With a good guess: one pass, and a few numbers for each of the kept elements and candidates. Once in a
    tensor, the last program of each digit reads and clears its histogram."""
    return 12.0 + candidates * (8 + 20) + 0.01 * 20 + HISTOGRAMS / NUMEL + REACHED


EXPECTED = {
    "identity": 16.0,
    "fp16": 14.0,
    "qsgd(levels=127)": 13.0,
    "int8": 13.0,
    "int4": 12.5,
    "rotate|uniform(bits=4)": 40.5,
    "topk(ratio=0.01)": topk(0.013),
    # The gradient has 2 bytes per element, and no copy as float32, which would read 2 and write 4.
    "bf16:topk(ratio=0.01)": topk(0.013) - 2,
    "bf16:int8": 11.0,
    # One of 16 tiles has nearly all candidates, more than slots, and is read by 4 kernels.
    "rows:topk(ratio=0.01)": topk(0) + 4 * 4 / 16,
    # The average is written once, whatever the number of ranks.
    "sums:int8": 4 + 8 * (1 + 4 / 512),
    "sums:sign": 4 + 8 / 8,
    "sums:fp16": 4 + 8 * 2,
    # A sample of 1.03 % is copied, and read by each of three digits; candidates are counted once.
    "sampled_topk(ratio=0.01)": topk(0.018)
    + 0.0103 * (8 + 3 * 4)
    + HISTOGRAMS / NUMEL
    + 0.018 * 4
    + 256 * 8 / NUMEL,
    # Two products of 4 vectors in tiles of 16 times 64, whose factors are in caches; and a factor that is kept.
    "powersgd": 12.0 + 2 * 4 * 4 * (16 + 64) / (16 * 64) + 16 * 4 / 128,
}

LAUNCHES = {
    "fp16": 1,
    "int8": 1,
    "sums:int8": 1,
    # A guess, the pass, and four on the kept elements: two digits, the last one with counts, and what is kept.
    "topk(ratio=0.01)": 2 + 4,
    "rows:topk(ratio=0.01)": 2 + 4,
    # The sample with its three digits, and thresholds from slots and from all elements.
    "sampled_topk(ratio=0.01)": 2 + 4 + 4 + 2,
}


def test_counted_bytes_are_the_documented_ones() -> None:
    done = run("traffic.py", str(NUMEL), *EXPECTED)
    assert done.returncode == 0, done.stderr
    for line, (spec, expected) in zip(done.stdout.splitlines(), EXPECTED.items(), strict=True):
        kernels = json.loads(line)
        counted = sum(
            of_kernel["bytes"] for kernel, of_kernel in kernels.items() if kernel not in ONCE
        )
        assert expected - TABLE <= counted <= expected + 2 * TABLE, (spec, kernels)
        if spec in LAUNCHES:
            assert sum(of_kernel["launches"] for of_kernel in kernels.values()) == LAUNCHES[spec]


def test_the_table_of_counts_has_each_kernel() -> None:
    done = run("counts.py", "bf16:fp16")
    assert done.returncode == 0, done.stderr
    head, _, row = done.stdout.splitlines()
    assert head == "| spec | kernel | launches | bytes | registers | barriers | fences | atomics |"
    numbers = re.fullmatch(r"\| bf16:fp16 \| floats_kernel \| 1 \| 12\.0\d ((?:\| \d+ )+)\|", row)
    assert numbers is not None, row
    registers, *others = map(int, re.findall(r"\d+", numbers[1]))
    assert 32 <= registers < 128
    assert others[1:] == [0, 0]
