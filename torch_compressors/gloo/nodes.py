"""Nodes: the ranks of each machine."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from functools import partial

import torch.distributed as dist

from gradcomp import Config
from gradcomp.adapter_api import Node, Pipeline, RankGroup, agreement_line, check_agreement
from gradcomp.errors import ConfigError
from torch_compressors.gloo.gather import gather_numbers, gather_texts
from torch_compressors.gloo.groups import LentGroups, lend
from torch_compressors.gloo.process_group import local_place

__all__ = [
    "agreed_ranks_per_node",
    "check_nodes",
    "exchange_groups",
    "node_size",
    "ranks_per_node",
]

_SETTING = "compress.ranks_per_node"


def ranks_per_node(
    configured: int | None, world: dist.ProcessGroup, setting: str
) -> tuple[int, str | None]:
    """Number of consecutive ranks in each node, and the problem with it, or None.

    Args:
        configured: the user's setting; None for the launcher's number.
        world: all ranks that average together.
        setting: name of the user's setting, for messages.
    """
    count = world.size()
    if configured is not None:
        if configured < 1 or count % configured:
            return 1, f"{setting} is {configured}; it must be a divisor of {count} ranks"
        return configured, None
    place = local_place()
    if place is None or count != dist.get_world_size():
        return 1, (
            "nodes are known only if torchrun or horovodrun has started the ranks and all of them "
            f"average together: set {setting}"
        )
    local_rank, size = place
    if size < 1 or count % size or world.rank() % size != local_rank:
        return 1, (
            f"rank {world.rank()} of {count} is local rank {local_rank} of {size}, and two_level "
            f"needs equal nodes of consecutive ranks: set {setting}"
        )
    return size, None


def check_nodes(sizes: list[int], setting: str) -> None:
    """Check that all ranks have nodes of the same size; ``sizes`` is in rank order.

    Raises:
        ConfigError: the sizes differ.
    """
    if len(set(sizes)) > 1:
        raise ConfigError(
            f"the exchange two_level is impossible: the ranks' nodes have {sizes} ranks: start the "
            f"same number of ranks on each node, or set {setting}"
        )


def agreed_ranks_per_node(
    config: Config,
    world: dist.ProcessGroup,
    shapes: Mapping[str, tuple[int, ...]],
    kinds: Mapping[str, str],
    copied: Pipeline | None = None,
) -> int:
    """Check that all ranks have the same compression; returns the number of ranks in a node.

    Args:
        shapes, kinds: of all parameters, see `agreement_line`.
        copied: of a copied state; it must be this rank's.

    Raises:
        ProtocolError: the ranks run different compression or different models.
        ConfigError: with ``two_level``, the ranks do not form equal nodes.
    """
    size, problem = node_size(config, world)
    if copied is not None:
        problem = problem or copied.mismatch(world.rank(), world.size(), size)
    lines = gather_texts(agreement_line(config, shapes, problem, kinds=kinds), world)
    check_agreement(lines)
    check_nodes(gather_numbers(size, world), _SETTING)
    return size


def node_size(config: Config, world: dist.ProcessGroup) -> tuple[int, str | None]:
    """See `ranks_per_node`; 1 without ``two_level``."""
    if not config.compress.two_level:
        return 1, None
    return ranks_per_node(config.compress.ranks_per_node, world, _SETTING)


def exchange_groups(
    world: dist.ProcessGroup, size: int, timeout: timedelta | None
) -> LentGroups[RankGroup]:
    """Groups of Gloo: all ranks, the ranks of this node, and the nodes' first ranks.

    Only one compression at a time uses them, so no other collective comes between its exchanges.
    """
    return lend(world, ("gloo", size, timeout), partial(_new_groups, world, size, timeout))


def _new_groups(
    world: dist.ProcessGroup, size: int, timeout: timedelta | None
) -> dict[RankGroup, dist.ProcessGroup]:
    ranks = dist.get_process_group_ranks(world)
    node = Node.of(world.rank(), world.size(), size)
    first = node.index * size
    members: dict[RankGroup, list[int]] = {"all": ranks}
    if size > 1:
        members["node"] = ranks[first : first + size]
        # PyTorch numbers a rank's groups to name them: every rank must be in equally many groups.
        members["leaders"] = ranks[node.local_rank :: size]
    groups = {
        group: dist.new_group(of_group, timeout, "gloo", use_local_synchronization=True)
        for group, of_group in members.items()
    }
    if size > 1 and not node.leads:
        del groups["leaders"]
    return groups
