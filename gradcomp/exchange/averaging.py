"""Averages of gathered frames other than the mean over all ranks."""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["MEAN", "Average", "Averaging", "Clip"]

Average = Literal["ranks", "senders"]
"""Over all ranks, or over the ranks that sent an element."""

Clip = Literal["none", "median_norm"]


class Averaging(NamedTuple):
    """The rule by which the ranks' decoded tensors become one.

    Attributes:
        average: "ranks": their sum over the number of ranks. "senders": each element's sum over the
            number of ranks that sent it, 0 if none did; for sparse codecs.
        clip: "median_norm": a tensor with an L2 norm above the median of the ranks' norms is scaled
            down to it. Of an even number of norms the lower one of the middle two counts.

    Both after Sarfi et al.: "Communication Efficient LLM Pre-training with SparseLoCo", arXiv
    2508.15706, and its code in one-covenant/templar. Deviation: the reference adds 1e-8 to norms.
    """

    average: Average = "ranks"
    clip: Clip = "none"

    def __str__(self) -> str:
        return ", ".join(f"{name}: {value}" for name, value in self.changes.items())

    @property
    def changes(self) -> dict[str, str]:
        """The values that are not the defaults, by name."""
        defaults = MEAN._asdict()
        return {name: value for name, value in self._asdict().items() if value != defaults[name]}


MEAN = Averaging()
"""The mean over all ranks."""
