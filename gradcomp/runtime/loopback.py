"""All ranks in one process: for tests, for `gradcomp explain`, and for a first try."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from gradcomp.codec.arrays import ByteArray, FloatArray, as_float32
from gradcomp.config.schema import Config
from gradcomp.errors import ProtocolError
from gradcomp.exchange.rounds import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    RankGroup,
    Ready,
    Request,
    advance,
)
from gradcomp.runtime.measure.stats import Stats
from gradcomp.runtime.pipeline import Pipeline

__all__ = ["Loopback", "lockstep", "run_rounds"]

_Result = TypeVar("_Result")


class Loopback:
    """Averages gradients of ``world_size`` ranks in one process, as engines do.

    All-reduces add in rank order; those of an engine may add in another, with other last bits.

    Args:
        config: a configuration, or a spec string for all tensors. Each rank is a separate node,
            unless ``compress.ranks_per_node`` says otherwise.
        world_size: number of ranks, at least 1.

    Raises:
        ValueError: ``world_size`` is less than 1.
        SpecError: the spec is wrong.
        ConfigError: with ``two_level``, the ranks do not form equal nodes.

    Examples:
        >>> import numpy as np
        >>> from gradcomp import Loopback
        >>> loop = Loopback("fp16", world_size=2)
        >>> result = loop.step({"w": [np.full((64, 64), 1.0), np.full((64, 64), 3.0)]})
        >>> float(result["w"][0][0, 0])
        2.0
    """

    def __init__(self, config: Config | str, world_size: int) -> None:
        if world_size < 1:
            raise ValueError(f"world_size is {world_size}; it must be at least 1")
        self.ranks = [Pipeline(config, rank, world_size) for rank in range(world_size)]

    @property
    def stats(self) -> list[Stats]:
        """Each rank's statistics."""
        return [rank.stats for rank in self.ranks]

    def set_epoch(self, epoch: int) -> None:
        """See `Pipeline.set_epoch`."""
        for rank in self.ranks:
            rank.set_epoch(epoch)

    def set_lr(self, lr: float | Mapping[str, float]) -> None:
        """See `Pipeline.set_lr`."""
        for rank in self.ranks:
            rank.set_lr(lr)

    def set_loss_scale(self, scale: float) -> None:
        """See `Pipeline.set_loss_scale`."""
        for rank in self.ranks:
            rank.set_loss_scale(scale)

    def allow_discard(self) -> None:
        """See `LastStep.allow_discard`."""
        for rank in self.ranks:
            rank.last_step.allow_discard()

    def discard_step(self) -> None:
        """See `LastStep.discard`."""
        for rank in self.ranks:
            rank.last_step.discard()

    def begin_at(self, step: int, names: Iterable[str]) -> None:
        """Continue as if the tensors had ``step`` steps, and as many epochs, behind them."""
        self.set_epoch(step)
        for rank in self.ranks:
            rank.load_state_dict({**rank.state_dict(), "rounds": dict.fromkeys(names, step)})

    def step(self, grads: Mapping[str, Sequence[Any]]) -> dict[str, list[FloatArray]]:
        """Average one step's gradients.

        Args:
            grads: for each tensor name, the gradients of all ranks, of equal shapes; any type that
                `gradcomp.codec.arrays.as_float32` accepts.

        Returns:
            For each name, the average as each rank computed it, float32 in the gradients' shape.

        Raises:
            ValueError: a tensor has another number of gradients than there are ranks.
            TypeError: a gradient is not a float tensor in CPU memory.
            ProtocolError: the ranks' pipelines have states of different steps.
        """
        arrays: dict[str, list[FloatArray]] = {}
        for name, of_ranks in grads.items():
            if len(of_ranks) != len(self.ranks):
                raise ValueError(
                    f"'{name}' has {len(of_ranks)} gradients for {len(self.ranks)} ranks"
                )
            arrays[name] = [as_float32(grad) for grad in of_ranks]
        for stats in self.stats:
            stats.begin_step()
        for pipeline in self.ranks:
            pipeline.last_step.begin()
        comparisons = [pipeline.comparison for pipeline in self.ranks]
        first, *others = comparisons
        if first.needed:
            first.check(np.concatenate([comparison.text() for comparison in comparisons]))
            for other in others:
                other.go_on()
        averages: dict[str, list[FloatArray]] = {name: [] for name in grads}
        shapes = {name: of_ranks[0].shape for name, of_ranks in arrays.items()}
        resolved = [pipeline.resolve_all(shapes) for pipeline in self.ranks]
        for names in self.ranks[0].buckets(resolved[0]):
            rounds = [
                pipeline.bucket_round(
                    names[0],
                    {name: arrays[name][rank] for name in names},
                    resolved=resolved[rank],
                )
                for rank, pipeline in enumerate(self.ranks)
            ]
            for of_rank in run_rounds(rounds, self.ranks[0].ranks_per_node):
                for name, average in zip(names, of_rank, strict=True):
                    averages[name].append(average.reshape(shapes[name]))
        return averages


