"""The choices of the policy ``auto``: groups of tensors, their candidates, and decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from gradcomp.codec.spec import Spec, parse
from gradcomp.exchange.memory import EF21, MOMENTUM_CORRECTION

__all__ = [
    "CANDIDATES",
    "CHOSEN",
    "COMPRESSED",
    "CONTENDERS",
    "DENSE",
    "HALF",
    "Decision",
    "PolicyGroup",
    "alternatives",
]

COMPRESSED, DENSE, HALF = "compressed", "dense", "fp16"

CHOSEN = "as chosen"
"""In the race of whole steps: each group travels as its exchanges were fastest."""

CANDIDATES = (DENSE, HALF, COMPRESSED)
"""Among equally fast candidates the first wins."""

CONTENDERS = (DENSE, HALF, CHOSEN, COMPRESSED)
"""Of the race of whole steps; the first of equals wins there, too."""


class PolicyGroup(NamedTuple):
    """Tensors that share a decision.

    Attributes:
        spec: canonical spec; if all its schedules have ended, their last values.
        exchange: the exchange in the configuration.
        size: size class: half the number of binary digits of the number of elements, rounded down.
            A class spans a factor of 4.
    """

    spec: str
    exchange: str
    size: int

    @classmethod
    def of(cls, spec: Spec, exchange: str, numel: int) -> PolicyGroup:
        """The group of a tensor."""
        return cls(spec.canonical, exchange, numel.bit_length() // 2)

    @property
    def ways(self) -> list[str]:
        """The candidates of the group, in the order of `CANDIDATES`."""
        others = alternatives(parse(self.spec))
        return [name for name in CANDIDATES if name in {*others, COMPRESSED}]

    @property
    def numels(self) -> range:
        """The numbers of elements of its tensors."""
        return range(*(max(1, 2 ** (2 * size - 1)) for size in (self.size, self.size + 1)))

    def __str__(self) -> str:
        low, high = self.numels[0], self.numels[-1]
        return f"'{parse(self.spec).short}' on tensors of {low} to {high} elements"


@dataclass(frozen=True)
class Decision:
    """The policy's choice for a group, and the figures behind it.

    Attributes:
        choice: ``"compressed"``, ``"dense"`` or ``"fp16"``.
        seconds: time of all exchanges of the group in a step, by choice. Exchanges run one after
            the other, encoding and decoding included. The minimum over some steps, then the mean
            over the ranks.
        step_seconds: time of a whole step, from its first gradient to that of the next step, by
            contender: with all groups of this trial dense, all in float16, as chosen by their
            exchanges, and all compressed. The median over some steps, then the mean over the ranks.
            None if there was no race, as where dense exchanges were fastest for all groups.
        predicted: by choice, from ``compress.prior``; None if it was not used.
    """

    group: PolicyGroup
    choice: str
    seconds: Mapping[str, float]
    step_seconds: Mapping[str, float] | None
    predicted: Mapping[str, float] | None = None

    @property
    def left_out(self) -> list[str]:
        """The choices that were not tried, as their predictions were too long."""
        tried = {*self.seconds, self.choice}
        return [name for name in self.predicted or () if name not in tried]

    def __str__(self) -> str:
        parts = []
        if self.predicted is not None:
            parts.append(f"predicted: {_times(self.predicted)}")
        if self.left_out:
            parts.append(f"left out: {', '.join(self.left_out)}")
        if self.seconds:
            parts.append(f"exchanges of a step: {_times(self.seconds)}")
        if self.step_seconds is not None:
            parts.append(f"a whole step: {_times(self.step_seconds)}")
        return f"{self.group}: {self.choice} ({'; '.join(parts)})"

    def to_state(self) -> dict[str, Any]:
        """Plain data for a checkpoint."""
        return {
            **self.group._asdict(),
            "choice": self.choice,
            "seconds": dict(self.seconds),
            "step_seconds": _copy(self.step_seconds),
            "predicted": _copy(self.predicted),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Decision:
        """The inverse of `to_state`; earlier releases had no predictions."""
        return cls(
            PolicyGroup(*(state[key] for key in PolicyGroup._fields)),
            state["choice"],
            dict(state["seconds"]),
            _copy(state["step_seconds"]),
            _copy(state.get("predicted")),
        )


def _copy(seconds: Mapping[str, float] | None) -> dict[str, float] | None:
    return None if seconds is None else dict(seconds)


def _times(seconds: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {1e3 * value:.3f} ms" for name, value in seconds.items())


@lru_cache(maxsize=1024)
def alternatives(spec: Spec) -> dict[str, Spec]:
    """The replacements of a spec, by choice.

    With momentum correction, or EF21-SGDM, the replacement keeps the momentum, and there is no float16.
    """
    memory = spec.memory
    if memory is not None and (
        memory.name == MOMENTUM_CORRECTION or (memory.name == EF21 and memory.params["momentum"])
    ):
        return {DENSE: parse(f"{memory.text}|identity")}
    others = {DENSE: parse("identity"), HALF: parse("fp16")}
    return {name: other for name, other in others.items() if other.canonical != spec.canonical}
