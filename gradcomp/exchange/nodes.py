"""Placement of ranks on nodes: all nodes have the same number of consecutive ranks."""

from __future__ import annotations

from dataclasses import dataclass

from gradcomp.errors import ConfigError

__all__ = ["Node"]


@dataclass(frozen=True)
class Node:
    """A rank's place.

    Attributes:
        index: the node's index, in [0, count).
        count: number of nodes.
        local_rank: the rank's position in its node, in [0, size).
        size: ranks in each node.
    """

    index: int
    count: int
    local_rank: int
    size: int

    @classmethod
    def of(cls, rank: int, world_size: int, ranks_per_node: int) -> Node:
        """The place of a rank.

        Raises:
            ConfigError: ``world_size`` is not a multiple of ``ranks_per_node``.
        """
        if world_size % ranks_per_node:
            raise ConfigError(
                f"{world_size} ranks cannot form nodes of {ranks_per_node} ranks each: two_level "
                f"needs equal nodes; start a multiple of {ranks_per_node} ranks, or set "
                f"compress.ranks_per_node to a divisor of {world_size}"
            )
        index, local_rank = divmod(rank, ranks_per_node)
        return cls(index, world_size // ranks_per_node, local_rank, ranks_per_node)

    @property
    def leads(self) -> bool:
        """Whether this rank exchanges with other nodes."""
        return self.local_rank == 0
