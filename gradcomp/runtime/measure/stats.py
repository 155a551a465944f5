"""Statistics of a rank: bytes handed to collectives, decisions of a policy, and a profile."""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from gradcomp.exchange.link import dense_link_bytes, link_bytes
from gradcomp.exchange.samples import Samples
from gradcomp.exchange.waiting import Waiting
from gradcomp.runtime.measure.end_report import log_at_end
from gradcomp.runtime.measure.profile import Profile
from gradcomp.runtime.policy.decision import Decision

__all__ = ["RECENT", "Stats"]

RECENT = 20
"""Number of steps of `Stats.recent_ratio`."""


def _compared(ratio: float) -> str:
    """The bytes of uncompressed gradients over those that were sent, in words."""
    if ratio == 1:
        return "as many as"
    if 1 / 1.05 < ratio < 1.05:
        return "about as many as"
    return f"{ratio:.1f} times fewer than" if ratio > 1 else f"{1 / ratio:.1f} times as many as"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


@dataclass
class Stats:
    """One rank's contribution to collectives so far.

    Attributes:
        sent_bytes: bytes by kind of request (``"allreduce"``, ``"allgather"``, ...; inside a node
            ``"node allreduce"``, ...): payloads, indices and frame headers included.
        dense_bytes: uncompressed size of the same gradients.
        ranks: number of ranks that average together.
        scatters: whether each rank gets the sums of its rows alone, as in a reduce-scatter.
        link_bytes: bytes that passed this rank's link; `gradcomp.exchange.link` has the formulas.
        dense_link_bytes: bytes that would have passed it without compression: of ring all-reduces (with
            `scatters` reduce-scatters) of uncompressed gradients in every step, inner ones included.
        decisions: of the policy ``auto``, one for each group.
        residuals: measures `waiting`.
        samples: measures norms and errors, for `gradcomp.Metrics`.
        steps: averages so far (the largest number of rounds of any tensor), with `loaded_steps`.
        loaded_steps: averages before the state that this job has loaded. The bytes are without those.
        inner_steps: inner steps before each outer step; 1 if every step has an average.
        rank: of this process.
        engine: that carries the requests, as messages name it; "" if it has no name.
        compression_seconds: time in rounds: encoding, decoding, memories. In several threads at once it
            counts for each. Without the work of a GPU, and with BytePS 0.
        waiting_seconds: time in waiting for requests; in PyTorch on Horovod also for gradients that Horovod
            averages itself, and with BytePS 0.
        faults: errors in exchanges, by their names. Most end the job; elastic ones go on.
        profile: the time by phase since `start_profile`; None if it is not measured.
    """

    sent_bytes: Counter[str] = field(default_factory=Counter)
    dense_bytes: int = 0
    steps: int = 0
    loaded_steps: int = 0
    inner_steps: int = 1
    ranks: int = 1
    scatters: bool = False
    link_bytes: float = 0.0
    dense_link_bytes: float = 0.0
    decisions: tuple[Decision, ...] = ()
    residuals: Waiting = field(default_factory=Waiting, repr=False, compare=False)
    samples: Samples = field(default_factory=Samples, repr=False, compare=False)
    rank: int = 0
    engine: str = ""
    compression_seconds: float = 0.0
    waiting_seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    profile: Profile | None = field(default=None, repr=False, compare=False)
    _ends: deque[tuple[int, int]] = field(
        default_factory=lambda: deque(maxlen=RECENT), init=False, repr=False, compare=False
    )
    _times: tuple[float, float] | None = field(default=None, init=False, repr=False, compare=False)
    _lock: Lock = field(default_factory=Lock, init=False, repr=False, compare=False)

    def log_at_end(self, owner: object) -> None:
        """Log the text of these statistics once: when ``owner`` is freed, or when the process ends."""
        log_at_end(owner, lambda: self)

    def begin_step(self) -> None:
        """Begin a step: `recent_ratio` is of the steps before it."""
        if self.profile is not None:
            self.profile.begin_step()
        self._ends.append((self.dense_bytes, self.total_bytes))
        self.residuals.end_step()

    @property
    def waiting(self) -> dict[str, float]:
        """By spec, how much its residuals hold: their energy (sum of squares) in those of the gradients of
        the same step. Measured every 100 steps; residuals on other devices than the host are left out.
        """
        return dict(self.residuals.found)

    @property
    def behind(self) -> list[str]:
        """The specs that `waiting` has been too much of for several measurements, so that what waits comes too late."""
        return self.residuals.behind

    def start_profile(self, *, error: bool = False) -> Profile:
        """Profile all steps from the next one on. To be called between two steps.

        Args:
            error: also average all compressed gradients exactly, and compare. This adds the time of
                an uncompressed exchange to each step. Every rank must set it before the same step.

        Returns:
            The new `profile`.
        """
        self.profile = Profile(self, error=error)
        return self.profile

    def stop_profile(self) -> None:
        """Stop profiling. To be called between two steps; if errors were measured, on every rank."""
        self.profile = None

    @property
    def compares(self) -> bool:
        """Whether averages are compared with exact ones, so that rounds have one more phase."""
        return self.profile is not None and self.profile.error

    def count(self, kind: str, nbytes: int, ranks: int | None = None) -> None:
        """Count ``nbytes`` sent by a request of some kind.

        Args:
            ranks: number of ranks that take part; None for all.
        """
        link = link_bytes(kind, nbytes, self.ranks if ranks is None else ranks)
        with self._lock:  # a thread that encodes counts, too
            self.sent_bytes[kind] += nbytes
            self.link_bytes += link

    def count_average(self, earlier: int) -> None:
        """Count an average of a tensor after ``earlier`` ones, which only a loaded state makes more than `steps`."""
        if earlier >= self.steps:
            self.loaded_steps += earlier - self.steps
            self.steps = earlier + 1

    def count_gradients(self, nbytes: int) -> None:
        """Count gradients of ``nbytes`` before compression."""
        link = dense_link_bytes(nbytes * self.inner_steps, self.ranks, self.scatters)
        now = time.monotonic()
        with self._lock:
            self._times = (self._times[0] if self._times else now, now)
            self.dense_bytes += nbytes
            self.dense_link_bytes += link

    def count_dense(self, nbytes: int) -> None:
        """Count gradients of ``nbytes`` that are all-reduced as they are."""
        self.count_gradients(nbytes)
        self.count("allreduce", nbytes)

    def spend(self, *, compression: float = 0.0, waiting: float = 0.0) -> None:
        """Add seconds to `compression_seconds` and `waiting_seconds`."""
        with self._lock:
            self.compression_seconds += compression
            self.waiting_seconds += waiting

    def count_fault(self, error: Exception) -> None:
        """Count an error in an exchange."""
        with self._lock:
            self.faults[type(error).__name__] += 1

    @property
    def seconds(self) -> float | None:
        """From the first gradient to the last one; None without any, and 0 with BytePS."""
        return self._times[1] - self._times[0] if self._times else None

    @property
    def job_steps(self) -> int:
        """Averages that this job has made: `steps` without `loaded_steps`."""
        return self.steps - self.loaded_steps

    @property
    def total_bytes(self) -> int:
        """Bytes sent, all kinds together, without traffic of ``two_level`` inside a node."""
        return self.sent_bytes.total() - self.node_bytes

    @property
    def node_bytes(self) -> int:
        """Bytes that ``two_level`` sent inside a node."""
        return sum(n for kind, n in self.sent_bytes.items() if kind.startswith("node "))

    @property
    def bytes_per_step(self) -> float:
        """Mean bytes sent in a step, with outer steps in an inner step; 0 before the first average."""
        steps = self.job_steps * self.inner_steps
        return self.total_bytes / steps if steps else 0.0

    @property
    def ratio(self) -> float:
        """Compression ratio: bytes of uncompressed gradients in every step, inner ones included, over
        bytes sent; 1 before anything was sent. It does not depend on the number of ranks, unlike
        `link_ratio`.
        """
        gradients = self.dense_bytes * self.inner_steps
        return gradients / self.total_bytes if self.total_bytes else 1.0

    @property
    def recent_ratio(self) -> float:
        """`ratio` of the last 20 steps, in which a warm-up counts no longer; see `RECENT`.

        `ratio` itself in a job's first step, and with adapters that tell no steps.
        """
        if len(self._ends) < 2:
            return self.ratio
        (dense, sent), (dense_now, sent_now) = self._ends[0], (self.dense_bytes, self.total_bytes)
        if sent_now == sent:
            return self.ratio
        return (dense_now - dense) * self.inner_steps / (sent_now - sent)

    def as_dict(self) -> dict[str, Any]:
        """The numbers of the job so far, by names that stay: for logs and for files.

        ``steps``, ``ranks``; ``sent_bytes`` (by kind of request), ``total_bytes``, ``bytes_per_step`` and
        ``dense_bytes``; ``ratio``, ``recent_ratio``; ``link_bytes``, ``dense_link_bytes``, ``link_ratio``;
        ``waiting`` (by spec); ``seconds``, ``compression_seconds``, ``waiting_seconds``; ``faults`` (by
        error).
        """
        names = (
            "steps",
            "ranks",
            "total_bytes",
            "bytes_per_step",
            "dense_bytes",
            "ratio",
            "recent_ratio",
            "link_bytes",
            "dense_link_bytes",
            "link_ratio",
            "waiting",
            "seconds",
            "compression_seconds",
            "waiting_seconds",
        )
        by_name = {"sent_bytes": dict(self.sent_bytes), "faults": dict(self.faults)}
        return by_name | {name: getattr(self, name) for name in names}

    def __str__(self) -> str:
        steps = self.job_steps * self.inner_steps
        passed = self.link_bytes / steps if steps else 0.0
        return (
            f"{_counted(steps, 'step')} on {_counted(self.ranks, 'rank')}: this rank sent "
            f"{self.bytes_per_step:,.0f} bytes in a step, {_compared(self.ratio)} uncompressed gradients; "
            f"{passed:,.0f} passed its link, {_compared(self.link_ratio)} "
            f"{'reduce-scatters' if self.scatters else 'ring all-reduces'} of them"
        )

    @property
    def link_ratio(self) -> float:
        """`dense_link_bytes` over `link_bytes`: how many times fewer bytes pass the link; below 1, more
        do. 1 before anything was sent, and on one rank.
        """
        return self.dense_link_bytes / self.link_bytes if self.link_bytes else 1.0
