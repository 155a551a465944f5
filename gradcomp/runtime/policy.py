"""The policy ``auto``: measurements in the first steps decide whether compression is worth it.

docs/policy.md describes the measurements. All ranks call the same methods in the same steps and
agree on every figure before they use it, so they decide alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from gradcomp.codec.spec import Spec, parse
from gradcomp.exchange.memory import MOMENTUM_CORRECTION
from gradcomp.exchange.rounds import AllReduce, Request

__all__ = [
    "CANDIDATES",
    "COMPRESSED",
    "CONTENDERS",
    "DENSE",
    "Decision",
    "Policy",
    "PolicyGroup",
    "alternatives",
]

COMPRESSED, DENSE, HALF = "compressed", "dense", "fp16"

CHOSEN = "as chosen"
"""In the race of whole steps: each group travels as its exchanges were fastest."""

CANDIDATES = (DENSE, HALF, COMPRESSED)
"""Among equally fast candidates the first wins."""

CONTENDERS = (DENSE, HALF, CHOSEN)
"""Of the race of whole steps; the first of equals wins there, too."""

_GAIN = 0.97
"""A candidate must take less than this fraction of the dense exchange's time. A smaller gain is not
worth the losses and may be noise: a choice is slower by 3 % only if figures are off by 6 %."""

_REPEATS = 3
"""Steps in which a candidate's exchanges are timed, after one step of warm-up."""

_LAPS = 4
"""Whole steps that are timed in a row, after one of warm-up; twice for each contender of the race."""

_WINDOW = 100
"""Decided steps whose median is compared with that of the first so many. Each second look doubles it,
so that steps that change again and again do not cost one trial after the other."""

_CHANGED = 1.5
"""Factor by which steps are shorter or longer if conditions have changed, and not only by noise."""

_MEASURING = [(name, turn > 0) for name in CANDIDATES for turn in range(1 + _REPEATS)]


