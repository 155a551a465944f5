"""Digests of a rank's parameters, by which ranks find out that their models have drifted apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from gradcomp.runtime.agree.comparison import digest_parameters
from gradcomp.runtime.agree.step_check import ParametersAt

__all__ = ["Parameters", "ReplicaDigests"]

Parameters = Callable[[], Iterable[tuple[str, Any]]]
"""Returns names and C-contiguous buffers of all parameters, in the order of the model."""


class ReplicaDigests:
    """Takes digests in every ``every``-th step, on its own thread, for the next step's text.

    Args:
        every: number of steps from one comparison to the next; 0 for none.
        parameters: called on the thread, while parameters do not change: from a step's first
            gradient until its first average is used.
    """

    def __init__(self, every: int, parameters: Parameters | None) -> None:
        self._every = every if parameters is not None else 0
        self._parameters = parameters
        self._thread = ThreadPoolExecutor(1, "gradcomp-replicas") if self._every else None
        self._pending: Future[ParametersAt] | None = None

    def begin(self, step: int) -> None:
        """Begin taking digests, if it is the step's turn."""
        if self._thread is not None and step % self._every == 0:
            self._pending = self._thread.submit(self._take, step)

    def settle(self) -> None:
        """Wait until parameters may change."""
        if self._pending is not None:
            self._pending.result()

    def take(self) -> ParametersAt | None:
        """The digests of the step before, once; None if it was not its turn."""
        pending, self._pending = self._pending, None
        return None if pending is None else pending.result()

    def _take(self, step: int) -> ParametersAt:
        assert self._parameters is not None  # ensured by the constructor
        return ParametersAt(step, digest_parameters(self._parameters()))
