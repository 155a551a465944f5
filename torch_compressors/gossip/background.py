"""Work during training: one piece at a time, on a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["Background"]


class Background:
    """Runs one piece of work at a time on a thread, and reports its end."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether work was begun that `finish` has not ended yet."""
        return self._thread is not None

    @property
    def done(self) -> bool:
        """Whether the work has ended, before `finish`."""
        return self._thread is not None and not self._thread.is_alive()

    def begin(self, work: Callable[[], None]) -> None:
        """Begin ``work``; earlier work must be finished."""
        assert self._thread is None

        def run() -> None:
            try:
                work()
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=run, name="gossip", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait for the end for at most ``seconds``; returns whether it has come."""
        assert self._thread is not None
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def check(self) -> None:
        """Raise the exception of the work, if it has ended with one."""
        if self.done and self._error is not None:
            raise self._error

    def finish(self) -> None:
        """Wait for the end, and raise the exception of the work, if any."""
        assert self._thread is not None
        self._thread.join()
        self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error
