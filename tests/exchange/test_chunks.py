"""Coarse-grained sparsification; see docs/algorithms/chunk_allreduce.md."""

from __future__ import annotations

import numpy as np
import pytest

from gradcomp import Loopback, SpecError, _core
from gradcomp.codec.spec import parse
from support.codecs import settings_of_the_core
from support.gradients import of_one_tensor
from support.pipelines import config_of, configured


@pytest.mark.parametrize("memory", ["", "residual|", "momentum_correction(masking=false)|"])
@pytest.mark.parametrize("shape", [(64,), (7, 9), (100, 33)])
def test_the_chunks_of_the_largest_average_norm_are_sent(
    shape: tuple[int, ...], memory: str
) -> None:
    loop = Loopback(config_of(f"{memory}chunk_allreduce(ratio=0.3,chunk=8)"), 3)
    corrected = [np.zeros(int(np.prod(shape)), np.float32) for _ in range(3)]
    momenta = [np.zeros_like(flat) for flat in corrected]
    for step in range(4):
        grads = of_one_tensor(3, shape, step)
        averages = loop.step({"w": grads})["w"]
        for rank, grad in enumerate(grads):
            flat = grad.reshape(-1)
            if memory.startswith("momentum"):
                momenta[rank] = momenta[rank] * np.float32(0.9) + flat
                flat = momenta[rank]
            corrected[rank] = corrected[rank] + flat if memory else flat.copy()
        n = corrected[0].size
        starts = np.arange(0, n, 8)
        norms = sum(np.add.reduceat(np.abs(flat.astype(np.float64)), starts) for flat in corrected)
        chosen = np.argsort(-norms, kind="stable")[: max(1, round(0.3 * starts.size))]
        mask = np.isin(np.arange(n) // 8, chosen)
        mean = sum(flat.astype(np.float64) for flat in corrected) / 3
        for average in averages:
            assert average.tobytes() == averages[0].tobytes()
            np.testing.assert_allclose(average.reshape(-1), mean * mask, rtol=1e-5, atol=1e-6)
        for rank, flat in enumerate(corrected):
            flat[mask] = 0
            if memory:
                state = loop.ranks[rank].state_dict()["residual"]["w"]
                np.testing.assert_allclose(state, flat, rtol=1e-5, atol=1e-6)


def test_what_is_sent_and_what_is_kept_are_the_gradient() -> None:
    """The residual also keeps the error of rounding to float16."""
    loop = Loopback(config_of("residual|chunk_allreduce(ratio=0.2,chunk=16,values=fp16)"), 2)
    total = np.zeros(500, np.float64)
    applied = np.zeros(500, np.float64)
    for step in range(20):
        grads = of_one_tensor(2, (500,), step)
        total += np.mean(grads, axis=0, dtype=np.float64)
        applied += loop.step({"w": grads})["w"][0]
    kept = np.mean([rank.state_dict()["residual"]["w"] for rank in loop.ranks], axis=0)
    # The sum of two float16 numbers is rounded once more, on the wire.
    np.testing.assert_allclose(applied + kept, total, atol=2e-2)


def test_the_volume_does_not_grow_with_the_ranks() -> None:
    sent = []
    for ranks in (2, 4, 8):
        loop = Loopback(config_of("residual|chunk_allreduce(ratio=0.01,chunk=100)"), ranks)
        loop.step({"w": of_one_tensor(ranks, (100_000,), 0)})
        assert {stats.total_bytes for stats in loop.stats} == {4 * (1000 + 1000)}
        sent.append(loop.stats[0].total_bytes)
    assert len(set(sent)) == 1


def test_a_bucket_is_as_its_tensors_one_by_one() -> None:
    shapes = {f"w{i}": (30 + i, 20) for i in range(5)}
    spec = "momentum_correction|chunk_allreduce(ratio=steps([0.5,0.1]),chunk=7)"
    mapping = {"match": {}, "use": spec}
    together, alone = (
        Loopback(
            configured(spec, rules=[mapping], bucket_bytes=size),
            2,
        )
        for size in (2**20, 0)
    )
    assert len(together.ranks[0].buckets(together.ranks[0].resolve_all(shapes))) == 1
    assert len(alone.ranks[0].buckets(alone.ranks[0].resolve_all(shapes))) == 5
    for step in range(3):
        grads = {name: of_one_tensor(2, shape, step) for name, shape in shapes.items()}
        expected = alone.step(grads)
        for name, averages in together.step(grads).items():
            assert averages[0].tobytes() == expected[name][0].tobytes()


def test_nothing_nonfinite_stays() -> None:
    loop = Loopback(config_of("residual|chunk_allreduce(ratio=0.1,chunk=10)"), 2)
    grads = of_one_tensor(2, (200,), 0)
    grads[0][55], grads[1][123] = np.nan, np.inf
    average = loop.step({"w": grads})["w"][0]
    assert not np.isfinite(average[[55, 123]]).any()
    for rank in loop.ranks:
        assert np.isfinite(rank.state_dict()["residual"]["w"]).all()
    assert np.isfinite(loop.step({"w": of_one_tensor(2, (200,), 1)})["w"][0]).all()


def test_norms_are_the_same_at_all_levels() -> None:
    x = np.random.default_rng(0).normal(size=10_001).astype(np.float32)
    seen = set()
    for _ in settings_of_the_core(threads=(1,)):
        norms = np.empty(101, np.float32)
        _core.chunk_norms(x, 100, norms)
        seen.add(norms.tobytes())
    assert len(seen) == 1
    with pytest.raises(ValueError, match="do not fit"):
        _core.chunk_norms(x, 0, norms)


def test_the_preset() -> None:
    spec = parse("chunk_dgc(ratio=0.01,chunk=64,warmup_steps=10)")
    assert [stage.name for stage in spec.stages] == ["momentum_correction", "chunk_allreduce"]
    assert spec.at(10, 0).stages[1].params == {"ratio": 0.01, "chunk": 64, "values": "fp32"}
    for wrong in ("chunk_allreduce|rice", "signum|chunk_dgc", "rotate|chunk_allreduce"):
        with pytest.raises(SpecError):
            parse(wrong)
