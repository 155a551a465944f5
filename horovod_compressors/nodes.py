"""Horovod's nodes, and the process sets inside and between them.

``hvd`` is Horovod's module for the framework in use, such as ``horovod.torch``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradcomp import Config
from gradcomp.adapter_api import RankGroup
from gradcomp.errors import ConfigError

__all__ = ["follower_set", "group_sets", "node_problem", "process_set_of", "ranks_per_node"]


def ranks_per_node(hvd: Any, config: Config) -> int:
    """Number of consecutive ranks in each node; 1 without ``two_level``.

    Needs no communication; `node_problem` tells whether the ranks really are placed so.
    """
    if not config.compress.two_level:
        return 1
    configured: int | None = config.compress.ranks_per_node
    size: int = hvd.local_size() if configured is None else configured
    return size


def node_problem(hvd: Any, config: Config, process_set: Any) -> str | None:
    """Why this rank cannot take part in a two-level exchange, and the remedy; None if it can."""
    if not config.compress.two_level:
        return None
    if process_set.process_set_id != 0:
        return (
            "two_level makes process sets of all ranks: leave process_set out, or use another "
            "exchange"
        )
    configured = config.compress.ranks_per_node
    if configured is not None:
        if hvd.size() % configured == 0:
            return None
        return (
            f"compress.ranks_per_node is {configured}; it must be a divisor of {hvd.size()} ranks"
        )
    remedy = "start the same number of ranks on each, or set compress.ranks_per_node"
    size = hvd.local_size()
    if not hvd.mpi_ops._basics.is_homogeneous() or hvd.size() % size:
        return f"the nodes have unequal numbers of ranks, this one {size}: {remedy}"
    if hvd.rank() != hvd.cross_rank() * size + hvd.local_rank():
        return (
            f"rank {hvd.rank()} is local rank {hvd.local_rank()} of node {hvd.cross_rank()}, and "
            f"two_level needs consecutive ranks in a node, here {size}: start ranks by slot, not "
            "by node, or set compress.ranks_per_node"
        )
    return None


def group_sets(hvd: Any, world: Any, size: int) -> Mapping[RankGroup, Any]:
    """The process set of each group that this rank is in.

    Every rank must call it, because all ranks take part in making a process set.

    Args:
        world: the process set of all ranks that average together.
        size: number of consecutive ranks in each node.

    Raises:
        ConfigError: Horovod has no such process sets, and was not started to make new ones.
    """
    sets: dict[RankGroup, Any] = {"all": world}
    if size == 1:
        return sets
    if size == hvd.size():
        return {**sets, "node": world}
    ranks = list(range(hvd.size()))
    for first in ranks[::size]:
        members = ranks[first : first + size]
        node = process_set_of(hvd, members)
        if hvd.rank() in members:
            sets["node"] = node
    leaders = process_set_of(hvd, ranks[::size])
    if hvd.rank() % size == 0:
        sets["leaders"] = leaders
    return sets


def follower_set(hvd: Any, size: int) -> Any:
    """The process set of the ranks that lead no node; None if there is no exchange between nodes.

    Every rank must call it, because all ranks take part in making a process set.

    Args:
        size: number of consecutive ranks in each node.
    """
    if size in (1, hvd.size()):
        return None
    followers = process_set_of(hvd, [rank for rank in range(hvd.size()) if rank % size])
    return None if hvd.rank() % size == 0 else followers


def process_set_of(hvd: Any, ranks: list[int]) -> Any:
    """The process set of these ranks, which may exist already."""
    for number, members in hvd.mpi_ops._basics._get_process_set_ids_and_ranks().items():
        if members == ranks:
            known = hvd.ProcessSet(ranks)
            known.process_set_id = number
            return known
    try:
        return hvd.add_process_set(ranks)
    except ValueError as error:
        raise ConfigError(
            f"two_level needs process sets inside and between nodes ({error}): set "
            "HOROVOD_DYNAMIC_PROCESS_SETS=1 before hvd.init()"
        ) from error
