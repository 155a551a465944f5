"""Wrong kernels differ from the core in the comparisons of test_bits.py: its inputs are strong enough."""

from __future__ import annotations

import pytest

from gpu.conftest import Mutate
from gpu.processes import interpret

MUTANTS = {
    "the later of ties is kept": ("topk", "(nth_same < ties)", "(nth_same >= ties)"),
    "one tie less": (
        "topk",
        "ties = k - tl.load(of + TAKEN)",
        "ties = k - 1 - tl.load(of + TAKEN)",
    ),
    "slots in spite of an overflow": (
        "topk_state",
        "tl.where(enough, tl.load(state + OVERFLOW), 1) == 0",
        "tl.where(enough, 0, 1) == 0",
    ),
    "the histogram is kept": ("topk_state", "tl.store(to, tl.zeros_like(count))", "pass"),
    "NaN is below Inf": (
        "topk",
        "return (bits_of(x) & MAGNITUDE).to(tl.int32)",
        "return tl.where(x == x, (bits_of(x) & MAGNITUDE).to(tl.int32), 0)",
    ),
    "NaN stays in memory": ("topk", "tl.atomic_or(state + NOT_FINITE, 1)", "pass"),
    "the payload of a NaN is lost": (
        "half",
        "nan = 0x7E00 | ((m >> 13) & 0x3FF)",
        "nan = m * 0 + 0x7E00",
    ),
    "half a step is rounded up": ("half", "(m + 0xFFF + ((m >> 13) & 1)", "(m + 0x1000"),
    "sums in another order": (
        "signs",
        "tl.split(tl.permute(pairs, (1, 0)))",
        "tl.split(tl.reshape(lanes, (8 >> level, 2)))",
    ),
    "another constant of Philox": ("quantized", "zero + use, zero)", "zero + use, zero + 1)"),
    "another lane of a run": ("quantized", "tl.permute(both, (0, 2, 1))", "both"),
    "the last block has full bytes": ("ternary", "(left + 4) // 5, MODE", "256, MODE"),
    "the ring is not turned": ("randomk", "turn = tl.umulhi(draw(stream, k), n)", "turn = n * 0"),
    "the product is not weighted": ("added", "weight * value", "value"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_kernel_is_refused(name: str, mutant: Mutate) -> None:
    group, before, after = MUTANTS[name]
    done = interpret(group, share=0.01, first=mutant(before, after))
    assert done.returncode == 1, done.stdout + done.stderr
    assert " differs" in done.stdout, done.stdout + done.stderr
