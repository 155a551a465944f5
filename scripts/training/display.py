"""Output of rank 0 while it trains: a progress bar on a terminal, else lines."""

from __future__ import annotations

import os
import time
from types import TracebackType

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from training.metrics import EpochRow, Metric, Score

__all__ = ["Display"]

_LINE_SECONDS = 30


class Display:
    """Shows steps and epochs; without a bar, one line about steps every 30 seconds at most."""

    def __init__(self, *, epochs: int, total_steps: int, metric: Metric, silent: bool) -> None:
        """Show a run of ``total_steps``; ``silent``, for ranks other than 0, shows nothing."""
        self._epochs = epochs
        self._total_steps = total_steps
        self._metric = metric
        self._last_line = time.monotonic()
        self._console = Console(quiet=silent, highlight=False, soft_wrap=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps, loss {task.fields[loss]:.4f}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=silent or not self._console.is_terminal or _under_mpi(),
        )
        self._task = self._progress.add_task("training", total=total_steps, loss=float("nan"))

    def __enter__(self) -> Display:
        """Start the bar."""
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave the bar as it stands."""
        self._progress.stop()

    def say(self, text: str) -> None:
        """Print one line."""
        self._console.print(text, markup=False)
        self._last_line = time.monotonic()

    def step(self, step: int, loss: float) -> None:
        """Show that ``step`` is done."""
        self._progress.update(self._task, completed=step, loss=loss)
        if self._progress.disable and time.monotonic() - self._last_line > _LINE_SECONDS:
            self.say(f"step {step}/{self._total_steps}: loss {loss:.4f}")

    def epoch(self, row: EpochRow, score: Score | None) -> None:
        """Print an epoch's figures."""
        tested = "" if score is None else f", {self._metric.show(score)}"
        ratio = row.compression_ratio
        fewer = "" if ratio is None or ratio == 1 else f" ({ratio:.1f}x fewer)"
        self.say(
            f"epoch {row.epoch}/{self._epochs}: loss {row.train_loss:.4f}{tested}, "
            f"{decimal(round(row.sent_bytes_per_step))} a step{fewer}, "
            f"{1000 * row.median_step_seconds:.1f} ms a step"
        )


def _under_mpi() -> bool:
    # Open MPI gives ranks a terminal, but puts a prefix before all their output.
    return "OMPI_COMM_WORLD_RANK" in os.environ
