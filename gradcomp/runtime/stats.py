"""Statistics of a rank: bytes handed to collectives, decisions of a policy, and a profile."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from gradcomp.runtime.policy import Decision
from gradcomp.runtime.profile import Profile

__all__ = ["Stats"]


@dataclass
class Stats:
    """One rank's contribution to collectives so far.

    Attributes:
        sent_bytes: bytes by kind of request (``"allreduce"``, ``"allgather"``, ...; inside a node
            ``"node allreduce"``, ...): payloads, indices and frame headers included. An engine may
            transfer them several times: a ring all-reduce of P bytes on n ranks sends 2 (n-1)/n P
            per rank.
        dense_bytes: uncompressed size of the same gradients.
        decisions: of the policy ``auto``, one for each group.
        steps: averages so far (the largest number of rounds of any tensor).
        local_steps: inner steps for each average of local steps; 1 if every step has an average.
        profile: the time by phase since `start_profile`; None if it is not measured.
    """

    sent_bytes: Counter[str] = field(default_factory=Counter)
    dense_bytes: int = 0
    steps: int = 0
    local_steps: int = 1
    decisions: tuple[Decision, ...] = ()
    profile: Profile | None = field(default=None, repr=False, compare=False)

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

    def count(self, kind: str, nbytes: int) -> None:
        """Count ``nbytes`` sent by a request of some kind."""
        self.sent_bytes[kind] += nbytes

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
        """Mean bytes sent in a step, of local steps in an inner one; 0 before the first average."""
        steps = self.steps * self.local_steps
        return self.total_bytes / steps if steps else 0.0

    @property
    def ratio(self) -> float:
        """Compression ratio: bytes of uncompressed gradients in every step, inner ones included, over
        bytes sent; 1 before anything was sent.
        """
        gradients = self.dense_bytes * self.local_steps
        return gradients / self.total_bytes if self.total_bytes else 1.0
