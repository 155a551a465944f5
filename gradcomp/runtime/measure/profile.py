"""Profile of a rank: the time of each step, by phase and tensor."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from gradcomp.codec.arrays import FloatArray
from gradcomp.exchange.rounds import AllReduce, Ready, Request
from gradcomp.stopwatch import PHASES, Phase, active

__all__ = ["Counters", "Event", "OuterRound", "Profile", "SquaredError", "StepProfile"]

KEPT_STEPS = 1000
KEPT_EVENTS = 200_000
"""Numbers of the newest steps and events that are kept; totals include the older ones."""

_EXACT = ".exact"

_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")


class Event(NamedTuple):
    """A phase, or a request under way; begin and end in seconds of ``time.perf_counter``.

    Attributes:
        tensor: name of the tensor; of a bucket, its first tensor and the number of others
            (``first+3``).
        phase: one of `PHASES`; of a request, its kind.
        request: name of the request, which Horovod's timeline shows, too; "" for a phase.
        nbytes: of a request, the bytes that this rank contributed; 0 for a phase.
    """

    tensor: str
    phase: str
    begin: float
    end: float
    request: str = ""
    nbytes: int = 0


class OuterRound(NamedTuple):
    """Inner steps from the start of one exchange to that of the next.

    Attributes:
        inner_steps: their number.
        seconds: of the round.
        held_seconds: of it, the time in which the inner optimizer waited for outer steps.
    """

    inner_steps: int
    seconds: float
    held_seconds: float

    def plus(self, other: OuterRound) -> OuterRound:
        """Both rounds together."""
        return OuterRound(
            self.inner_steps + other.inner_steps,
            self.seconds + other.seconds,
            self.held_seconds + other.held_seconds,
        )


@dataclass(frozen=True)
class SquaredError:
    """The error of averages.

    Attributes:
        error: sum of (average - exact average)^2 over the elements.
        norm: sum of (exact average)^2 over the elements.
    """

    error: float = 0.0
    norm: float = 0.0

    def __add__(self, other: SquaredError) -> SquaredError:
        """The error of both averages together."""
        return SquaredError(self.error + other.error, self.norm + other.norm)

    @property
    def vnmse(self) -> float | None:
        """The squared error over the squared norm; None if all elements are 0."""
        return self.error / self.norm if self.norm else None


@dataclass
class StepProfile:
    """One step, or several together.

    Attributes:
        step: counted from 0, since profiling began.
        begin: in seconds of ``time.perf_counter``.
        seconds: from the step's beginning to its last average, other code included.
        tensors: seconds by tensor or bucket, then by phase, without overlap.
        sent_bytes: as in `Stats`.
        dense_bytes: as in `Stats`.
        requests: number of requests that this rank took part in.
        errors: of the averages by tensor, if errors are measured.
        round: the inner steps before this exchange; None if every step has one.
    """

    step: int
    begin: float = 0.0
    seconds: float = 0.0
    tensors: dict[str, dict[Phase, float]] = field(default_factory=dict)
    sent_bytes: Counter[str] = field(default_factory=Counter)
    dense_bytes: int = 0
    requests: int = 0
    errors: dict[str, SquaredError] = field(default_factory=dict)
    round: OuterRound | None = None

    @property
    def utilisation(self) -> float | None:
        """Share of the round in which the inner optimizer did not wait; None without outer steps."""
        if self.round is None or not self.round.seconds:
            return None
        return 1 - self.round.held_seconds / self.round.seconds

    @property
    def phases(self) -> dict[Phase, float]:
        """Seconds of each phase."""
        return {
            phase: sum(seconds.get(phase, 0.0) for seconds in self.tensors.values())
            for phase in PHASES
        }

    @property
    def vnmse(self) -> float | None:
        """||average - exact average||^2 / ||exact average||^2; None if not measured."""
        return sum(self.errors.values(), SquaredError()).vnmse

    def add(self, tensor: str, phase: Phase, seconds: float) -> None:
        """Add time to a phase of a tensor or bucket."""
        phases = self.tensors.setdefault(tensor, {})
        phases[phase] = phases.get(phase, 0.0) + seconds

    def add_error(self, tensor: str, error: SquaredError) -> None:
        """Add the error of an average of a tensor."""
        self.errors[tensor] = self.errors.get(tensor, SquaredError()) + error


class Counters(Protocol):
    """Bytes of a rank since its start; `gradcomp.runtime.measure.stats.Stats` has them."""

    sent_bytes: Counter[str]
    dense_bytes: int


class Profile:
    """The steps of one rank since profiling began. `Stats.start_profile` makes it.

    Args:
        stats: the rank's statistics.
        error: also measure errors.
        clock: returns seconds.
    """

    def __init__(
        self,
        stats: Counters,
        *,
        error: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.error = error
        self.events: deque[Event] = deque(maxlen=KEPT_EVENTS)
        self._stats = stats
        self._clock = clock
        self._ended: deque[StepProfile] = deque(maxlen=KEPT_STEPS)
        self._total = StepProfile(0)
        self._now: StepProfile | None = None
        self._last = 0.0
        self._count = 0
        # Phases that have begun: their tensor, and the time of the phases inside.
        self._open: list[tuple[str, list[float]]] = []
        self._under_way: dict[str, tuple[float, Request]] = {}
        self._tensor_of: dict[str, str] = {}
        self._seen = Counter(stats.sent_bytes), stats.dense_bytes

    # Reports by the parts of a rank.

    def begin_step(self) -> None:
        """Begin a step; the previous step ended with its last average."""
        self._under_way.clear()  # of a step that has failed
        self._end_step()
        self._begin()

    def of_round(self, round_: OuterRound) -> None:
        """Note the inner steps before the exchange that has just begun."""
        (self._now or self._begin()).round = round_

    def measure(
        self,
        phase: Phase,
        tensor: str | None,
        function: Callable[_Params, _Result],
        *args: _Params.args,
        **kwargs: _Params.kwargs,
    ) -> _Result:
        """Call a function and add its time to a phase, less the time of phases inside.

        Args:
            tensor: the tensor or bucket; None for that of the enclosing phase.
        """
        label = self._open[-1][0] if tensor is None else tensor
        inside = [0.0]
        step = self._now or self._begin()
        self._open.append((label, inside))
        begin = self._clock()
        try:
            return function(*args, **kwargs)
        finally:
            end = self._clock()
            self._open.pop()
            step.add(label, phase, end - begin - inside[0])
            if self._open:
                self._open[-1][1][0] += end - begin
            self._last = end
            self.events.append(Event(label, phase, begin, end))

    def resume(
        self, tensor: str, round_: Generator[Request | Ready, Any, _Result], reply: Any
    ) -> Request | Ready:
        """Send a reply into a round; returns its next request."""
        began = self._under_way.pop(tensor, None)
        if began is not None:
            at, request = began
            self.events.append(
                Event(tensor, request.kind, at, self._clock(), request.name, request.nbytes)
            )
        before, active.stopwatch = active.stopwatch, self
        try:
            return self.measure("copy", tensor, round_.send, reply)
        finally:
            active.stopwatch = before

    def requested(self, tensor: str, request: Request) -> None:
        """Note a round's request in which this rank takes part; `resume` ends it."""
        self._tensor_of[request.name] = tensor
        self._under_way[tensor] = self._clock(), request
        (self._now or self._begin()).requests += 1

    def exact(
        self, tensor: str, grads: Sequence[FloatArray]
    ) -> Generator[Request, Any, npt.NDArray[np.float64]]:
        """A round that averages gradients exactly, for `compare`."""
        flat = np.concatenate([grad.reshape(-1) for grad in grads])
        return np.array((yield AllReduce(f"{tensor}{_EXACT}", flat)), np.float64)

    def compare(
        self,
        label: str,
        exact: npt.NDArray[np.float64],
        averages: Mapping[str, FloatArray],
    ) -> None:
        """Add the errors of averages to the step.

        Args:
            label: of the tensor or bucket.
            exact: the exact averages, flat, one after the other.
            averages: by tensor, in the same order.
        """
        self.measure("error", label, self._compare, exact, averages)

    def _compare(self, exact: npt.NDArray[np.float64], averages: Mapping[str, FloatArray]) -> None:
        step = self._now or self._begin()
        begin = 0
        for name, average in averages.items():
            expected = exact[begin : begin + average.size]
            begin += average.size
            with np.errstate(over="ignore", invalid="ignore"):
                error = float(np.sum((average.reshape(-1) - expected) ** 2))
                step.add_error(name, SquaredError(error, float(np.sum(expected**2))))

    def of_request(self, request: Request) -> tuple[Phase, str]:
        """The phase that waits for a request, and the request's tensor or bucket."""
        if request.name.endswith(_EXACT):
            return "error", request.name.removesuffix(_EXACT)
        return "wait", self._tensor_of.get(request.name, request.name)

    # Results.

    @property
    def steps(self) -> list[StepProfile]:
        """The newest steps; the last step is included when all its averages are complete."""
        self._settle()
        return list(self._ended)

    @property
    def total(self) -> StepProfile:
        """All steps together, the oldest ones included; its ``step`` is their number."""
        self._settle()
        return self._total

    def _settle(self) -> None:
        if not self._open and not self._under_way:
            self._end_step()

    def _begin(self) -> StepProfile:
        self._now = StepProfile(self._count, self._clock())
        self._last = self._now.begin
        return self._now

    def _end_step(self) -> None:
        step, self._now = self._now, None
        if step is None or not (step.tensors or self._stats.dense_bytes != self._seen[1]):
            return
        step.seconds = self._last - step.begin
        sent, dense = self._stats.sent_bytes, self._stats.dense_bytes
        step.sent_bytes = sent - self._seen[0]
        step.dense_bytes = dense - self._seen[1]
        self._seen = Counter(sent), dense
        self._count += 1
        self._ended.append(step)
        total = self._total
        total.step = self._count
        total.seconds += step.seconds
        total.sent_bytes += step.sent_bytes
        total.dense_bytes += step.dense_bytes
        total.requests += step.requests
        for tensor, error in step.errors.items():
            total.add_error(tensor, error)
        if step.round is not None:
            total.round = step.round.plus(total.round) if total.round else step.round
        for tensor, phases in step.tensors.items():
            for phase, seconds in phases.items():
                total.add(tensor, phase, seconds)
