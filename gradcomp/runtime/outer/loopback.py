"""Outer steps of all ranks in one process: for tests, and for a first try."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gradcomp.codec.arrays import FloatArray
from gradcomp.config.schema import Config
from gradcomp.runtime.loopback import Loopback
from gradcomp.runtime.measure.stats import Stats
from gradcomp.runtime.outer.options import OuterOptions
from gradcomp.runtime.outer.steps import OuterSteps, done, weigh
from gradcomp.runtime.pipeline import Pipeline

__all__ = ["OuterLoopback"]


class OuterLoopback:
    """Averages the changes of ``world_size`` ranks' parameters, as ``OuterStep`` does on engines; see `Loopback`.

    Args:
        config: a configuration, or a spec string for all tensors.
        values: parameters at the beginning by name, equal on all ranks; copied as float32.
        world_size: number of ranks, at least 1.
        every, options: settings of `gradcomp.runtime.outer.options.OuterOptions`; an exchange with
            ``overlap`` runs at once, and its averages take effect after the overlap.

    Attributes:
        values: each rank's parameters, flat float32 by name; the caller's inner steps change them in
            place.

    Raises:
        ValueError: ``world_size`` is less than 1.
        SpecError: the spec is wrong.
        ConfigError: an argument does not fit; see `OuterOptions.of`.

    Examples:
        >>> import numpy as np
        >>> from gradcomp import OuterLoopback
        >>> local = OuterLoopback("identity", {"w": np.zeros(2)}, world_size=2, every=1, lr=1, momentum=0)
        >>> local.values[0]["w"] += 1.0
        >>> local.values[1]["w"] += 3.0
        >>> local.step()
        True
        >>> local.values[0]["w"]
        array([2., 2.], dtype=float32)
    """

    def __init__(
        self,
        config: Config | str,
        values: Mapping[str, Any],
        world_size: int,
        *,
        every: int = 30,
        **options: Any,
    ) -> None:
        settings = Config.of(config, measures=False)
        self.options = OuterOptions.of(settings, every, **options)
        self._loopback = Loopback(settings, world_size)
        self._ranks = [_Rank(self.options, pipeline, values) for pipeline in self._loopback.ranks]
        self.values = [rank.arrays for rank in self._ranks]

    @property
    def stats(self) -> list[Stats]:
        """Each rank's statistics."""
        return self._loopback.stats

    def step(self, samples: Sequence[float] | None = None) -> bool:
        """Count an inner step of all ranks; see `OuterSteps.step`.

        Args:
            samples: of each rank; with ``weighted`` only.

        Raises:
            ValueError: ``samples`` does not have one number for each rank.
            ConfigError: see `OuterSteps.step`.
        """
        size = len(self._ranks)
        of_ranks = [None] * size if samples is None else list(samples)
        if len(of_ranks) != size:
            raise ValueError(f"samples has {len(of_ranks)} numbers for {size} ranks")
        for rank, count in zip(self._ranks, of_ranks, strict=True):
            rank.count(count)
        if self._ranks[0].starts:
            self._exchange()
        made = [rank.end() for rank in self._ranks]
        return made[0]

    def _exchange(self) -> None:
        taken = [rank.take_changes() for rank in self._ranks]
        if self.options.weighted:
            mean = math.fsum(samples for _, samples in taken) / len(taken)
            for changes, samples in taken:
                weigh(changes, samples, mean)
        shapes = self._ranks[0].shapes
        averages = self._loopback.step(
            {
                name: [changes[name].reshape(shapes[name]) for changes, _ in taken]
                for name in taken[0][0]
            }
        )
        for number, rank in enumerate(self._ranks):
            rank.give({name: of_ranks[number].reshape(-1) for name, of_ranks in averages.items()})

    def common(self) -> dict[str, FloatArray]:
        """Copies of the parameters after their last outer steps, in their shapes; equal on all ranks."""
        return self._ranks[0].start()

    def state_dicts(self) -> list[dict[str, Any]]:
        """The state of each rank; see `OuterSteps.state_dict`."""
        return [rank.state_dict() for rank in self._ranks]

    def load_state_dicts(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Continue from the states of all ranks; see `OuterSteps.load_state_dict`.

        Raises:
            StateError: the states do not fit.
        """
        same = len(states) == len(self._ranks)
        for number, rank in enumerate(self._ranks):
            rank.load_state_dict(states[number] if same else states)


class _Arrays:
    """One rank's parameters as arrays; see `gradcomp.runtime.outer.steps.Values`."""

    rounds = False

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.shapes: Mapping[str, tuple[int, ...]] = {n: np.shape(v) for n, v in values.items()}
        self.arrays: dict[str, FloatArray] = {
            name: np.array(value, np.float32).reshape(-1) for name, value in values.items()
        }

    def read(self, name: str) -> FloatArray:
        return self.arrays[name]

    def write(self, name: str, value: FloatArray) -> None:
        self.arrays[name][...] = value

    def keep(self, name: str) -> FloatArray:
        return self.arrays[name].copy()

    def put_back(self, name: str, kept: FloatArray) -> None:
        self.write(name, kept)


class _Rank(OuterSteps):
    """One rank; the loopback makes its exchanges."""

    def __init__(
        self, options: OuterOptions, pipeline: Pipeline, values: Mapping[str, Any]
    ) -> None:
        self._pipeline = pipeline
        arrays = _Arrays(values)
        super().__init__(options, arrays)
        self.arrays, self.shapes = arrays.arrays, arrays.shapes

    def count(self, samples: float | None) -> None:
        self._check_samples(samples)
        self._count(samples)

    @property
    def starts(self) -> bool:
        return self._starts

    def take_changes(self) -> tuple[dict[str, FloatArray], float]:
        return self._take_changes()

    def give(self, averages: dict[str, FloatArray]) -> None:
        """Keep the averages until the outer step."""
        self._averages = done(averages)

    def end(self) -> bool:
        """Make the outer step if it is due; returns whether it was."""
        if self._ends:
            self._finish()
        return self._ends

    def start(self) -> dict[str, FloatArray]:
        return {
            name: self._outer.start[name].reshape(self.shapes[name]).copy() for name in self.shapes
        }
