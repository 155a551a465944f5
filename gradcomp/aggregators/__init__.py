"""Exchange patterns: how compressed gradients of all ranks become one average."""

from __future__ import annotations

from gradcomp.aggregators.base import Aggregator
from gradcomp.aggregators.dense import Dense
from gradcomp.aggregators.gather import Gather, Member, gather_bucket
from gradcomp.aggregators.reduce import NonlinearReduce, Reduce
from gradcomp.codec import get_codec
from gradcomp.memory import MemoryState, make_memory
from gradcomp.spec import Spec

__all__ = [
    "Aggregator",
    "Dense",
    "Gather",
    "Member",
    "NonlinearReduce",
    "Reduce",
    "exchange_pattern",
    "gather_bucket",
    "make_aggregator",
]


def exchange_pattern(spec: Spec) -> str:
    """``"dense"``, ``"reduce"`` or ``"gather"``: how gradients of this spec travel."""
    codec = get_codec(spec.codec)
    if codec.name == "identity" and not spec.stateful:
        return "dense"
    return "reduce" if "summable" in codec.caps else "gather"


def make_aggregator(spec: Spec, state: MemoryState, seed: int, rank: int) -> Aggregator:
    """The aggregator of a spec; what its memory keeps lives in ``state``."""
    pattern = exchange_pattern(spec)
    if pattern == "dense":
        return Dense()
    codec = get_codec(spec.codec)
    memory = make_memory(spec.memory, state)
    if pattern == "reduce":
        kind = NonlinearReduce if "nonlinear" in codec.caps else Reduce
        return kind(codec, memory, seed)
    return Gather(codec, memory, seed, rank)
