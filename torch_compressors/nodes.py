"""Nodes: the ranks of each machine."""

from __future__ import annotations

import os

import torch.distributed as dist

from gradcomp.errors import ConfigError

__all__ = ["check_nodes", "ranks_per_node"]

# By launcher: variables of the rank on its machine, and of the number of ranks there.
_LAUNCHERS = (
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),  # torchrun
    ("HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),  # horovodrun
)


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
    for names in _LAUNCHERS:
        local = [os.environ.get(name, "") for name in names]
        if all(text.isdigit() for text in local):
            break
    else:
        local = []
    if not local or count != dist.get_world_size():
        return 1, (
            "nodes are known only if torchrun or horovodrun has started the ranks and all of them "
            f"average together: set {setting}"
        )
    local_rank, size = map(int, local)
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
