"""The ranks of one node, which gossip as one."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from gradcomp.adapter_api import FloatArray, Node
from gradcomp.errors import ConfigError
from gradcomp.gossip import Traffic
from torch_compressors.gloo.gather import gather_numbers, gather_texts
from torch_compressors.gloo.nodes import check_nodes, ranks_per_node
from torch_compressors.gossip.agreement import check_equal_tensors
from torch_compressors.gossip.groups import GossipGroups
from torch_compressors.gossip.transport import naming_the_lost

__all__ = ["NodeRanks", "agreed_node"]

_SETTING = "ranks_per_node"


def agreed_node(configured: int | None, control: GossipGroups) -> Node:
    """This rank's node, agreed on by all ranks.

    Args:
        configured: number of ranks in each node; None: the launcher's number.
        control: a process group of all ranks; each of them must call this.

    Raises:
        ConfigError: the ranks do not form equal nodes; raised on all ranks.
    """
    with control.request() as group:
        size, problem = ranks_per_node(configured, group, _SETTING)
        refusals = gather_texts(problem or "", group)
        sizes = gather_numbers(size, group)
    for refusal in refusals:
        if refusal:
            raise ConfigError(refusal)
    check_nodes(sizes, _SETTING)
    return Node.of(dist.get_rank(), dist.get_world_size(), size)


class NodeRanks:
    """The ranks of a node: they average gradients, and share the values of their first rank.

    Every rank of the job must create one.

    Args:
        node: the node of this rank.
        limit: longest wait for the node's other ranks.

    Attributes:
        traffic: traffic of this rank inside the node: gradients, counted once for each all-reduce,
            and the first rank's values.
    """

    def __init__(self, node: Node, limit: timedelta) -> None:
        self.traffic = Traffic()
        self._node = node
        self._first = node.index * node.size
        self._where = f"node {node.index}, ranks {self._first} to {self._first + node.size - 1}"
        self._groups = None
        if node.size > 1:
            ranks = range(node.count * node.size)
            nodes = [ranks[first : first + node.size] for first in ranks[:: node.size]]
            self._groups = GossipGroups(nodes, limit)

    def close(self) -> None:
        """Give the process group to later ones; no exchange may follow."""
        if self._groups is not None:
            self._groups.close()

    @torch.no_grad()
    def average_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Replace all gradients by their mean over the node's ranks, formed in float32.

        A missing gradient counts as zero if another rank has one.

        Raises:
            PeerError: a rank of the node has died, or does not answer.
        """
        if self._groups is None:
            return
        trained = [p for p in parameters if p.requires_grad]
        parts = [
            torch.zeros(p.numel(), dtype=torch.float32, device="cpu")
            if p.grad is None
            else p.grad.reshape(-1).float().cpu()
            for p in trained
        ]
        present = torch.tensor(
            [float(p.grad is not None) for p in trained], dtype=torch.float32, device="cpu"
        )
        flat = torch.cat([*parts, present])
        self._count(flat.nbytes)
        with naming_the_lost(self._where), self._groups.request() as group:
            dist.all_reduce(flat, group=group)
        values, ranks_with_grad = flat[: -len(trained)], flat[-len(trained) :]
        begin = 0
        for p, count in zip(trained, ranks_with_grad.tolist(), strict=True):
            mean = values[begin : begin + p.numel()].view_as(p) / self._node.size
            begin += p.numel()
            if count:
                if p.grad is None:
                    p.grad = torch.empty_like(p)
                p.grad.copy_(mean)

    def of_first(self, x: FloatArray, weight: float) -> tuple[FloatArray, float]:
        """The arguments that the node's first rank has given, on all of the node's ranks.

        Raises:
            PeerError: a rank of the node has died, or does not answer.
        """
        if self._groups is None:
            return x, weight
        message = np.concatenate([x.reshape(-1).view(np.uint8), np.array([weight]).view(np.uint8)])
        if self._node.leads:
            self._count(message.nbytes)
        with naming_the_lost(self._where), self._groups.request() as group:
            dist.broadcast(torch.from_numpy(message), self._first, group)
        shared: FloatArray = message[: x.nbytes].view(x.dtype)
        return shared, float(message[x.nbytes :].view(np.float64)[0])

    def check_equal(self, named: Iterable[tuple[str, torch.Tensor]], when: str) -> None:
        """Compare tensors, bit for bit, over the node's ranks; see `agreement.check_equal_tensors`."""
        if self._groups is not None:
            with naming_the_lost(self._where):
                check_equal_tensors(named, self._groups, when, first=self._first)

    def _count(self, nbytes: int) -> None:
        self.traffic.bits += 8 * nbytes
        self.traffic.messages += 1
