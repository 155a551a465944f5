"""Exchange patterns: how compressed gradients of all ranks become one average."""

from __future__ import annotations

from typing import Protocol

from gradcomp.aggregators.atomo import Atomo
from gradcomp.aggregators.base import Aggregator, Context, Member
from gradcomp.aggregators.chunks import ChunkAllReduce
from gradcomp.aggregators.dense import Dense
from gradcomp.aggregators.gather import Gather
from gradcomp.aggregators.momentum import DenseMomentum
from gradcomp.aggregators.powersgd import PowerSGD
from gradcomp.aggregators.reduce import NonlinearReduce, Reduce
from gradcomp.codec import get_codec
from gradcomp.memory import MomentumCorrection, make_memory
from gradcomp.spec import Spec

__all__ = [
    "ALGORITHMS",
    "Aggregator",
    "Algorithm",
    "Context",
    "Dense",
    "Gather",
    "Member",
    "NonlinearReduce",
    "Reduce",
    "exchange_pattern",
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
}
"""By the name of the stage."""


def exchange_pattern(spec: Spec) -> str:
    """How gradients of this spec travel: "dense", "reduce", "gather" or "algorithm"."""
    if spec.algorithm is not None:
        return "algorithm"
    codec = get_codec(spec.at(0, 0).codec)
    if codec.name == "identity" and not spec.stateful:
        return "dense"
    return "reduce" if "summable" in codec.caps else "gather"


def make_aggregator(spec: Spec, context: Context) -> Aggregator:
    """The aggregator of a spec without schedules; what it keeps lives in the context's state."""
    if spec.algorithm is not None:
        return ALGORITHMS[spec.algorithm.name](spec, context)
    pattern = exchange_pattern(spec)
    if pattern == "dense":
        return Dense()
    codec = get_codec(spec.codec)
    memory = make_memory(spec.memory, context.state, context.world_size)
    if pattern == "reduce":
        if isinstance(memory, MomentumCorrection):
            return DenseMomentum(memory)
        kind = NonlinearReduce if "nonlinear" in codec.caps else Reduce
        return kind(codec, memory, context.seed)
    return Gather(codec, memory, context.seed, context.rank)
