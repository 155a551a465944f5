"""Helpers of cases with a thread that encodes during the backward pass."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

from gradcomp.exchange.rounds import Request


def on_thread() -> bool:
    """Whether this code runs on the encoder's thread."""
    return threading.current_thread().name.startswith("gradcomp-encoder")


class Started:
    """The requests that an engine starts.

    Attributes:
        requests: their names.
        beside: number of those from the encoder's thread.
    """

    def __init__(self, engine: type[Any]) -> None:
        self._engine = engine
        self.requests: list[str] = []
        self.beside = 0

    def patch(self) -> Any:
        start = self._engine.start

        def noted(engine: Any, request: Request) -> Any:
            self.requests.append(request.name)
            self.beside += on_thread()
            return start(engine, request)

        return mock.patch.object(self._engine, "start", noted)


@contextmanager
def meeting(engine: type[Any], first_term: torch.Tensor) -> Iterator[None]:
    """The thread's first request waits for the last gradient, which waits for that request's start.

    Args:
        first_term: autograd begins with the newest term, so its gradient is the last.
    """
    begun, last = threading.Event(), threading.Event()
    met: list[bool] = []
    start = engine.start

    def waits(one: Any, request: Request) -> Any:
        if on_thread():
            begun.set()
            met.append(last.wait(60))
        return start(one, request)

    def comes_last(gradient: torch.Tensor) -> None:
        met.append(begun.wait(60))
        last.set()

    first_term.register_hook(comes_last)
    with mock.patch.object(engine, "start", waits):
        yield
    assert len(met) >= 3
    assert all(met)