class PolicyGroup(NamedTuple):
    """Tensors that share a decision.

    Attributes:
        spec: canonical spec; if all its schedules have ended, their last values.
        exchange: the exchange in the configuration.
        size: size class: half the number of binary digits of the number of elements, rounded down.
            A class spans a factor of 4.
    """

    spec: str
    exchange: str
    size: int

    @classmethod
    def of(cls, spec: Spec, exchange: str, numel: int) -> PolicyGroup:
        """The group of a tensor."""
        return cls(spec.canonical, exchange, numel.bit_length() // 2)

    def __str__(self) -> str:
        low, high = (max(1, 2 ** (2 * size - 1)) for size in (self.size, self.size + 1))
        return f"'{self.spec}' on tensors of {low} to {high - 1} elements"


@dataclass(frozen=True)
class Decision:
    """The policy's choice for a group, and the measurements behind it.

    Attributes:
        choice: ``"compressed"``, ``"dense"`` or ``"fp16"``.
        seconds: time of all exchanges of the group in a step, by choice. Exchanges run one after
            the other, encoding and decoding included. The minimum over some steps, then the mean
            over the ranks.
        step_seconds: time of a whole step, from the first gradient to the last average, by
            contender: with all groups of this trial dense, all in float16, and as chosen by their
            exchanges. The median over some steps, then the mean over the ranks. None if dense
            exchanges were fastest for all groups.
    """

    group: PolicyGroup
    choice: str
    seconds: Mapping[str, float]
    step_seconds: Mapping[str, float] | None

    def __str__(self) -> str:
        text = f"{self.group}: {self.choice} (exchanges of a step: {_times(self.seconds)}"
        if self.step_seconds is not None:
            text += f"; a whole step: {_times(self.step_seconds)}"
        return text + ")"

    def to_state(self) -> dict[str, Any]:
        """Plain data for a checkpoint."""
        return {
            **self.group._asdict(),
            "choice": self.choice,
            "seconds": dict(self.seconds),
            "step_seconds": None if self.step_seconds is None else dict(self.step_seconds),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Decision:
        """The inverse of `to_state`."""
        laps = state["step_seconds"]
        return cls(
            PolicyGroup(*(state[key] for key in PolicyGroup._fields)),
            state["choice"],
            dict(state["seconds"]),
            None if laps is None else dict(laps),
        )


def _times(seconds: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {1e3 * value:.3f} ms" for name, value in seconds.items())


@lru_cache(maxsize=1024)
def alternatives(spec: Spec) -> dict[str, Spec]:
    """The replacements of a spec, by choice.

    With momentum correction the replacement keeps it, and there is no float16.
    """
    memory = spec.memory
    if memory is not None and memory.name == MOMENTUM_CORRECTION:
        return {DENSE: parse(f"{memory.text}|identity")}
    others = {DENSE: parse("identity"), HALF: parse("fp16")}
    return {name: other for name, other in others.items() if other.canonical != spec.canonical}


class _Trial:
    """Measures some groups: first each candidate's exchanges, then whole steps."""

    def __init__(self, groups: Iterable[PolicyGroup]) -> None:
        self.groups = sorted(groups)
        self.position = -1
        self.exchanges: dict[tuple[PolicyGroup, str], list[float]] = {}
        self.laps: dict[str, list[float]] = {}
        self.race: list[tuple[str, bool]] = []
        self.seconds: dict[PolicyGroup, dict[str, float]] = {}
        self.chosen: dict[PolicyGroup, str] = {}

    @property
    def measuring(self) -> bool:
        return 0 <= self.position < len(_MEASURING)

    @property
    def turn(self) -> tuple[str, bool]:
        """The candidate or contender of this step, and whether it counts."""
        return (_MEASURING + self.race)[self.position]

    @property
    def decided(self) -> bool:
        """Whether all has been measured."""
        return self.position == len(_MEASURING) + len(self.race)

    def choice(self, group: PolicyGroup) -> str:
        name, _ = self.turn
        return name if self.measuring else self.raced(name, group)

    def raced(self, name: str, group: PolicyGroup) -> str:
        """The way of a group under a contender of the race."""
        if name == CHOSEN:
            return self.chosen[group]
        return name if name in _ways(group) else DENSE

    def begin_race(self) -> None:
        """Let the contenders race that differ."""
        ways: dict[tuple[str, ...], str] = {}
        for name in CONTENDERS:
            ways.setdefault(tuple(self.raced(name, group) for group in self.groups), name)
        self.laps = {name: [] for name in ways.values()}
        self.race = [(name, turn > 0) for name in 2 * [*self.laps] for turn in range(1 + _LAPS)]


class _Watch:
    """The times of decided steps, which tell whether conditions have changed."""

    def __init__(self) -> None:
        self.window = _WINDOW
        self.reset()

    def reset(self) -> None:
        """Begin with the first window anew."""
        self.laps: list[float] = []
        self.usual: float | None = None

    def changed(self, seconds: float) -> Generator[Request, Any, bool]:
        """Add a step; once in a window all ranks learn whether steps have changed."""
        self.laps.append(seconds)
        if len(self.laps) < self.window:
            return False
        (median,) = yield from _mean("watch", [statistics.median(self.laps)])
        self.laps = []
        if self.usual is None:
            self.usual = median
        if self.usual <= _CHANGED * median and median <= _CHANGED * self.usual:
            return False
        self.window *= 2
        return True


class Policy:
    """Chooses the fastest of dense, float16 and the configured spec for each group of tensors."""

    def __init__(self) -> None:
        self.decisions: dict[PolicyGroup, Decision] = {}
        self._trial: _Trial | None = None
        self._watch = _Watch()
        self._began: float | None = None

    def choice(self, group: PolicyGroup) -> str:
        """The choice for a group in this step; compressed before the first step."""
        if group in self.decisions:
            return self.decisions[group].choice
        trial = self._trial
        return COMPRESSED if trial is None or group not in trial.groups else trial.choice(group)

    @property
    def idle(self) -> bool:
        """Whether nothing is being measured."""
        return self._trial is None

    @property
    def measured(self) -> tuple[PolicyGroup, ...]:
        """The groups whose exchanges are to be timed in this step; see `record`."""
        trial = self._trial
        return tuple(trial.groups) if trial is not None and trial.measuring else ()

    def record(self, group: PolicyGroup, seconds: float) -> None:
        """Record the time, in seconds, of all exchanges of a group in this step."""
        assert self._trial is not None  # ensured by `measured`
        name, counts = self._trial.turn
        if counts:
            self._trial.exchanges.setdefault((group, name), []).append(seconds)

    def begin_step(
        self, groups: Iterable[PolicyGroup], ended: float, now: float
    ) -> Generator[Request, Any, None]:
        """Begin a step. The round makes a request in steps in which ranks agree on figures.

        Args:
            groups: of the step's tensors, the same on every rank.
            ended: time of the last average of the previous step, in seconds.
            now: time of the first gradient of this step, by the same clock.
        """
        groups = set(groups)
        if groups <= self.decisions.keys():
            began = None if self._trial is not None or not groups else self._began
            self._trial, self._began = None, now
            if began is None or not (yield from self._watch.changed(ended - began)):
                return
            self.decisions.clear()
        self._watch.reset()
        undecided = sorted(groups - self.decisions.keys())
        trial = self._trial
        if trial is None or trial.groups != undecided:
            trial = self._trial = _Trial(undecided)
        elif not trial.measuring:
            name, counts = trial.turn
            if counts:
                assert self._began is not None  # the trial's last step
                trial.laps[name].append(ended - self._began)
        trial.position += 1
        self._began = now
        if trial.position == len(_MEASURING):
            yield from self._choose(trial)
        elif trial.decided:
            yield from self._decide(trial)

    def _choose(self, trial: _Trial) -> Generator[Request, Any, None]:
        names = {group: _ways(group) for group in trial.groups}
        figures = [
            min(trial.exchanges.get((group, name), [0.0]))
            for group in trial.groups
            for name in names[group]
        ]
        agreed = iter((yield from _mean("exchanges", figures)))
        for group in trial.groups:
            seconds = trial.seconds[group] = {name: next(agreed) for name in names[group]}
            fastest = min(seconds, key=seconds.__getitem__)
            gains = seconds[fastest] < _GAIN * seconds[DENSE]
            trial.chosen[group] = fastest if gains else DENSE
        if set(trial.chosen.values()) == {DENSE}:
            self._end(trial, None)
        else:
            trial.begin_race()

    def _decide(self, trial: _Trial) -> Generator[Request, Any, None]:
        figures = [statistics.median(laps) for laps in trial.laps.values()]
        seconds = dict(zip(trial.laps, (yield from _mean("steps", figures)), strict=True))
        fastest = min(seconds, key=seconds.__getitem__)
        best = fastest if seconds[fastest] < _GAIN * seconds[DENSE] else DENSE
        trial.chosen = {group: trial.raced(best, group) for group in trial.groups}
        self._end(trial, seconds)

    def _end(self, trial: _Trial, step_seconds: Mapping[str, float] | None) -> None:
        for group in trial.groups:
            self.decisions[group] = Decision(
                group, trial.chosen[group], trial.seconds[group], step_seconds
            )
        self._trial = None
        self._began = None

    def restart(self, decisions: Iterable[Decision] = ()) -> None:
        """Replace all decisions; other groups are measured from the next step on."""
        self.decisions = {one.group: one for one in decisions}
        self._trial = None
        self._watch = _Watch()
        self._began = None


def _ways(group: PolicyGroup) -> list[str]:
    """The candidates of a group."""
    others = alternatives(parse(group.spec))
    return [name for name in CANDIDATES if name in {*others, COMPRESSED}]


def _mean(label: str, figures: list[float]) -> Generator[Request, Any, list[float]]:
    reply = yield AllReduce(f"policy.{label}", np.array(figures, np.float64))
    return [float(value) for value in reply]
