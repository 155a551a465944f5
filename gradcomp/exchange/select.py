"""Selection of an aggregator: the exchange pattern of a spec, or its algorithm."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import pairwise

from gradcomp.codec.codec import Codec, get_codec
from gradcomp.codec.devices import Device
from gradcomp.codec.spec import Spec, parse
from gradcomp.exchange.algorithms.atomo import Atomo
from gradcomp.exchange.algorithms.base import Algorithm
from gradcomp.exchange.algorithms.chunk_allreduce import ChunkAllReduce
from gradcomp.exchange.algorithms.demo import DeMo
from gradcomp.exchange.algorithms.dion import Dion
from gradcomp.exchange.algorithms.dion2 import Dion2
from gradcomp.exchange.algorithms.optimizer_step import OptimizerStep
from gradcomp.exchange.algorithms.powersgd import PowerSGD
from gradcomp.exchange.algorithms.signsgd_mv import MajorityVote
from gradcomp.exchange.automatic import Choice, automatic_choice
from gradcomp.exchange.averaging import MEAN, Averaging
from gradcomp.exchange.estimates import Estimates
from gradcomp.exchange.make_memory import make_memory
from gradcomp.exchange.memory import EF21, MOMENTUM_CORRECTION, Arrays, Residual
from gradcomp.exchange.momentum import MomentumCorrection, joint_limit
from gradcomp.exchange.patterns.base import Aggregator, BucketAggregator, Context
from gradcomp.exchange.patterns.dense import Dense
from gradcomp.exchange.patterns.dense_momentum import DenseMomentum
from gradcomp.exchange.patterns.differences import (
    AverageMomentum,
    Differences,
    DifferencesBucket,
)
from gradcomp.exchange.patterns.gather import Gather
from gradcomp.exchange.patterns.joint_clip import joint_clip
from gradcomp.exchange.patterns.peer_sparse_allreduce import PeerSparseAllReduce
from gradcomp.exchange.patterns.reduce import BucketedReduce, NonlinearReduce, Reduce
from gradcomp.exchange.patterns.reduce_scatter import ReduceScatter
from gradcomp.exchange.patterns.single_rank import Alone
from gradcomp.exchange.patterns.sparse_allreduce import SparseAllReduce
from gradcomp.exchange.patterns.sra import Sra
from gradcomp.exchange.patterns.two_level import two_level

__all__ = [
    "ALGORITHMS",
    "EXCHANGES",
    "FLAT_EXCHANGES",
    "averaging_refusal",
    "choices_by_ranks",
    "exchange_choice",
    "exchange_pattern",
    "exchange_refusal",
    "gives_steps",
    "link_remedy",
    "make_aggregator",
    "pattern_between_nodes",
    "patterns_text",
    "scatter_refusal",
]


ALGORITHMS: dict[str, type[Algorithm]] = {
    "powersgd": PowerSGD,
    "atomo": Atomo,
    "chunk_allreduce": ChunkAllReduce,
    "signsgd_mv": MajorityVote,
    "dion": Dion,
    "dion2": Dion2,
    "demo": DeMo,
}
"""Algorithms by the names of their stages."""


def gives_steps(spec: Spec) -> bool:
    """Whether the rounds return steps of an optimizer, Dion or DeMo, not averages."""
    algorithm = spec.algorithm
    return algorithm is not None and issubclass(ALGORITHMS[algorithm.name], OptimizerStep)


FLAT_EXCHANGES = ("auto", "reduce", "gather", "sra", "sparse_allreduce")
"""Exchanges in which all ranks have the same role."""

EXCHANGES = (*FLAT_EXCHANGES, "two_level", *(f"two_level({flat})" for flat in FLAT_EXCHANGES[1:]))
"""Values of ``exchange`` in a configuration. "auto" is `exchange_choice`; between nodes, too, unless
two_level(...) names a pattern."""


def pattern_between_nodes(exchange: str) -> str | None:
    """The pattern between nodes of "two_level" or "two_level(...)"; None for other exchanges."""
    if not exchange.startswith("two_level"):
        return None
    return exchange.removeprefix("two_level").strip("()") or "auto"


def exchange_choice(
    spec: Spec,
    exchange: str = "auto",
    ranks: int = 2,
    averaging: Averaging = MEAN,
    peer_device: Device | None = None,
) -> Choice:
    """The exchange pattern of a spec, and why `auto` takes it.

    Args:
        exchange: one of `EXCHANGES`; it has no effect on specs that do not compress.
        ranks: number of ranks that exchange; of nodes, with "two_level".
        averaging: without an `averaging_refusal`.
        peer_device: see `Context`.

    Returns:
        "dense", "algorithm", "reduce", "gather", "sra" or "sparse_allreduce"; or one of the last
        five between nodes, such as "two_level(gather)". No reason if there was no choice.
    """
    between = pattern_between_nodes(exchange)
    if between is not None and not _sums_gradients(spec):
        choice = exchange_choice(spec, between, ranks, averaging)
        return choice._replace(pattern=f"two_level({choice.pattern})")
    if spec.algorithm is not None:
        return Choice("algorithm")
    if _sums_gradients(spec):
        return Choice("reduce" if spec.stateful else "dense")
    if exchange != "auto":
        return Choice(exchange)
    first = spec.at(0, 0)
    codec = get_codec(first.codec)
    if "summable" in codec.caps:
        return Choice("reduce", "payloads can be added")
    if averaging != MEAN:
        return Choice("gather", f"{averaging} needs all ranks' tensors")
    return automatic_choice(first, ranks, _between_devices(codec, peer_device))


def _between_devices(codec: Codec, peer_device: Device | None) -> bool:
    """Whether what a codec sends travels from device to device on all ranks."""
    return peer_device is not None and peer_device.to_peers(codec) is not None


def exchange_pattern(
    spec: Spec,
    exchange: str = "auto",
    ranks: int = 2,
    averaging: Averaging = MEAN,
    peer_device: Device | None = None,
) -> str:
    """The pattern of `exchange_choice`."""
    return exchange_choice(spec, exchange, ranks, averaging, peer_device).pattern


def choices_by_ranks(
    spec: Spec, exchange: str = "auto", averaging: Averaging = MEAN
) -> list[tuple[int, Choice]]:
    """`exchange_choice` from 2 to 1024 ranks, each with the least number of ranks that has it."""

    def at(ranks: int) -> Choice:
        return exchange_choice(spec, exchange, ranks, averaging)

    found = [(2, at(2))]
    for low, high in pairwise([*range(2, 17), 32, 64, 128, 256, 512, 1024]):
        if at(high).pattern != found[-1][1].pattern:
            pattern = at(high).pattern
            ranks = bisect_left(range(high), True, low, key=lambda n: at(n).pattern == pattern)
            found.append((ranks, at(ranks)))
    return found


def patterns_text(
    spec: Spec, exchange: str = "auto", averaging: Averaging = MEAN, *, sep: str = ", "
) -> str:
    """`choices_by_ranks` in words, such as "gather, from 6 ranks on sra"."""
    (_, first), *others = choices_by_ranks(spec, exchange, averaging)
    unit = "ranks" if pattern_between_nodes(exchange) is None else "nodes"
    return sep.join(
        [first.pattern, *(f"from {ranks} {unit} on {choice.pattern}" for ranks, choice in others)]
    )


def _sums_gradients(spec: Spec) -> bool:
    """Whether gradients are all-reduced uncompressed: by `Dense`, or an aggregator with momentum."""
    if spec.algorithm is not None or get_codec(spec.first_codec).name != "identity":
        return False
    memory = spec.memory
    return memory is None or memory.name in (MOMENTUM_CORRECTION, EF21)


def exchange_refusal(spec: Spec, exchange: str) -> str | None:
    """Why a spec cannot have this exchange, and the remedy; None if it can."""
    between = pattern_between_nodes(exchange)
    if between is not None:
        return exchange_refusal(spec, between)
    pattern = exchange_pattern(spec, exchange)
    if pattern == "algorithm":
        if exchange == "auto":
            return None
        return (
            f"'{spec}' makes its own exchanges; give its rule `exchange: auto`, or two_level "
            "for nodes of several ranks"
        )
    if pattern == "dense":
        return None
    codec = get_codec(spec.first_codec)
    if pattern == "reduce" and "summable" not in codec.caps:
        return f"payloads of '{codec.name}' cannot be added; use gather or sra"
    if pattern == "sra" and "learns" in codec.caps:
        return (
            f"'{spec}' learns from the averages of whole tensors, and sra cuts them into pieces; use "
            "gather, or preset=default"
        )
    if pattern == "sparse_allreduce" and "sparse" not in codec.caps:
        return (
            f"'{codec.name}' sends all elements, and sparse_allreduce adds up chosen elements; "
            "use sra"
        )
    return None


def link_remedy(choices: Iterable[tuple[Spec, str]], ranks: int) -> str:
    """Advice where more bytes pass a rank's link than without compression.

    Args:
        choices: the specs, each with its exchange.
        ranks: number of ranks that exchange; of nodes, with "two_level".
    """
    found = set()
    for spec, exchange in choices:
        if "gather" in exchange_pattern(spec, exchange, ranks):
            # Of these the bytes on a link do not grow with the ranks.
            for other in ("sra", "sparse_allreduce"):
                if exchange_refusal(spec, other) is None:
                    found.add(f"exchange: {other} (its bytes do not grow with the ranks)")
                    break
    return ", or ".join([*sorted(found), "a spec that sends less"])


def averaging_refusal(spec: Spec, exchange: str, averaging: Averaging) -> str | None:
    """Why a spec with this exchange cannot be averaged so, and the remedy; None if it can.

    Specs that do not compress are all-reduced: averaging has no effect on them, as the exchange.
    """
    between = pattern_between_nodes(exchange)
    if between is not None and not _sums_gradients(spec):
        return averaging_refusal(spec, between, averaging)
    pattern = exchange_pattern(spec, exchange)
    if averaging == MEAN or pattern == "dense":
        return None
    if spec.memory is not None and spec.memory.name == EF21:
        return (
            f"'{spec}' keeps the mean of all ranks' estimates, and averages them as they are: leave "
            "average and clip out, or use residual"
        )
    if pattern == "algorithm":
        return f"'{spec}' adds up all ranks in its own exchanges; use a codec with exchange: gather"
    if pattern != "gather":
        return (
            f"'{spec}' takes the exchange {pattern}, which adds up ranks before all of them know each "
            "one's tensor; use exchange: gather"
        )
    codec = get_codec(spec.first_codec)
    if averaging.average == "senders" and "sparse" not in codec.caps:
        return (
            f"'{codec.name}' sends all elements, so every rank is a sender; use average: ranks, or a "
            "sparse codec such as blocktopk"
        )
    return None


def scatter_refusal(spec: Spec, exchange: str) -> str | None:
    """Why a spec cannot travel in a reduce-scatter, and the remedy; None if it can."""
    if exchange != "auto":
        return f"a reduce-scatter has no exchange: {exchange}; remove it"
    if spec.algorithm is not None:
        return (
            f"'{spec}' makes its own exchanges, and a reduce-scatter needs a codec, such as "
            "residual|int4"
        )
    if spec.memory is not None and spec.memory.name == MOMENTUM_CORRECTION:
        return (
            f"'{spec}' applies the momentum to the averages of whole tensors, and a rank gets those "
            "of its rows alone: use residual, and leave the momentum to the optimizer"
        )
    return None


def make_aggregator(
    spec: Spec, context: Context, exchange: str = "auto", averaging: Averaging = MEAN
) -> Aggregator:
    """Make the aggregator of a spec; the context's state holds its arrays.

    Args:
        spec: without schedules.
        exchange: one of `EXCHANGES`, without an `exchange_refusal` for this spec; if the context
            scatters, without a `scatter_refusal`.
        averaging: without an `averaging_refusal`.
    """
    aggregator = _aggregator(spec, context, exchange, averaging)
    if context.elastic and context.world_size == 1:
        memory = _error_feedback(spec, context, aggregator)
        if memory is not None:
            return Alone(memory, aggregator)
    return aggregator


def _error_feedback(
    spec: Spec, context: Context, aggregator: Aggregator
) -> Residual | Estimates | None:
    """The memory of a spec with frames that stand for the gradient itself; None if there is none."""
    if spec.memory is not None and spec.memory.name == EF21:
        return Estimates(_momentum(spec), context.state, {})
    if isinstance(aggregator, Algorithm):
        return aggregator.error_feedback()
    memory = make_memory(spec.memory, context.state, context.world_size, context.rates)
    return memory if isinstance(memory, Residual) else None


def _momentum(spec: Spec) -> float:
    assert spec.memory is not None
    momentum = spec.memory.params["momentum"]
    assert isinstance(momentum, float)
    return momentum


def _differences(spec: Spec, context: Context, exchange: str) -> Aggregator:
    """The aggregator of a spec with EF21: that of its codec, or algorithm, averages differences."""
    momentum = _momentum(spec)
    unsent: Arrays = {}
    if context.scatters:
        return ReduceScatter(
            get_codec(spec.codec),
            Residual(1.0, 1.0, unsent),
            context,
            Estimates(momentum, context.state, unsent),
        )
    if _sums_gradients(spec):
        return AverageMomentum(momentum, context.state) if momentum else Dense()
    # Averages that depend on the mean of the differences alone: all ranks have one estimate.
    pattern = exchange_pattern(spec, exchange, context.world_size, MEAN, context.peer_device)
    summed = pattern == "reduce" or (
        spec.algorithm is not None and spec.algorithm.name == "powersgd"
    )
    estimates = Estimates(momentum, context.state, unsent, shared=summed)
    inner = _aggregator(
        parse(spec.codec if summed else f"residual|{spec.codec}"),
        context._replace(state={**context.state, "residual": unsent}),
        exchange,
        MEAN,
    )
    if not isinstance(inner, BucketAggregator):
        return Differences(estimates, inner)
    return DifferencesBucket(estimates, inner)


def _aggregator(spec: Spec, context: Context, exchange: str, averaging: Averaging) -> Aggregator:
    between = pattern_between_nodes(exchange)
    if (
        spec.memory is not None
        and spec.memory.name == EF21
        and (between is None or _sums_gradients(spec))
    ):
        return _differences(spec, context, exchange)
    if context.scatters:
        memory = make_memory(spec.memory, context.state, context.world_size, context.rates)
        return ReduceScatter(get_codec(spec.codec), memory, context)
    if between is not None and not _sums_gradients(spec):
        aggregator = make_aggregator(spec, context.of_nodes(), between, averaging)
        return aggregator if context.node.size == 1 else two_level(aggregator, context.node)
    flat = _flat_aggregator(spec, context, exchange, averaging)
    limit = joint_limit(spec.memory)
    # The momentum of dense tensors clips their average.
    return flat if limit is None or _sums_gradients(spec) else joint_clip(flat, limit)


def _flat_aggregator(
    spec: Spec, context: Context, exchange: str, averaging: Averaging
) -> Aggregator:
    if spec.algorithm is not None:
        return ALGORITHMS[spec.algorithm.name](spec, context)
    pattern = exchange_pattern(spec, exchange, context.world_size, averaging, context.peer_device)
    if pattern == "dense":
        return Dense()
    codec = get_codec(spec.codec)
    memory = make_memory(spec.memory, context.state, context.world_size, context.rates)
    if pattern == "reduce":
        if isinstance(memory, MomentumCorrection) and codec.name == "identity":
            return DenseMomentum(memory)
        if context.peer_device is not None and codec.name == "fp16":
            return BucketedReduce(codec, memory, context.seed)
        kind = NonlinearReduce if "nonlinear" in codec.caps else Reduce
        return kind(codec, memory, context.seed)
    if pattern == "sra":
        return Sra(codec, memory, context)
    if pattern == "sparse_allreduce":
        if _between_devices(codec, context.peer_device):
            return PeerSparseAllReduce(spec, memory, context)
        return SparseAllReduce(spec, memory, context)
    return Gather(codec, memory, context.seed, context.rank, context.state, averaging)
