"""Sums of float16 by an engine: finite where all summands are, and the bits of a sum that is divided last."""

from __future__ import annotations

import numpy as np
import pytest

from gradcomp import Loopback
from gradcomp.exchange.rounds import AllReduce
from support.pipelines import config_of

SHAPE = (80, 60)
LARGEST = 65504.0
RANKS = [1, 2, 3, 4, 5, 8, 17]


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(
    "spec",
    [
        "fp16",
        "residual|fp16",
        "randomk(ratio=1,values=fp16)",
        "chunk_allreduce(ratio=1,values=fp16)",
    ],
)
def test_averages_of_the_largest_number_are_finite(spec: str, ranks: int) -> None:
    grads = [np.full(SHAPE, LARGEST, np.float32)] * ranks
    averages = Loopback(config_of(spec), ranks).step({"w": grads})["w"]
    np.testing.assert_allclose(averages[0], LARGEST, rtol=1e-3)
    assert all(average.tobytes() == averages[0].tobytes() for average in averages)


@pytest.mark.parametrize("ranks", RANKS)
def test_normal_numbers_keep_the_bits_of_a_sum_that_is_divided_last(ranks: int) -> None:
    rng = np.random.default_rng(ranks)
    grads = [rng.uniform(1, 2, SHAPE).astype(np.float32) for _ in range(ranks)]
    (average, *_) = Loopback(config_of("fp16"), ranks).step({"w": grads})["w"]
    total = np.zeros(SHAPE, np.float16)
    for grad in grads:
        total += grad.astype(np.float16)
    total *= np.float16(1 / ranks)
    assert np.array_equal(average, total.astype(np.float32))


@pytest.mark.parametrize("ranks", RANKS)
def test_small_numbers_lose_what_docs_say(ranks: int) -> None:
    """Half of the least float16 of each summand, and of their average."""
    rng = np.random.default_rng(ranks)
    grads = [
        rng.uniform(-1e-5, 1e-5, SHAPE).astype(np.float16).astype(np.float32) for _ in range(ranks)
    ]
    (average, *_) = Loopback(config_of("fp16"), ranks).step({"w": grads})["w"]
    lost = np.abs(average - np.mean(grads, axis=0, dtype=np.float64)).max()
    of_summands = 1 / AllReduce.headroom(np.dtype(np.float16), ranks)
    assert lost <= 2.0**-25 * (of_summands + 1)


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_gradient_is_what_was_sent_and_the_residual(ranks: int) -> None:
    """What is sent is this rank's float16, whatever the engine does before the sum."""
    loop = Loopback(config_of("residual|fp16"), ranks)
    rng = np.random.default_rng(0)
    grads = [rng.uniform(-LARGEST, LARGEST, SHAPE).astype(np.float32) for _ in range(ranks)]
    loop.step({"w": grads})
    for pipeline, grad in zip(loop.ranks, grads, strict=True):
        residual = pipeline.state_dict()["residual"]["w"].reshape(SHAPE)
        assert np.array_equal(grad.astype(np.float16).astype(np.float32) + residual, grad)


def test_other_dtypes_are_divided_last() -> None:
    assert [AllReduce.headroom(np.dtype(kind), 3) for kind in ("f2", "f4", "f8", "u1")] == [
        0.25,
        1,
        1,
        1,
    ]
    assert [AllReduce.headroom("torch.float16", ranks) for ranks in (1, 2, 3, 4, 5)] == [
        1,
        0.5,
        0.25,
        0.25,
        0.125,
    ]
    assert AllReduce.headroom("torch.bfloat16", 2) == 1
