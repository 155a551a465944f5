"""Statistics of a job as numbers with stable names, written during training."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from gradcomp.codec.spec import parse
from gradcomp.errors import ConfigError
from gradcomp.runtime.measure.stats import Stats
from gradcomp.tools.metric_files import CsvFile, PrometheusFile

__all__ = ["Metrics"]

Write = Callable[..., Any]
"""Takes the values by name, and ``step=``."""


class _Compressed(Protocol):
    @property
    def stats(self) -> Stats: ...


class Metrics:
    """Writes the statistics of a compression in one step of ``every``; docs/metrics.md lists the names.

    Nothing is exchanged between ranks. Rank 0 writes; every rank writes to paths with ``{rank}``.

    Args:
        compression: what has ``stats``: a ``Compression``, the state of a hook, an ``OuterStep``.
        writers: any number of

            - paths that end in ``.csv``, continued if the file exists, or in ``.prom``, a text file for the
              Prometheus node exporter, replaced as a whole;
            - objects with ``add_scalar(name, value, step)``, such as TensorBoard's ``SummaryWriter``;
            - functions that take the values by name and ``step=``, such as ``wandb.log``,
              ``mlflow.log_metrics`` and ``accelerator.log``.
        every: averages between two rows, at least 1.
        errors: also measure norms and errors by spec in these steps, of gradients on the host. This reads
            their gradients and residuals once more, and encodes and decodes at most 2^20 elements per spec.

    Raises:
        ConfigError: a writer is none of these, or ``every`` is below 1.

    Examples:
        >>> import numpy as np
        >>> from gradcomp import Loopback, Metrics
        >>> loop = Loopback("residual|topk(ratio=0.01)", world_size=2)
        >>> rows = []
        >>> metrics = Metrics(loop.ranks[0], lambda values, step: rows.append(values), every=1)
        >>> gradients = np.random.default_rng(0).standard_normal((100, 100))
        >>> averages = loop.step({"w": [gradients, gradients]})
        >>> metrics.step()
        True
        >>> round(rows[0]["gradcomp/ratio"])
        74
    """

    def __init__(
        self, compression: _Compressed, *writers: Any, every: int = 100, errors: bool = True
    ) -> None:
        if every < 1:
            raise ConfigError(f"every is {every}; it must be at least 1")
        self._compression = compression
        self._writers = [_writer(writer) for writer in writers]
        self._every = every
        self._errors = errors
        self._rank = -1
        self._opened: list[Write] = []
        self._written: int | None = None
        """Number of the last row."""
        self._before = _Totals(Stats())
        self._open()

    def step(self, step: int | None = None) -> bool:
        """Write a row if one is due; call it after each step of the optimizer, on every rank.

        The first step is due, and then each ``every``-th average after it.

        Args:
            step: of the row; None for the number of steps of the compression.

        Returns:
            Whether a row was due.
        """
        stats = self._open()
        row = (stats.steps - 1) // self._every
        if not stats.steps or row == self._written:
            return False
        self._written = row
        self._write(stats, step)
        return True

    def close(self, step: int | None = None) -> None:
        """Write the last row, unless it is written; at the end of training."""
        stats = self._open()
        if stats.job_steps > self._before.steps:
            self._write(stats, step)

    def _open(self) -> Stats:
        """Make the writers of this rank, which changes in elastic jobs."""
        stats = self._compression.stats
        if stats.rank != self._rank:
            self._rank = stats.rank
            opened = [make(stats.rank) for make in self._writers]
            self._opened = [write for write in opened if write is not None]
        if self._errors and self._opened:
            stats.samples.every = self._every
        return stats

    def _write(self, stats: Stats, step: int | None) -> None:
        values = values_of(stats, self._before)
        self._before = _Totals(stats)
        for write in self._opened:
            write(values, step=stats.steps * stats.inner_steps if step is None else step)


class _Totals:
    """Counters at the time of a row."""

    def __init__(self, stats: Stats) -> None:
        self.steps = stats.job_steps
        self.sent = stats.total_bytes
        self.dense = stats.dense_bytes
        self.link = stats.link_bytes
        self.dense_link = stats.dense_link_bytes
        self.seconds = stats.seconds or 0.0
        self.compression = stats.compression_seconds
        self.waiting = stats.waiting_seconds
        profile = stats.profile
        self.phases: Mapping[Any, float] = {} if profile is None else profile.total.phases


def values_of(stats: Stats, before: _Totals) -> dict[str, float]:
    """The values of a row; ratios and times are those since ``before``."""
    now = _Totals(stats)
    steps = max(1, now.steps - before.steps) * stats.inner_steps
    values: dict[str, float] = {
        "ranks": stats.ranks,
        "steps": stats.steps * stats.inner_steps,
        "total_bytes": now.sent,
        "link_bytes": now.link,
        "faults": stats.faults.total(),
        "specs_behind": len(stats.behind),
        "bytes_per_step": (now.sent - before.sent) / steps,
        "link_bytes_per_step": (now.link - before.link) / steps,
        "step_seconds": (now.seconds - before.seconds) / steps,
        "compression_seconds": (now.compression - before.compression) / steps,
        "waiting_seconds": (now.waiting - before.waiting) / steps,
    }
    if now.sent > before.sent:
        dense = (now.dense - before.dense) * stats.inner_steps
        values["ratio"] = dense / (now.sent - before.sent)
    if now.link > before.link:
        values["link_ratio"] = (now.dense_link - before.dense_link) / (now.link - before.link)
    for phase, seconds in now.phases.items():
        # A profile that has begun again has less.
        values[f"phase_seconds/{phase}"] = max(0.0, seconds - before.phases.get(phase, 0)) / steps
    for kind, nbytes in stats.sent_bytes.items():
        values[f"sent_bytes/{kind.replace(' ', '_')}"] = nbytes
    for spec, energies in stats.waiting.items():
        values[f"waiting_energies/{_group(spec)}"] = energies
    for spec, sample in stats.samples.found.items():
        group = _group(spec)
        values[f"grad_norm/{group}"] = sample.grad_norm
        values[f"residual_norm/{group}"] = sample.residual_norm
        if sample.error is not None:
            values[f"error/{group}"] = sample.error
    return {f"gradcomp/{name}": value for name, value in values.items()}


def _group(spec: str) -> str:
    """The name of a spec's tensors, of characters that all trackers take."""
    return re.sub(r"[^A-Za-z0-9.-]+", "_", parse(spec).short).strip("_")


def _writer(given: Any) -> Callable[[int], Write | None]:
    """From a rank to the function that writes its values; to None on ranks that do not write."""
    if isinstance(given, str | Path):
        kinds: dict[str, Callable[[Path, int], Write]] = {
            ".csv": lambda path, rank: CsvFile(path),
            ".prom": PrometheusFile,
        }
        kind = kinds.get(Path(given).suffix)
        if kind is not None:
            return partial(_file, kind, str(given))
    elif callable(getattr(given, "add_scalar", None)):
        return lambda rank: partial(_add_scalars, given) if rank == 0 else None
    elif callable(given):
        return lambda rank: given if rank == 0 else None
    raise ConfigError(
        f"{given!r} cannot write metrics; give a path that ends in .csv or .prom, an object with add_scalar() "
        "such as a SummaryWriter, or a function of the values and step=, such as wandb.log"
    )


def _file(kind: Callable[[Path, int], Write], path: str, rank: int) -> Write | None:
    if rank and "{rank}" not in path:
        return None
    return kind(Path(path.replace("{rank}", str(rank))), rank)


def _add_scalars(writer: Any, values: dict[str, float], step: int) -> None:
    for name, value in values.items():
        writer.add_scalar(name, value, step)
