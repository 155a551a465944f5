"""The policy ``auto``: measurements in the first steps decide whether compression is worth it.

docs/policy.md describes the measurements. All ranks call the same methods in the same steps and
agree on every figure before they use it, so they decide alike.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Generator, Iterable, Mapping
from typing import Any

import numpy as np

from gradcomp.exchange.rounds import AllReduce, Request
from gradcomp.runtime.policy.decision import (
    CANDIDATES,
    CHOSEN,
    COMPRESSED,
    CONTENDERS,
    DENSE,
    HALF,
    Decision,
    PolicyGroup,
)
from gradcomp.runtime.policy.predictions import Predictions, worth_a_trial

__all__ = ["Policy"]

_GAIN = 0.97
"""A candidate must take less than this fraction of the dense exchange's time. A smaller gain is not
worth the losses and may be noise: a choice is slower by 3 % only if figures are off by 6 %."""

_REPEATS = 3
"""Steps in which a candidate's exchanges are timed, after one step of each candidate for warm-up."""

_HOPELESS = {DENSE: 1.5, HALF: 1.5, COMPRESSED: 10.0}
"""Times the shortest step of the warm-up above which a candidate's exchanges alone rule it out: whatever
overlaps with them, its steps take longer. A codec's first step may take several times as long as later
ones, which start from its result."""

_LAPS = 4
"""Whole steps that are timed in a row, after one of warm-up; twice for each contender of a heat."""

_HEATS = 3
"""Heats of a race at most. After each, contenders that are clearly slower than the fastest are out."""

_CLOSE = 1.1
"""Times the fastest contender's median, up to which another one takes part in the next heat. Medians of
one heat may be off by several per cent; a longer race between close contenders costs little."""

_WINDOW = 100
"""Window length: the median of this many steps is compared with that of the first window. Measuring
again doubles it, so that steps that change again and again do not cost one trial after the other."""

_CHANGED = 1.5
"""Factor by which steps are shorter or longer if conditions have changed, and not only by noise."""

_TRUST = 600
"""Decided steps, times the slowest candidate's prediction over the least one's, after which groups that
left it out are measured in full. If predictions are right, a trial of 52 steps then takes less than a
tenth of the time until then."""


class _Trial:
    """Measures some groups: first each candidate's exchanges, then whole steps.

    Args:
        ways: the groups, in order, and the candidates of each.
    """

    def __init__(self, ways: Mapping[PolicyGroup, list[str]]) -> None:
        self.ways = dict(ways)
        self.groups = list(ways)
        self.tried = {name for names in ways.values() for name in names}
        self.warmup = [(name, False) for name in CANDIDATES if name in self.tried]
        self.measurements = [*self.warmup, *self._timed()]
        self.position = -1
        self.first: dict[tuple[PolicyGroup, str], float] = {}
        self.first_steps: list[float] = []
        self.exchanges: dict[tuple[PolicyGroup, str], list[float]] = {}
        self.laps: dict[str, list[float]] = {}
        self.heats = 0
        self.race: list[tuple[str, bool]] = []
        self.seconds: dict[PolicyGroup, dict[str, float]] = {}
        self.chosen: dict[PolicyGroup, str] = {}

    def _timed(self) -> list[tuple[str, bool]]:
        return [(name, True) for name in CANDIDATES if name in self.tried for _ in range(_REPEATS)]

    def leave_out(self, hopeless: Collection[str]) -> None:
        """Drop candidates after the warm-up."""
        for group, names in self.ways.items():
            self.ways[group] = [name for name in names if name not in hopeless] or names
        self.tried = {name for names in self.ways.values() for name in names}
        self.measurements = [*self.warmup, *self._timed()]

    @property
    def measuring(self) -> bool:
        return 0 <= self.position < len(self.measurements)

    @property
    def turn(self) -> tuple[str, bool]:
        """The candidate or contender of this step, and whether it counts."""
        return (self.measurements + self.race)[self.position]

    @property
    def decided(self) -> bool:
        """Whether all has been measured, unless another heat follows."""
        return self.position == len(self.measurements) + len(self.race)

    def choice(self, group: PolicyGroup) -> str:
        name, _ = self.turn
        return self.way(name, group)

    def way(self, name: str, group: PolicyGroup) -> str:
        """How a group travels in a turn; a group without this candidate takes its first one."""
        if name == CHOSEN:
            return self.chosen[group]
        names = self.ways[group]
        return name if name in names else names[0]

    def begin_race(self) -> bool:
        """Start timing the distinct contenders; returns False if there are fewer than two.

        Exchanges that were timed one after the other overlap in a whole step. So where compression
        won for some groups only, it may still be fastest to compress all.
        """
        racing = {*self.tried, CHOSEN}
        if COMPRESSED not in self.chosen.values():
            racing.discard(COMPRESSED)
        ways: dict[tuple[str, ...], str] = {}
        for name in CONTENDERS:
            if name in racing:
                ways.setdefault(tuple(self.way(name, group) for group in self.groups), name)
        if len(ways) == 1:
            return False
        self.laps = {name: [] for name in ways.values()}
        self._add_heat([*self.laps])
        return True

    def _add_heat(self, names: list[str]) -> None:
        self.heats += 1
        self.race += [(name, turn > 0) for name in 2 * names for turn in range(1 + _LAPS)]

    def go_on(self, seconds: Mapping[str, float]) -> bool:
        """Start another heat if several contenders are close; returns False if the race has ended.

        Args:
            seconds: the contenders' medians so far, the same on every rank.
        """
        least = min(seconds.values())
        close = [name for name in self.laps if seconds[name] < _CLOSE * least]
        if len(close) == 1 or self.heats == _HEATS:
            return False
        self._add_heat(close)
        return True


