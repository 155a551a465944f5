"""Work beside training: one piece at a time, on a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["Background"]


class Background:
    """Runs one piece of work at a time on a thread, and says whether it has ended."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether something was begun whose end nobody has taken note of."""
        return self._thread is not None

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self._thread is not None and not self._thread.is_alive()

    def begin(self, work: Callable[[], None]) -> None:
        """Begin; what was begun before must have been finished."""
        assert self._thread is None

        def run() -> None:
            try:
                work()
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=run, name="gossip", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait for the end, but not longer; whether it has come."""
        assert self._thread is not None
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def check(self) -> None:
        """Raise what the work has raised, if it has ended so."""
        if self.done and self._error is not None:
            raise self._error

    def finish(self) -> None:
        """Wait for the end, and raise what the work raised."""
        assert self._thread is not None
        self._thread.join()
        self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error
