"""Exchange patterns: how compressed gradients of all ranks become one average."""

from __future__ import annotations

from typing import Protocol

from gradcomp.aggregators.atomo import Atomo
from gradcomp.aggregators.base import Aggregator, BucketAggregator, Context, Member
from gradcomp.aggregators.chunk_allreduce import ChunkAllReduce
from gradcomp.aggregators.dense import Dense
from gradcomp.aggregators.gather import Gather
from gradcomp.aggregators.majority_vote import MajorityVote
from gradcomp.aggregators.momentum import DenseMomentum
from gradcomp.aggregators.powersgd import PowerSGD
from gradcomp.aggregators.reduce import NonlinearReduce, Reduce
from gradcomp.aggregators.sra import Sra
from gradcomp.codec import get_codec
from gradcomp.memory import MOMENTUM_CORRECTION, MomentumCorrection, make_memory
from gradcomp.spec import Spec

__all__ = [
    "ALGORITHMS",
    "EXCHANGES",
    "Aggregator",
    "Algorithm",
    "BucketAggregator",
    "Context",
    "Dense",
    "DenseMomentum",
    "Gather",
    "Member",
    "NonlinearReduce",
    "Reduce",
    "Sra",
    "exchange_pattern",
    "exchange_refusal",
    "make_aggregator",
]


class Algorithm(Protocol):
    """The class of an aggregator that a stage of kind "algorithm" names."""

    exchange: str
    """What ranks exchange, in words."""

    def __call__(self, spec: Spec, context: Context) -> Aggregator:
        """The aggregator of a spec with this algorithm."""
        ...


ALGORITHMS: dict[str, Algorithm] = {
    "powersgd": PowerSGD,
    "atomo": Atomo,
    "chunk_allreduce": ChunkAllReduce,
    "signsgd_mv": MajorityVote,
}
"""By the name of the stage."""


EXCHANGES = ("auto", "reduce", "gather", "sra")
"""What a configuration may ask for; "auto" is "reduce" for summable codecs, "gather" for others."""


def exchange_pattern(spec: Spec, exchange: str = "auto") -> str:
    """How gradients of this spec travel: "dense", "algorithm", "reduce", "gather" or "sra".

    Args:
        exchange: one of `EXCHANGES`, which says nothing about specs that do not compress.
    """
    if spec.algorithm is not None:
        return "algorithm"
    codec = get_codec(spec.at(0, 0).codec)
    if codec.name == "identity":
        if not spec.stateful:
            return "dense"
        if spec.memory is not None and spec.memory.name == MOMENTUM_CORRECTION:
            return "reduce"  # of gradients, by `DenseMomentum`
    if exchange != "auto":
        return exchange
    return "reduce" if "summable" in codec.caps else "gather"


def exchange_refusal(spec: Spec, exchange: str) -> str | None:
    """Why gradients of this spec cannot travel so, and what to do; None where they can."""
    pattern = exchange_pattern(spec, exchange)
    if pattern == "algorithm":
        if exchange == "auto":
            return None
        return f"'{spec}' has exchanges of its own; give its rule `exchange: auto`"
    if pattern not in ("reduce", "sra"):
        return None
    codec = get_codec(spec.at(0, 0).codec)
    if pattern == "reduce" and "summable" not in codec.caps:
        return f"payloads of '{codec.name}' cannot be added; take gather or sra"
    if pattern == "sra" and "shares" in codec.caps:
        return (
            f"'{codec.name}' chooses among all elements that travel together, and sra cuts them "
            "into chunks; take gather, or topk"
        )
    return None


def make_aggregator(spec: Spec, context: Context, exchange: str = "auto") -> Aggregator:
    """The aggregator of a spec without schedules; what it keeps lives in the context's state."""
    if spec.algorithm is not None:
        return ALGORITHMS[spec.algorithm.name](spec, context)
    pattern = exchange_pattern(spec, exchange)
    if pattern == "dense":
        return Dense()
    codec = get_codec(spec.codec)
    memory = make_memory(spec.memory, context.state, context.world_size)
    if pattern == "reduce":
        if isinstance(memory, MomentumCorrection):
            return DenseMomentum(memory)
        kind = NonlinearReduce if "nonlinear" in codec.caps else Reduce
        return kind(codec, memory, context.seed)
    if pattern == "sra":
        return Sra(codec, memory, context)
    return Gather(codec, memory, context.seed, context.rank)