class _Watch:
    """The times of decided steps, which tell whether conditions have changed."""

    def __init__(self) -> None:
        self.window = _WINDOW
        self.reset()

    def reset(self) -> None:
        """Begin again with the first window."""
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
    """Chooses the fastest of dense, float16 and the configured spec for each group of tensors.

    Args:
        prior: predictions, the same on every rank; see `gradcomp.runtime.policy.predictions`.
    """

    def __init__(self, prior: Predictions | None = None) -> None:
        self._prior = self._predicted = prior or {}
        self._trusted = math.inf
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
        """The groups with exchanges to be timed in this step; see `record`."""
        trial = self._trial
        return tuple(trial.groups) if trial is not None and trial.measuring else ()

    def record(self, group: PolicyGroup, seconds: float) -> None:
        """Record the time, in seconds, of all exchanges of a group in this step."""
        assert self._trial is not None  # ensured by `measured`
        name, counts = self._trial.turn
        if counts:
            self._trial.exchanges.setdefault((group, name), []).append(seconds)
        else:
            self._trial.first[group, name] = seconds

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
        ways = self._undecided(groups)
        if not ways:
            began = None if self._trial is not None or not groups else self._began
            self._trial, self._began = None, now
            if began is None or not (yield from self._doubtful(ended - began)):
                return
            self._forget()
            ways = self._undecided(groups)
        self._watch.reset()
        trial = self._trial
        if trial is None or trial.groups != list(ways):
            trial = self._trial = _Trial(ways)
        else:
            name, counts = trial.turn
            assert self._began is not None  # the trial's last step
            if trial.position < len(trial.warmup):
                trial.first_steps.append(ended - self._began)
            elif counts and not trial.measuring:
                # To the next step: where ranks share processors, what one of them computes after its
                # last average delays the others.
                trial.laps[name].append(now - self._began)
        trial.position += 1
        self._began = now
        if trial.position == len(trial.warmup):
            yield from self._leave_out(trial)
        if trial.position == len(trial.measurements):
            yield from self._choose(trial)
        elif trial.decided:
            yield from self._decide(trial)

    def _undecided(self, groups: set[PolicyGroup]) -> dict[PolicyGroup, list[str]]:
        """The groups to measure and their candidates; others with a single one are decided at once."""
        found = {}
        for group in sorted(groups - self.decisions.keys()):
            predicted = self._predicted.get(group)
            names = group.ways if predicted is None else worth_a_trial(group.ways, predicted)
            if len(names) == 1:
                self._add([Decision(group, names[0], {}, None, predicted)])
            else:
                found[group] = names
        return found

    def _add(self, decisions: Iterable[Decision]) -> None:
        self.decisions.update((decision.group, decision) for decision in decisions)
        self._watch.reset()
        ratios = [
            max(decision.predicted.values()) / min(decision.predicted.values())
            for decision in self.decisions.values()
            if decision.predicted is not None and decision.left_out
        ]
        self._trusted = _TRUST * max(ratios, default=math.inf)

    def _doubtful(self, seconds: float) -> Generator[Request, Any, bool]:
        """Whether all is to be measured again, after one more decided step of some seconds."""
        self._trusted -= 1
        return (yield from self._watch.changed(seconds)) or self._trusted <= 0

    def _forget(self) -> None:
        """Drop all decisions, and predictions with them, which the coming trial replaces."""
        self.decisions.clear()
        self._predicted = {}
        self._trusted = math.inf

    def _leave_out(self, trial: _Trial) -> Generator[Request, Any, None]:
        keys = [(group, name) for group, names in trial.ways.items() for name in names]
        figures = [trial.first.get(key, 0.0) for key in keys]
        *exchanges, step = yield from _mean("first", [*figures, min(trial.first_steps)])
        totals = dict.fromkeys(trial.tried, 0.0)
        for (group, name), seconds in zip(keys, exchanges, strict=True):
            trial.seconds.setdefault(group, {})[name] = seconds
            totals[name] += seconds
        trial.leave_out({name for name in totals if totals[name] > _HOPELESS[name] * step})

    def _choose(self, trial: _Trial) -> Generator[Request, Any, None]:
        figures = [
            min(trial.exchanges.get((group, name), [0.0]))
            for group, names in trial.ways.items()
            for name in names
        ]
        agreed = iter((yield from _mean("exchanges", figures)))
        for group, names in trial.ways.items():
            trial.seconds[group].update((name, next(agreed)) for name in names)
            trial.chosen[group] = _fastest(trial.seconds[group])
        if set(trial.chosen.values()) == {DENSE} or not trial.begin_race():
            self._end(trial, None)

    def _decide(self, trial: _Trial) -> Generator[Request, Any, None]:
        figures = [statistics.median(laps) for laps in trial.laps.values()]
        seconds = dict(zip(trial.laps, (yield from _mean("steps", figures)), strict=True))
        if trial.go_on(seconds):
            return
        racing = dict(seconds)
        # A mixture has requests of more kinds, and their times vary more.
        if seconds.get(CHOSEN, 0.0) >= _GAIN * seconds.get(COMPRESSED, math.inf):
            del racing[CHOSEN]
        best = _fastest(racing)
        trial.chosen = {group: trial.way(best, group) for group in trial.groups}
        self._end(trial, seconds)

    def _end(self, trial: _Trial, step_seconds: Mapping[str, float] | None) -> None:
        self._add(
            Decision(
                group,
                trial.chosen[group],
                trial.seconds[group],
                step_seconds,
                self._predicted.get(group),
            )
            for group in trial.groups
        )
        self._trial = None
        self._began = None

    def restart(self, decisions: Iterable[Decision] = ()) -> None:
        """Replace all decisions; other groups are decided from the next step on.

        Ranks that know different things about the link then begin with the same predictions again.
        """
        self._predicted = self._prior
        self.decisions = {}
        self._trial = None
        self._watch = _Watch()
        self._began = None
        self._add(decisions)

    def measure_anew(self) -> None:
        """Drop all decisions and predictions; all groups are measured from the next step on."""
        self.restart()
        self._forget()


def _fastest(seconds: Mapping[str, float]) -> str:
    """The fastest; without a gain that is worth it dense, if that is among them."""
    name = min(seconds, key=seconds.__getitem__)
    dense = seconds.get(DENSE, math.inf)
    return name if seconds[name] < _GAIN * dense else DENSE


def _mean(label: str, figures: list[float]) -> Generator[Request, Any, list[float]]:
    reply = yield AllReduce(f"policy.{label}", np.array(figures, np.float64))
    return [float(value) for value in reply]