def run_rounds(
    rounds: Sequence[Generator[Request | Ready, Any, _Result]], ranks_per_node: int = 1
) -> list[_Result]:
    """Run one round per rank to its end, in `lockstep`; returns their results."""
    phases = lockstep(rounds, ranks_per_node)
    while True:
        try:
            next(phases)
        except StopIteration as stop:
            results: list[_Result] = stop.value
            return results


def lockstep(
    rounds: Sequence[Generator[Request | Ready, Any, _Result]], ranks_per_node: int = 1
) -> Generator[None, None, list[_Result]]:
    """Advance one round per rank by a phase at a time; returns their results.

    Args:
        ranks_per_node: number of consecutive ranks in each node.

    Raises:
        ProtocolError: the ranks make different requests; the message names each rank's request.
    """
    outcomes = [_advance(round_, None) for round_ in rounds]
    while not isinstance(outcomes[0], _Ended):
        yield
        replies = _replies(outcomes, ranks_per_node)
        outcomes = [_advance(round_, reply) for round_, reply in zip(rounds, replies, strict=True)]
    _check_equal(outcomes)
    return [outcome.result for outcome in outcomes if isinstance(outcome, _Ended)]


@dataclass(frozen=True)
class _Ended(Generic[_Result]):
    result: _Result


def _advance(
    round_: Generator[Request | Ready, Any, _Result], reply: Any
) -> Request | _Ended[_Result]:
    try:
        return advance(round_, reply)
    except StopIteration as stop:
        return _Ended(stop.value)


def _describe(outcome: Request | _Ended[Any]) -> str:
    if isinstance(outcome, _Ended):
        return "no further request: its round has ended"
    group = _AMONG[outcome.group]
    if isinstance(outcome, AllReduce):
        array = outcome.array
        return f"all-reduce of '{outcome.name}'{group}, {array.dtype}, shape {array.shape}"
    if isinstance(outcome, AllGather):
        frames = "" if outcome.count == 1 else f", {outcome.count} frames"
        return f"all-gather of '{outcome.name}'{group}{frames}"
    if isinstance(outcome, AllToAll):
        return f"all-to-all of '{outcome.name}'{group}"
    return f"broadcast of '{outcome.name}'{group}"


def _check_equal(outcomes: Sequence[Request | _Ended[Any]]) -> None:
    texts = [_describe(outcome) for outcome in outcomes]
    if len(set(texts)) > 1:
        lines = "\n".join(f"  rank {rank}: {text}" for rank, text in enumerate(texts))
        raise ProtocolError(f"the ranks make different requests:\n{lines}")


_AMONG: dict[RankGroup, str] = {"all": "", "node": " inside nodes", "leaders": " between nodes"}


def _replies(outcomes: Sequence[Request | _Ended[Any]], ranks_per_node: int) -> list[Any]:
    _check_equal(outcomes)
    ranks = range(len(outcomes))
    group = next(outcome.group for outcome in outcomes if not isinstance(outcome, _Ended))
    groups = {
        "all": [ranks],
        "node": [ranks[first:][:ranks_per_node] for first in ranks[::ranks_per_node]],
        "leaders": [ranks[::ranks_per_node]],
    }[group]
    replies: list[Any] = [None] * len(outcomes)
    for members in groups:
        of_members = _of_group([outcomes[rank] for rank in members])
        for rank, reply in zip(members, of_members, strict=True):
            replies[rank] = reply
    return replies


def _of_group(outcomes: Sequence[Request | _Ended[Any]]) -> list[Any]:
    arrays = [outcome.array for outcome in outcomes if isinstance(outcome, AllReduce)]
    if arrays:
        average = _average(arrays)  # once: numpy adds float16 slowly
        return [average, *(average.copy() for _ in outcomes[1:])]
    parts = [_parts(outcome) for outcome in outcomes if isinstance(outcome, AllToAll)]
    if parts:
        return [list(of_rank) for of_rank in zip(*parts, strict=True)]
    data = [outcome.data for outcome in outcomes if isinstance(outcome, Broadcast)]
    if data:
        return [np.concatenate(data) for _ in outcomes]
    frames = [outcome.frame for outcome in outcomes if isinstance(outcome, AllGather)]
    return [list(frames) for _ in outcomes]


def _parts(request: AllToAll) -> list[ByteArray]:
    """The part for each rank."""
    ends = itertools.accumulate(request.splits, initial=0)
    return [request.data[begin:end] for begin, end in itertools.pairwise(ends)]


def _average(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Sum in rank order, then divide, all in the arrays' dtype; see `AllReduce.headroom`."""
    kind, factor = arrays[0].dtype.type, AllReduce.headroom(arrays[0].dtype, len(arrays))
    with np.errstate(over="ignore", invalid="ignore"):
        total: npt.NDArray[Any] = arrays[0] * kind(factor)
        for array in arrays[1:]:
            total += array if factor == 1 else array * kind(factor)
        total *= kind(1.0 / (factor * len(arrays)))
    return total
