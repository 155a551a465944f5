"""Averages that overwrite gradients equal those in memory of their own."""

from __future__ import annotations

import numpy as np
import pytest

from gradcomp import Config, Pipeline
from gradcomp.codec.arrays import FloatArray
from gradcomp.runtime.loopback import run_rounds

RANKS = 2
SHAPES = {"w": (64, 80), "v": (90, 50)}


def pipelines(spec: str, exchange: str) -> list[Pipeline]:
    settings = {"version": 1, "compress": {"default": spec, "exchange": exchange}}
    return [Pipeline(Config.from_mapping(settings), rank, RANKS) for rank in range(RANKS)]


def gradients(step: int, rank: int) -> dict[str, FloatArray]:
    rng = np.random.default_rng([step, rank])
    return {name: rng.standard_normal(shape, np.float32) for name, shape in SHAPES.items()}


CASES = [
    ("residual|topk(ratio=0.1)", "auto"),
    ("residual|topk(ratio=0.1)", "sra"),
    ("residual|topk(ratio=0.1)", "sparse_allreduce"),
    ("topk(ratio=0.1)", "two_level(gather)"),
    ("residual(gamma=0.5)|int8", "gather"),
    ("signum|sign", "sra"),
    ("residual|globaltopk(ratio=0.1)", "auto"),
    ("dgc(ratio=0.1,warmup_epochs=0)", "auto"),
    ("powersgd(rank=1,start_step=1)", "auto"),
    ("powersgd(rank=2,start_step=0,variant=paper)", "auto"),
    ("atomo(rank=1)", "auto"),
    ("residual|chunk_allreduce(ratio=0.3,chunk=16)", "auto"),
    ("signum|signsgd_mv", "auto"),
    ("dion(rank_fraction=0.5)", "auto"),
    ("dion2(fraction=0.985)", "auto"),
    ("demo", "auto"),
    ("ef21|topk(ratio=0.1)", "auto"),
    ("ef21|int8", "sra"),
    ("ef21(momentum=0.5)|topk(ratio=0.1)", "sparse_allreduce"),
    ("ef21|powersgd(rank=1,start_step=1)", "auto"),
    ("ef21(momentum=0.5)|identity", "auto"),
]


@pytest.mark.parametrize(("spec", "exchange"), CASES)
def test_averages_are_the_same(spec: str, exchange: str) -> None:
    kept, overwritten = pipelines(spec, exchange), pipelines(spec, exchange)
    for step in range(4):
        results = []
        for ranks, overwrite in ((kept, False), (overwritten, True)):
            grads = [gradients(step, rank) for rank in range(RANKS)]
            rounds = [
                one.bucket_round("w+1", of_rank, overwrite=overwrite)
                for one, of_rank in zip(ranks, grads, strict=True)
            ]
            averages = run_rounds(rounds)
            results.append([[one.tobytes() for one in of_rank] for of_rank in averages])
            if not overwrite:
                for rank, of_rank in enumerate(grads):
                    for name, grad in gradients(step, rank).items():
                        assert of_rank[name].tobytes() == grad.tobytes()
        assert results[0] == results[1]
    for one, other in zip(kept, overwritten, strict=True):
        np.testing.assert_equal(one.state_dict(), other.state_dict())


@pytest.mark.parametrize("spec", ["topk(ratio=0.1)", "powersgd(rank=1,start_step=0)"])
def test_no_new_memory(spec: str) -> None:
    grads = [gradients(0, rank) for rank in range(RANKS)]
    rounds = [
        one.bucket_round("w+1", of_rank, overwrite=True)
        for one, of_rank in zip(pipelines(spec, "auto"), grads, strict=True)
    ]
    for of_rank, averages in zip(grads, run_rounds(rounds), strict=True):
        for grad, average in zip(of_rank.values(), averages, strict=True):
            assert np.shares_memory(grad, average)
