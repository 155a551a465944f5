"""Outer steps of one rank, on any engine: counts inner steps, averages changes, steps the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Never, Protocol

import numpy as np

from gradcomp.codec.arrays import FloatArray
from gradcomp.errors import ConfigError, StateError
from gradcomp.exchange.arrays_of_state import arrays_like, check_mapping
from gradcomp.runtime.collector import Collector
from gradcomp.runtime.controls import Controls
from gradcomp.runtime.measure.profile import OuterRound
from gradcomp.runtime.outer.fragments import fragments_of
from gradcomp.runtime.outer.options import OuterOptions
from gradcomp.runtime.outer.round_clock import RoundClock
from gradcomp.runtime.outer.sgd import OuterSGD
from gradcomp.runtime.pipeline import Pipeline

__all__ = ["OuterSteps", "Values", "done", "weigh"]


class Values(Protocol):
    """The trainable parameters of a model on this rank, of any framework.

    Attributes:
        shapes: of all parameters by name, in the order of the model; the same on every rank.
        rounds: whether `write` rounds, as parameters of less precision than float32 do.
    """

    shapes: Mapping[str, tuple[int, ...]]
    rounds: bool

    def read(self, name: str) -> FloatArray:
        """A parameter, flat float32; may be a view."""
        ...

    def write(self, name: str, value: FloatArray) -> None:
        """Set a parameter from flat float32, which is copied."""
        ...

    def keep(self, name: str) -> Any:
        """A copy of a parameter in its own dtype."""
        ...

    def put_back(self, name: str, kept: Any) -> None:
        """Set a parameter to a result of `keep`."""
        ...


class OuterSteps(Controls):
    """Base class of every adapter's ``OuterStep``: averages the ranks' changes of a model at times.

    A rank's pseudo-gradient is ``start - parameters``, with the values after the last outer step
    as ``start``. The ranks average it through a spec and its error feedback, and all make the same
    step of `OuterSGD` from ``start``. Between outer steps nothing travels. The inner optimizer may
    be any; its state stays with the rank. docs/outer.md has the published methods as settings.

    Douillard et al.: "DiLoCo" (arXiv:2311.08105), algorithm 1; with fragments, "Streaming DiLoCo with
    overlapping communication" (arXiv:2501.18512), algorithm 2. A fragment's values are mixed after
    the overlap, as there: ``mixing * own + (1 - mixing) * start``.

    A subclass sets ``_pipeline``, this rank's compression, and ``_collector``, of all parameters, once
    the ranks have agreed on options and configuration.

    Args:
        options: the settings.
        values: parameters, equal on all ranks.

    Raises:
        ConfigError: the model has fewer layers than fragments.
    """

    _pipeline: Pipeline
    _collector: Collector

    def __init__(self, options: OuterOptions, values: Values) -> None:
        self.options = options
        self._values = values
        self._fragments = fragments_of(values.shapes, options.fragments, options.pattern)
        self._samples = [0.0] * options.fragments
        start = {name: values.read(name) for name in values.shapes}
        self._outer = OuterSGD(start, options.lr, options.momentum, options.nesterov)
        # For the changes and, where an engine overwrites them, the averages of each exchange.
        self._changes = {name: np.empty_like(value) for name, value in start.items()}
        self._rounded: dict[str, FloatArray] = {}
        self._inner_steps = 0
        self._clock = RoundClock()
        self._round: OuterRound | None = None  # the last one that has ended
        self._pipeline.stats.inner_steps = options.every
        self._thread = ThreadPoolExecutor(1, "gradcomp-outer") if options.overlap else None
        self._averages: Future[dict[str, FloatArray]] | None = None

    @property
    def pipeline(self) -> Pipeline:
        """See `gradcomp.runtime.controls.Controls`."""
        return self._pipeline

    @property
    def inner_steps(self) -> int:
        """Number of inner steps so far."""
        return self._inner_steps

    def set_loss_scale(self, scale: float) -> Never:
        """Not for outer steps.

        Raises:
            ConfigError: always: changes of parameters are in units of the parameters.
        """
        raise ConfigError(
            f"set_loss_scale({scale}) is for compressed gradients, and outer steps average changes of "
            "parameters, which have no loss scale: leave the call out; a GradScaler needs nothing but "
            "step() after each inner step, also after one that it has skipped"
        )

    def allow_discard(self) -> Never:
        """Not for outer steps; see `discard_step`.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            "allow_discard() prepares discard_step(), which does not work with outer steps: they are "
            "in the parameters at once. To go back, load a checkpoint of OuterStep.save"
        )

    def discard_step(self) -> Never:
        """Not for outer steps: an average is in the parameters when `step` returns.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            "discard_step() takes back an average that is not applied, and outer steps are in the "
            "parameters at once: to go back, load a checkpoint of OuterStep.save"
        )

    def step(self, samples: float | None = None) -> bool:
        """Count an inner step; when an outer step of a fragment is due, make it.

        Every rank must call it after each of its inner steps, also after one that a GradScaler has
        skipped: all must call it equally often.

        Args:
            samples: of this rank in the inner step, at least 0; with ``weighted`` only.

        Returns:
            Whether an outer step was made.

        Raises:
            ConfigError: ``samples`` is negative, or does not fit ``weighted``.
            ProtocolError: another rank does not answer, or is at another step.
        """
        self._check_samples(samples)
        with self._clock.holding():
            self._count(samples)
            if self._starts:
                self._start()
            if not self._ends:
                return False
            self._finish()
            return True

    @property
    def exchanges_next(self) -> bool:
        """Whether the next `step` starts an exchange."""
        period = self.options.period
        return (self._inner_steps + 1 + self.options.overlap) % period == 0

    @contextmanager
    def common(self) -> Iterator[None]:
        """The parameters after their last outer steps, equal on all ranks, inside a ``with``.

        For tests and for the final model. Between outer steps, and after them with ``mixing`` or
        fragments, each rank's own parameters differ; they come back at the end.
        """
        own_values = {name: self._values.keep(name) for name in self._values.shapes}
        for name in self._values.shapes:
            self._values.write(name, self._outer.start[name])
        try:
            yield
        finally:
            for name, kept in own_values.items():
                self._values.put_back(name, kept)

    def _check_samples(self, samples: float | None) -> None:
        if (samples is not None) != self.options.weighted:
            raise ConfigError(
                f"step() got samples={samples}, and the ranks are "
                f"{'' if self.options.weighted else 'not '}weighted: give samples in every step "
                "with weighted=True, and never without"
            )
        if samples is not None and not 0 <= samples < float("inf"):
            raise ConfigError(f"samples is {samples}; it must be at least 0 and finite")

    # One exchange ---------------------------------------------------------------------------------

    def _count(self, samples: float | None) -> None:
        """Count an inner step."""
        for fragment in range(len(self._fragments)):
            self._samples[fragment] += samples or 0.0
        self._inner_steps += 1

    @property
    def _starts(self) -> bool:
        """Whether an exchange starts after this inner step."""
        return (self._inner_steps + self.options.overlap) % self.options.period == 0

    @property
    def _ends(self) -> bool:
        """Whether a fragment's outer step is due after this inner step."""
        return self._inner_steps % self.options.period == 0

    @property
    def _due(self) -> int:
        """The fragment that is being averaged, or comes next."""
        return (self._inner_steps - 1) // self.options.period % len(self._fragments)

    def _start(self) -> None:
        """Start the exchange of the fragment that is due."""
        changes, samples = self._take_changes()
        self._round = self._clock.next_round(self.options.period)
        if self._thread is not None:
            self._averages = self._thread.submit(self._average, changes, samples)
        else:
            self._averages = done(self._average(changes, samples))

    def _take_changes(self) -> tuple[dict[str, FloatArray], float]:
        """The changes of the fragment that is due, and the samples behind them."""
        names = self._fragments[self._due]
        changes = {
            name: np.subtract(self._given(name), self._values.read(name), out=self._changes[name])
            for name in names
        }
        samples, self._samples[self._due] = self._samples[self._due], 0.0
        return changes, samples

    def _average(self, changes: dict[str, FloatArray], samples: float) -> dict[str, FloatArray]:
        """The averages over the ranks, by this rank's engine."""
        collector = self._collector
        self._report(collector.begin_step())
        profile = self._pipeline.stats.profile
        if profile is not None and self._round is not None:
            profile.of_round(self._round)
        if self.options.weighted:
            weigh(changes, samples, collector.mean("outer.samples", samples))
        for name, change in changes.items():
            shape = self._values.shapes[name]
            collector.add(collector.resolve(name, shape), change.reshape(shape), change.nbytes)
        averages = {name: collector.finish(name).reshape(-1) for name in changes}
        collector.end_step()
        return averages

    def _finish(self) -> None:
        """Wait for the exchange, and make the outer step of its fragment."""
        assert self._averages is not None  # `_start` came before
        averages, self._averages = self._averages.result(), None
        mixing = np.float32(self.options.mixing)
        for name, average in averages.items():
            own_values = mixing * self._values.read(name) if mixing else None
            start = self._outer.step(name, average)
            self._write(name, start)
            if own_values is not None:
                self._values.write(name, own_values + (1 - mixing) * start)

    def _given(self, name: str) -> FloatArray:
        """The value from which a rank's change counts: ``start`` as the parameter's dtype has it."""
        return self._rounded.get(name, self._outer.start[name])

    def _write(self, name: str, start: FloatArray) -> None:
        self._values.write(name, start)
        if self._values.rounds:
            self._rounded[name] = self._values.read(name).copy()

    # Checkpoints ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """This rank's state, for its checkpoint: plain numbers, strings and numpy arrays.

        It holds the compressor's state, the start of the round, outer momentum and this rank's
        parameters; an exchange that runs is awaited first. The inner optimizer is not in it.
        """
        averages = {} if self._averages is None else self._averages.result()
        return {
            "compression": self._pipeline.state_dict(),
            "outer": self._outer.state_dict(),
            "inner_steps": self._inner_steps,
            "samples": list(self._samples),
            "values": {name: self._values.read(name).copy() for name in self._values.shapes},
            "averages": {name: average.copy() for name, average in averages.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continue from a saved state: this rank's own, or the list of all ranks' states.

        From the list, on another number of ranks, training goes on at the last outer step; the inner
        steps since then are lost.

        Raises:
            StateError: the state does not fit; nothing has changed.
        """
        rows: Sequence[Any] = [state] if isinstance(state, Mapping) else state
        if not isinstance(rows, list | tuple) or not rows:
            raise StateError(_FOREIGN)
        for row in rows:
            check_mapping(row)
            if "compression" not in row:
                raise StateError(_FOREIGN)
        first = rows[0]
        # All checks come before any change.
        steps = _steps_in(first)
        for kind in ("start", "momentum"):
            self._outer.checked(first.get("outer"), kind)
        values = self._outer.checked(first, "values")
        averages = self._running(first, steps)
        samples = first.get("samples")
        if not isinstance(samples, list) or len(samples) != len(self._fragments):
            raise StateError(
                f"the state's samples are {samples!r}; they must be {len(self._fragments)} numbers: "
                "load with the number of fragments of the saved run"
            )
        same_ranks = isinstance(state, Mapping)
        compression = [row["compression"] for row in rows]
        self._pipeline.load_state_dict(compression[0] if same_ranks else compression)
        if self._averages is not None:
            self._averages.result()
        self._outer.load_state_dict(first["outer"])
        self._averages = None
        if same_ranks and averages:
            self._averages = done(averages)
        for name, average in averages.items() if not same_ranks else ():
            self._outer.step(name, average)
        for name, value in self._outer.start.items():
            self._write(name, value)
        if same_ranks:
            for name, value in values.items():
                self._values.write(name, value)
            self._samples = [float(count) for count in samples]
        else:  # changes of other ranks since the last outer step belong to nobody here
            period = self.options.period
            steps = -(-steps // period) * period if averages else steps - steps % period
            self._samples = [0.0] * len(self._fragments)
        self._inner_steps = steps

    def _running(self, state: Mapping[str, Any], steps: int) -> dict[str, FloatArray]:
        """The averages of an exchange that ran when the state was saved."""
        period = self.options.period
        phase = steps % period
        names = []
        if phase and phase >= period - self.options.overlap:
            names = self._fragments[steps // period % len(self._fragments)]
        sizes = {name: self._outer.start[name].size for name in names}
        return arrays_like(state, "averages", sizes)

    def _meet(self, call: str) -> None:
        # An exchange that runs has the engine for itself.
        if self._averages is not None:
            self._averages.result()
        super()._meet(call)

    def _state_to_save(self) -> Mapping[str, Any]:
        return OuterSteps.state_dict(self)

    def _take_saved(self, states: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        OuterSteps.load_state_dict(self, states)


_FOREIGN = (
    "the state is of another object than an OuterStep: load a result of OuterStep.state_dict, or a "
    "directory that OuterStep.save has written"
)


def _steps_in(state: Mapping[str, Any]) -> int:
    steps = state.get("inner_steps")
    if not isinstance(steps, int) or steps < 0:
        raise StateError(f"the state's inner_steps is {steps!r}: {_FOREIGN}")
    return steps


def weigh(changes: Mapping[str, FloatArray], samples: float, mean: float) -> None:
    """Weigh one rank's changes in place by its samples, relative to their mean over the ranks."""
    weight = np.float32(samples / mean if mean > 0 else 0.0)
    for change in changes.values():
        change *= weight


def done(averages: dict[str, FloatArray]) -> Future[dict[str, FloatArray]]:
    """The end of an exchange that does not run in a thread."""
    future: Future[dict[str, FloatArray]] = Future()
    future.set_result(averages)
    return future
