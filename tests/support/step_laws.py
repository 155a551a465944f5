"""Laws of the algorithms that give steps of an optimizer: dion, dion2 and demo."""

from __future__ import annotations

import numpy as np

from gradcomp import Loopback
from gradcomp.codec.arrays import FloatArray
from support.codecs import settings_of_the_core
from support.pipelines import config_of

__all__ = ["check_bits", "check_recovers", "gradients", "take_state"]


def gradients(ranks: int, step: int, shape: tuple[int, ...]) -> list[FloatArray]:
    """Normal gradients of one tensor on every rank."""
    rng = np.random.default_rng([ranks, step])
    return [rng.standard_normal(shape, np.float32) for _ in range(ranks)]


def check_recovers(spec: str, shape: tuple[int, int], *, spoiled: int | None = None) -> None:
    """Zero gradients give zero steps; a NaN, an Inf or 3e38 on one rank: NaN on all, and soon equal again.

    Args:
        spoiled: number of first elements that become NaN; None for all.
    """
    loop = Loopback(config_of(spec), 2)
    zeros = [np.zeros(shape, np.float32)] * 2
    assert not loop.step({"w": zeros})["w"][0].any()
    for bad in (np.nan, np.inf, 3e38):
        grads = gradients(2, 1, shape)
        grads[1][3, 5] = bad
        for result in loop.step({"w": grads})["w"]:
            assert np.isnan(result.reshape(-1)[:spoiled]).all() or bad == 3e38
        for step in range(2):
            results = loop.step({"w": gradients(2, step, shape)})["w"]
        assert np.isfinite(results[0]).all()
        assert results[0].tobytes() == results[1].tobytes()


def check_bits(spec: str, shape: tuple[int, int]) -> None:
    """The same bits at every instruction set and number of threads."""
    seen = set()
    for _ in settings_of_the_core(threads=(1, 3)):
        loop = Loopback(config_of(spec), 2)
        for step in range(2):
            results = loop.step({"w": gradients(2, step, shape)})["w"]
        seen.add(results[0].tobytes())
    assert len(seen) == 1


def take_state(source: Loopback, *loops: Loopback) -> None:
    """Give the state of every rank to other loopbacks; their momenta are then the same."""
    for loop in loops:
        for one, of in zip(source.ranks, loop.ranks, strict=True):
            of.load_state_dict(one.state_dict())
            assert np.array_equal(*(x.state_dict()["momentum"]["w"] for x in (one, of)))
