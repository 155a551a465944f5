"""Bytes that a spec sends for the gradients of a model in a step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from gradcomp.codec.spec import Spec
from gradcomp.config.schema import Config
from gradcomp.exchange.patterns.dense import Dense
from gradcomp.exchange.patterns.dense_momentum import DenseMomentum
from gradcomp.exchange.select import exchange_pattern
from gradcomp.runtime.loopback import Loopback
from gradcomp.tools.synthetic import LATE_STEP, synthetic_gradients

__all__ = ["ModelBytes", "model_bytes"]

STEPS = 2
"""Steps counted: some specs send different messages in even and odd steps."""


@dataclass(frozen=True)
class ModelBytes:
    """A step of a model under one spec, after all warm-ups.

    Attributes:
        exchange: pattern of the compressed tensors; see `gradcomp.exchange.select.exchange_pattern`.
        bits_per_element: bits for each element of the compressed tensors; None without any.
        sent_bytes: bytes that a rank hands to the collectives, headers included; mean over `STEPS`.
        tensors: number of tensors of the model.
        dense_tensors: number of tensors that travel uncompressed.
        dense_bytes: bytes of these tensors, which are part of `sent_bytes`.
        workers: number of ranks that average together.
        link_bytes: bytes that pass a rank's link in a step; `gradcomp.exchange.link` has the formulas.
        link_ratio: of the bytes that pass it in a ring all-reduce of uncompressed gradients to
            `link_bytes`: below 1, more pass it than uncompressed.
    """

    exchange: str
    bits_per_element: float | None
    sent_bytes: float
    tensors: int
    dense_tensors: int
    dense_bytes: int
    workers: int
    link_bytes: float
    link_ratio: float

    def over(self, every: int) -> ModelBytes:
        """The same per inner step of rounds of ``every`` local steps; see docs/outer.md."""
        bits = self.bits_per_element
        return replace(
            self,
            bits_per_element=None if bits is None else bits / every,
            sent_bytes=self.sent_bytes / every,
            dense_bytes=round(self.dense_bytes / every),
            link_bytes=self.link_bytes / every,
            link_ratio=self.link_ratio * every,
        )


def model_bytes(spec: Spec, shapes: Mapping[str, tuple[int, ...]], workers: int = 2) -> ModelBytes:
    """Average synthetic gradients of ``shapes`` over the ranks, and count the first one's bytes.

    The default rules hold: small tensors travel uncompressed, as do tensors of shapes that the spec
    does not take.
    """
    loop = Loopback(Config.from_spec(spec.canonical), workers)
    loop.begin_at(LATE_STEP, shapes)
    first = loop.ranks[0]
    rng = np.random.default_rng(0)
    resolved = first.resolve_all(shapes)
    dense = {
        name for name, one in resolved.items() if isinstance(one.aggregator, Dense | DenseMomentum)
    }
    for _ in range(STEPS):
        for bucket in first.buckets(resolved):
            # No more of the model need be in memory at once.
            grads = {name: synthetic_gradients(rng, shapes[name], workers) for name in bucket}
            loop.step(dict(reversed(grads.items())))
    numel = {name: math.prod(shape) for name, shape in shapes.items()}
    dense_bytes = 4 * sum(numel[name] for name in dense)
    rest = sum(numel.values()) - dense_bytes // 4
    sent = first.stats.sent_bytes.total() / STEPS
    return ModelBytes(
        exchange=exchange_pattern(spec.at(LATE_STEP, 0), ranks=workers),
        bits_per_element=8 * (sent - dense_bytes) / rest if rest else None,
        sent_bytes=sent,
        tensors=len(shapes),
        dense_tensors=len(dense),
        dense_bytes=dense_bytes,
        workers=workers,
        link_bytes=first.stats.link_bytes / STEPS,
        link_ratio=first.stats.link_ratio,
    )
