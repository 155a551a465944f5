"""The ranks of one node, which gossip as one."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from gradcomp.adapter_api import FloatArray, Node, as_bytes
from gradcomp.errors import ConfigError
from gradcomp.gossip import Traffic
from torch_compressors.gossip.groups import own_groups
from torch_compressors.gossip.transport import naming_the_lost
from torch_compressors.nodes import check_nodes, ranks_per_node

__all__ = ["NodeRanks", "agreed_node"]

_SETTING = "ranks_per_node"


def agreed_node(asked: int | None, control: dist.ProcessGroup) -> Node:
    """This rank's node, agreed on by all ranks.

    Args:
        asked: ranks in each node; None: the launcher's.
        control: process group of all ranks; each of them must call this.

    Raises:
        ConfigError: on all ranks, where they do not form equal nodes.
    """
    size, problem = ranks_per_node(asked, control, _SETTING)
    found: list[tuple[int, str | None]] = [(0, None)] * control.size()
    dist.all_gather_object(found, (size, problem), group=control)
    for _, one in found:
        if one is not None:
            raise ConfigError(one)
    check_nodes([one for one, _ in found], _SETTING)
    return Node.of(control.rank(), control.size(), size)


class NodeRanks:
    """The ranks of a node: they average gradients, and share the values of their first rank.

    Every rank of the job must make it.

    Args:
        node: the node of this rank.
        limit: longest wait for each other.

    Attributes:
        traffic: traffic of this rank inside the node: gradients, once for each all-reduce, and the
            first rank's values.
    """

    def __init__(self, node: Node, limit: timedelta) -> None:
        self.traffic = Traffic()
        self._node = node
        self._first = node.index * node.size
        self._where = f"node {node.index}, ranks {self._first} to {self._first + node.size - 1}"
        self._group = None
        if node.size > 1:
            ranks = range(node.count * node.size)
            nodes = [ranks[first : first + node.size] for first in ranks[:: node.size]]
            (self._group,) = own_groups(nodes, limit).values()

    @torch.no_grad()
    def average_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Give all ranks of the node the mean of their gradients, in float32.

        A missing gradient counts as zero where another rank has it.
        """
        if self._group is None:
            return
        wanted = [one for one in parameters if one.requires_grad]
        parts = [
            torch.zeros(one.numel()) if one.grad is None else one.grad.reshape(-1).float().cpu()
            for one in wanted
        ]
        present = torch.tensor([float(one.grad is not None) for one in wanted])
        flat = torch.cat([*parts, present])
        self._count(flat.nbytes)
        with naming_the_lost(self._where):
            dist.all_reduce(flat, group=self._group)
        values, found = flat[: -len(wanted)], flat[-len(wanted) :]
        begin = 0
        for one, ranks in zip(wanted, found.tolist(), strict=True):
            mean = values[begin : begin + one.numel()].view_as(one) / self._node.size
            begin += one.numel()
            if ranks:
                if one.grad is None:
                    one.grad = torch.empty_like(one)
                one.grad.copy_(mean)

    def of_first(self, x: FloatArray, weight: float) -> tuple[FloatArray, float]:
        """The arguments of the node's first rank, on all its ranks."""
        if self._group is None:
            return x, weight
        message = np.concatenate([as_bytes(x), np.array([weight]).view(np.uint8)])
        if self._node.leads:
            self._count(message.nbytes)
        with naming_the_lost(self._where):
            dist.broadcast(torch.from_numpy(message), self._first, self._group)
        shared: FloatArray = message[: x.nbytes].view(x.dtype)
        return shared, float(message[x.nbytes :].view(np.float64)[0])

    def _count(self, nbytes: int) -> None:
        self.traffic.bits += 8 * nbytes
        self.traffic.messages += 1
