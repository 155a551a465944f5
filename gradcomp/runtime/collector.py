"""Collects the gradients of a step and starts the round of each bucket."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gradcomp.codec.arrays import FloatArray
from gradcomp.exchange.engine import Driver, came_twice
from gradcomp.exchange.rounds import AllReduce, Request
from gradcomp.runtime.pipeline import Pipeline
from gradcomp.runtime.policy import Decision, PolicyGroup

__all__ = ["Collector"]


@dataclass
class _Waiting:
    grads: dict[str, FloatArray] = field(default_factory=dict)
    dense_bytes: int = 0


class Collector:
    """Starts the round of a bucket when the last of its gradients has come.

    Args:
        tensors: names and shapes of all parameters, in the order of the model: the same on every
            rank.
        clock: seconds, for policies that measure.
        overwrite: averages may be written where the gradients are.
    """

    def __init__(
        self,
        driver: Driver,
        pipeline: Pipeline,
        tensors: Mapping[str, tuple[int, ...]],
        clock: Callable[[], float] = time.perf_counter,
        overwrite: bool = False,
    ) -> None:
        self._driver = driver
        self._overwrite = overwrite
        self._clock = clock
        self._ended = 0.0
        self._pipeline = pipeline
        self._tensors = tensors
        self._group()
        self._waiting: dict[tuple[str, ...], _Waiting] = {}
        self._measured: dict[PolicyGroup, dict[str, _Waiting]] = {}
        self._of_this_step: set[str] = set()

    def _group(self) -> None:
        self._buckets = self._pipeline.buckets(self._tensors)
        self._bucket_of = {name: names for names in self._buckets for name in names}

    def begin_step(self) -> tuple[Decision, ...]:
        """Say that a step begins, before any of its gradients is averaged; every rank must.

        Returns:
            What a policy has decided now.
        """
        profile = self._pipeline.stats.profile
        if profile is not None:
            profile.begin_step()
        if not self._pipeline.varies:
            return ()
        decisions = self._driver.run(
            self._pipeline.begin_step(self._tensors, self._ended, self._clock())
        )
        self._group()
        return decisions

    def add(self, name: str, grad: FloatArray, dense_bytes: int) -> None:
        """Take a gradient, which nobody else must change before `finish`.

        Args:
            dense_bytes: its uncompressed size.
        """
        if name in self._of_this_step:
            raise came_twice(name)
        self._of_this_step.add(name)
        shape = self._tensors.get(name)
        group = None if shape is None else self._pipeline.measured(name, shape)
        if group is not None:
            self._measured.setdefault(group, {})[name] = _Waiting({name: grad}, dense_bytes)
            return
        bucket = self._bucket_of.get(name, (name,))
        waiting = self._waiting.setdefault(bucket, _Waiting())
        waiting.grads[name] = grad
        waiting.dense_bytes += dense_bytes
        if len(waiting.grads) == len(bucket):
            self._start(bucket)

    def finish(self, name: str) -> FloatArray:
        """The average of a gradient; runs all rounds to their ends.

        Every rank must have added the same gradients before.
        """
        try:
            # Buckets of which some parameters have no gradient at all.
            for bucket in self._buckets:
                if bucket in self._waiting:
                    self._start(bucket)
            if self._measured:
                self._measure()
            average = self._driver.finish(name)
        except BaseException:
            self._waiting.clear()
            self._measured.clear()
            self._of_this_step.clear()
            raise
        self._of_this_step.discard(name)
        return average

    def end_step(self) -> None:
        """Say that averages of the step are there; the last call before the next step counts."""
        self._ended = self._clock()

    def _measure(self) -> None:
        """Average group by group, each by itself and from a common beginning."""
        self._driver.finish_all()
        for group, waiting in sorted(self._measured.items()):
            shapes = {name: shape for name, shape in self._tensors.items() if name in waiting}
            self._driver.run(_barrier())
            began = self._clock()
            for bucket in self._pipeline.buckets(shapes):
                self._waiting[bucket] = _Waiting(
                    {name: waiting[name].grads[name] for name in bucket},
                    sum(waiting[name].dense_bytes for name in bucket),
                )
                self._start(bucket)
            self._driver.finish_all()
            self._pipeline.record(group, self._clock() - began)
        self._measured.clear()

    def _start(self, bucket: tuple[str, ...]) -> None:
        waiting = self._waiting.pop(bucket)
        # In the bucket's order, which unlike that of arrival is the same on every rank.
        grads = {name: waiting.grads[name] for name in bucket if name in waiting.grads}
        label = bucket[0] if len(bucket) == 1 else f"{bucket[0]}+{len(bucket) - 1}"
        one = self._pipeline.bucket_round(label, grads, waiting.dense_bytes, self._overwrite)
        self._driver.start(label, one, list(grads))


def _barrier() -> Generator[Request, Any, None]:
    yield AllReduce("policy.begin", np.zeros(1, np.float32))
