"""Runs rounds over an engine's asynchronous collectives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from gradcomp.arrays import FloatArray
from gradcomp.errors import ProtocolError
from gradcomp.rounds import Request, Round

__all__ = ["Driver", "Engine"]


class Engine(Protocol):
    """The collectives of one engine and framework."""

    def start(self, request: Request) -> Any:
        """Start a request without waiting; returns a handle."""
        ...

    def finish(self, handle: Any) -> Any:
        """Wait for a started request; returns its reply."""
        ...


@dataclass
class _Running:
    round: Round
    handle: Any


class Driver:
    """Keeps all rounds of a step in flight and advances them together.

    Every rank must have started the same rounds before the first `finish`. From then on phases
    advance in the order of names, which is the same on every rank; waiting for one tensor's later
    phase before all ranks have started it could deadlock.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._running: dict[str, _Running] = {}
        self._averages: dict[str, FloatArray] = {}

    def start(self, name: str, one: Round) -> None:
        """Start a round: its first request is on its way when this returns."""
        if name in self._running:
            raise ProtocolError(
                f"the gradient of '{name}' came twice in one step: call step() or synchronize() "
                "between backward passes, or set backward_passes_per_step"
            )
        self._running[name] = _Running(one, self._engine.start(next(one)))

    def finish(self, name: str) -> FloatArray:
        """The average of a started round; runs all started rounds to their ends."""
        try:
            while self._running:
                self._advance()
        except BaseException:
            self._running.clear()
            self._averages.clear()
            raise
        return self._averages.pop(name)

    def _advance(self) -> None:
        """One phase of every round."""
        for name in sorted(self._running):
            running = self._running[name]
            reply = self._engine.finish(running.handle)
            try:
                running.handle = self._engine.start(running.round.send(reply))
            except StopIteration as stop:
                del self._running[name]
                self._averages[name] = stop.value
