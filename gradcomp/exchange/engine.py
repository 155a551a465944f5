"""Runs rounds over the asynchronous collectives of an engine."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from gradcomp.codec.arrays import FloatArray
from gradcomp.errors import ProtocolError
from gradcomp.exchange.rounds import Ready, Request, advance

__all__ = ["Driver", "Engine", "JobLinks", "came_twice"]


_Result = TypeVar("_Result")


class Engine(Protocol):
    """The collectives of one engine and framework."""

    def start(self, request: Request) -> Any:
        """Start a request without waiting; returns a handle."""
        ...

    def finish(self, handle: Any) -> Any:
        """Wait for a started request; returns its reply."""
        ...


class JobLinks(NamedTuple):
    """A rank of a job that measures its links; adapters make it for the group ``gradcomp.links``.

    Attributes:
        name: "horovod" or "torch".
        engine: its collectives; all-reduces as the engine's own optimizer or hook makes them.
        rank, size: of the job.
        ranks_per_node: of this rank's node.
        close: leaves the job.
    """

    name: str
    engine: Engine
    rank: int
    size: int
    ranks_per_node: int
    close: Callable[[], None]


@dataclass
class _Running:
    round: Generator[Request | Ready, Any, Any]
    members: Sequence[str]
    place: int
    handle: Any = None
    result: Any = None  # once the round has ended


class Driver:
    """Keeps all rounds of a step in flight and advances them together.

    Every rank must have started the same rounds before the first `finish`. From then on phases
    advance in the order of places and names, which is the same on every rank. Waiting for a later
    phase of one tensor before all ranks have started it could deadlock.

    Args:
        engine: its collectives. It and rounds that start ``beside`` are called from two threads.
        one_behind: a round that a device works for releases those before it, for adapters that do not
            know when all gradients have come. As many requests are then under way on every rank.
    """

    def __init__(self, engine: Engine, *, one_behind: bool = False) -> None:
        self._engine = engine
        self._one_behind = one_behind
        self._running: dict[str, _Running] = {}
        self._launched: list[tuple[_Running, Ready]] = []
        self._thread = ThreadPoolExecutor(1, "gradcomp-encoder")  # it starts at its first use
        self._beside: list[Future[None]] = []
        self._averages: dict[str, FloatArray] = {}

    def start(
        self,
        name: str,
        round_: Generator[Request | Ready, Any, Any],
        members: Sequence[str] = (),
        place: int = 0,
        beside: bool = False,
    ) -> None:
        """Start a round, and its first request.

        A round that a device works for only launches this work; see `release`.

        Args:
            name: of the round; unique in the step, and the same on every rank.
            round_: the round; it was not resumed before.
            members: names of the tensors; the round returns the list of their averages, in this order.
                Empty: the round returns one average, of the tensor ``name``.
            place: rounds of lower places advance first; the same on every rank. Best is the order
                in which rounds start: then replies are read while later ones are under way.
            beside: a thread of the driver starts the round, one after the other, and waits for the
                device. Its errors are raised by `release`, which the caller must call before it
                makes requests of the engine by itself.

        Raises:
            ProtocolError: a round of this name is running.
        """
        if name in self._running:
            raise came_twice(name)
        running = _Running(round_, members, place)
        if beside != bool(self._beside):
            self.release()  # those that began otherwise come first
        if beside:
            self._running[name] = running
            self._submit(partial(self._resume, running, None))
            return
        try:
            request = next(round_)
        except StopIteration as stop:
            running.result = stop.value
        else:
            if isinstance(request, Ready):
                if self._one_behind:
                    self.release()
                self._launched.append((running, request))
            else:
                self.release()
                running.handle = self._engine.start(request)
        self._running[name] = running

    def _resume(self, running: _Running, reply: Any) -> None:
        """Run a round up to its next request, which is started, or to its end."""
        try:
            running.handle = self._engine.start(advance(running.round, reply))
        except StopIteration as stop:
            running.result = stop.value

    def _submit(self, function: Callable[[], None]) -> None:
        """Let the thread call a function, unless the one before it has failed."""
        before = self._beside[-1] if self._beside else None

        def call() -> None:
            if before is not None:
                before.result()
            function()

        self._beside.append(self._thread.submit(call))

    def call_beside(self, function: Callable[[], None]) -> None:
        """Call a function after all rounds that the driver's thread begins, on that thread; without any, now."""
        if self._beside:
            self._submit(function)
        else:
            function()

    def release(self) -> None:
        """Start the first requests of launched rounds, in the order of their starts.

        Waits for the device and for the driver's thread. An adapter calls it when the device has had
        time; every other request calls it first, so that the order of requests is the order of starts
        on every rank.
        """
        if not self._beside and not self._launched:
            return
        beside, self._beside = self._beside, []
        try:
            for future in beside:
                future.result()
        except BaseException:
            self._forget()
            raise
        launched, self._launched = self._launched, []
        for running, ready in launched:
            self._resume(running, ready.wait())

    def post(self, request: Request) -> Any:
        """Start a request outside of all rounds; returns a handle for `reply`."""
        self.release()
        return self._engine.start(request)

    def reply(self, handle: Any) -> Any:
        """Wait for the reply to a request of `post`."""
        return self._engine.finish(handle)

    def run(self, round_: Generator[Request | Ready, Any, _Result]) -> _Result:
        """Run a round to its end at once, and return its result. Every rank must call it."""
        self.release()
        reply = None
        try:
            while True:
                reply = self._engine.finish(self._engine.start(advance(round_, reply)))
        except StopIteration as stop:
            result: _Result = stop.value
            return result

    def finish(self, name: str) -> FloatArray:
        """Run all started rounds to their ends; returns the average of a tensor, flat float32."""
        return self.averages([name])[0]

    def averages(self, names: Iterable[str]) -> list[FloatArray]:
        """As `finish`, of several tensors."""
        self.finish_all()
        return [self._averages.pop(name) for name in names]

    def finish_all(self) -> None:
        """Run all started rounds to their ends."""
        try:
            self.release()
            while self._running:
                self._advance()
        except BaseException:
            self._forget()
            raise

    def _forget(self) -> None:
        """Forget all rounds of a step that has failed."""
        self._launched.clear()
        self._running.clear()
        self._averages.clear()

    def _advance(self) -> None:
        """Advance every round by one phase."""
        for _, name in sorted((running.place, name) for name, running in self._running.items()):
            running = self._running[name]
            if running.result is None:
                self._resume(running, self._engine.finish(running.handle))
            if running.result is None:
                continue
            del self._running[name]
            if running.members:
                self._averages.update(zip(running.members, running.result, strict=True))
            else:
                self._averages[name] = running.result


def came_twice(name: str) -> ProtocolError:
    """The error for a second gradient of one tensor in one step."""
    return ProtocolError(
        f"the gradient of '{name}' came twice in one step: call step() or synchronize() between "
        "backward passes, or set backward_passes_per_step"
    )
