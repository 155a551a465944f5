"""What specs send for the gradients of a model, beside each other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gradcomp.codec.spec import Spec
from gradcomp.config.schema import Config
from gradcomp.exchange.patterns.dense import Dense
from gradcomp.exchange.patterns.dense_momentum import DenseMomentum
from gradcomp.exchange.select import exchange_pattern
from gradcomp.runtime.loopback import Loopback
from gradcomp.tools.profile_model import FIRST_STEP
from gradcomp.tools.simulate import synthetic_gradients

__all__ = ["ModelBytes", "model_bytes"]

STEPS = 2
"""That are counted: some specs send one thing in even steps and another in odd ones."""


@dataclass(frozen=True)
class ModelBytes:
    """A step of a model under one spec, after all warm-ups.

    Attributes:
        exchange: the pattern of what is compressed; see `gradcomp.exchange.select.exchange_pattern`.
        bits_per_element: of the tensors that are compressed; None where none is.
        sent_bytes: that a rank hands to the collectives, headers included; the mean of `STEPS`.
        tensors: how many the model has.
        dense_tensors: how many of them travel uncompressed.
        dense_bytes: of these, which `sent_bytes` has in it.
    """

    exchange: str
    bits_per_element: float | None
    sent_bytes: float
    tensors: int
    dense_tensors: int
    dense_bytes: int


def model_bytes(spec: Spec, shapes: Mapping[str, tuple[int, ...]]) -> ModelBytes:
    """Average synthetic gradients of ``shapes`` over two ranks, and count the first one's bytes.

    The default rules hold: small tensors travel uncompressed, and those of a shape that the spec
    does not take.
    """
    loop = Loopback(Config.from_spec(spec.canonical), 2)
    loop.begin_at(FIRST_STEP, shapes)
    first = loop.ranks[0]
    rng = np.random.default_rng(0)
    resolved = first.resolve_all(shapes)
    dense = {
        name for name, one in resolved.items() if isinstance(one.aggregator, Dense | DenseMomentum)
    }
    for _ in range(STEPS):
        for bucket in first.buckets(resolved):
            # No more of the model need be in memory at once.
            loop.step({name: synthetic_gradients(rng, shapes[name], 2) for name in bucket[::-1]})
    numel = {name: math.prod(shape) for name, shape in shapes.items()}
    dense_bytes = 4 * sum(numel[name] for name in dense)
    rest = sum(numel.values()) - dense_bytes // 4
    sent = first.stats.sent_bytes.total() / STEPS
    return ModelBytes(
        exchange=exchange_pattern(spec),
        bits_per_element=8 * (sent - dense_bytes) / rest if rest else None,
        sent_bytes=sent,
        tensors=len(shapes),
        dense_tensors=len(dense),
        dense_bytes=dense_bytes,
    )
