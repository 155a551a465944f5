"""The time of a training step by stage, and the link: the model behind ``profile`` and ``advise``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from gradcomp.errors import GradcompError

__all__ = ["Link", "StepTime"]


@dataclass(frozen=True)
class Link:
    """The link of a rank, or of each node.

    Attributes:
        bits_per_second: in each direction; `math.inf` for a link that takes no time.
        latency: seconds of a message without bytes, one way.
    """

    bits_per_second: float
    latency: float = 0.0

    def __post_init__(self) -> None:
        if not self.bits_per_second > 0:
            raise GradcompError(
                f"the bandwidth is {self.bits_per_second:g} bit/s; it must be above 0: give the "
                "rate of a node's link, such as --bandwidth 1000 for 1 Gbit/s"
            )
        if not 0 <= self.latency < math.inf:
            raise GradcompError(
                f"the latency is {self.latency:g} s; it must be at least 0 and finite: `ping` shows "
                "twice of it"
            )

    def seconds(self, nbytes: float) -> float:
        """Time of bytes in one direction, without latency."""
        return 8 * nbytes / self.bits_per_second


@dataclass(frozen=True)
class StepTime:
    """A step of one rank.

    Attributes:
        seconds: of the step.
        stages: seconds of each stage. Those of a rank's own work are "compensate", "encode",
            "decode" and "copy" (with Python), and "model"; the others are "engine" (its own work
            that the link does not hide), "wire" and "latency".
        link_bytes: bytes that pass the link, in the direction with more;
            `gradcomp.exchange.link` has the formulas.
    """

    seconds: float
    stages: Mapping[str, float]
    link_bytes: float

    @classmethod
    def in_turn(cls, work: Mapping[str, float], link: Link, link_bytes: float) -> StepTime:
        """A step in which nothing overlaps.

        Args:
            work: seconds of the stages of the rank's own work.
        """
        stages = {**work, "wire": link.seconds(link_bytes)}
        return cls(sum(stages.values()), stages, link_bytes)

    @property
    def hidden(self) -> float:
        """Seconds of stages at the same time as others."""
        return sum(self.stages.values()) - self.seconds

    def times_as_fast_as(self, other: StepTime) -> float:
        """The other's time over this one's; steps of no time are equally fast."""
        return other.seconds / self.seconds if self.seconds else 1.0
