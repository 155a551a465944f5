"""Asynchronous decentralized training: AD-PSGD."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from gradcomp.errors import GradcompError, StateError
from gradcomp.gossip import Bilateral, Sides, Topology, Traffic, make_topology
from torch_compressors.gossip.agreement import agree
from torch_compressors.gossip.background import Background
from torch_compressors.gossip.groups import GossipGroups
from torch_compressors.gossip.module import DecentralizedModule
from torch_compressors.gossip.pair import Pair
from torch_compressors.gossip.transport import patiently

__all__ = ["AsyncGossipDataParallel"]


class AsyncGossipDataParallel(DecentralizedModule):
    """A module with parameters that pairs of ranks average while all ranks train.

    AD-PSGD: Lian, Zhang, Zhang, Liu: "Asynchronous Decentralized Parallel Stochastic Gradient
    Descent" (ICML 2018), algorithm 1. Ranks are active or passive (`gradcomp.gossip.Sides`). After
    an optimizer's step an active rank exchanges parameters with a random passive peer, on a thread,
    and continues to train. A passive rank answers at any time, on a thread for each of its peers.
    No rank waits for steps of another rank, and ranks may make different numbers of steps. Results
    depend on timing. `gradcomp.gossip.Bilateral` does the averaging.

    `attach`, `averaged`, `synchronize` and checkpoints work as in `GossipDataParallel`; all ranks
    begin with the parameters and buffers of rank 0. As in the paper, an optimizer's step is added
    to the averaged parameters, although its gradient belongs to the parameters before averaging.

    Deviations: active ranks exchange once after each step, passive ranks when asked. In the paper
    passive ranks compute gradients on another thread; in this class that is the training loop.

    Args:
        module: parameters that require gradients must be floating; they are averaged in float32.
        topology: a name for `gradcomp.gossip.make_topology`, or a topology. The edges of all rounds
            together must be bipartite.
        synch_freq: number of further steps, at least 0, that an active rank may make during an
            exchange before it waits; 0: it waits after the next step.
        seed: seed of the choice of peers; the same on every rank.
        timeout, retries: see `Transport`; a dead peer raises `gradcomp.errors.PeerError` in
            the optimizer's step. A passive rank waits for questions until the connection ends.

    Raises:
        GradcompError: a name, number or topology is not allowed; the message gives the remedy.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        topology: str | Topology = "dbe",
        synch_freq: int = 0,
        seed: int = 0,
        timeout: float = 30.0,
        retries: int = 2,
    ) -> None:
        super().__init__(
            module,
            timeout,
            retries,
            {"topology": topology, "synch_freq": synch_freq, "seed": seed},
        )
        if synch_freq < 0:
            raise GradcompError(f"synch_freq is {synch_freq}; it must be at least 0")
        self._rank, world_size = dist.get_rank(), dist.get_world_size()
        if isinstance(topology, str):
            topology = make_topology(topology, world_size)
        if topology.world_size != world_size:
            raise GradcompError(
                f"'{topology.name}' is for {topology.world_size} ranks, and the job has "
                f"{world_size}"
            )
        self._topology = topology
        self._sides = Sides(topology)
        self._synch_freq = synch_freq
        self._seed = seed
        self._times = (timeout, retries)
        self._take_over_rank_0()
        self._values = Bilateral(self._read())
        self._shown = self._read()
        self._pair_groups = GossipGroups(self._sides.edges, self._limit)
        self._pairs = {
            peer: Pair(peer, self._pair_groups, *self._times)
            for peer in self._sides.peers[self._rank]
        }
        self._exchange = Background()
        self._exchanges = 0
        self._age = 0
        self._servers: dict[int, Background] = {}

    @property
    def topology(self) -> Topology:
        """The peers of each rank."""
        return self._topology

    @property
    def traffic(self) -> Traffic:
        """Traffic of this rank; its steps are exchanges."""
        return self._values.traffic

    @property
    def is_active(self) -> bool:
        """Whether this rank asks its peers, rather than answering them."""
        return self._sides.active[self._rank]

    # Training -----------------------------------------------------------------------------------

    def _before_step(self) -> None:
        self._serve()

    def _after_step(self) -> None:
        self._values.add(self._read() - self._shown)
        if self.is_active:
            self._ask()
        for server in self._servers.values():
            server.check()
        self._show()

    def _show(self) -> None:
        self._shown = self._values.read()
        self._write(self._shown)

    def _ask(self) -> None:
        if self._exchange.busy:
            self._age += 1
            if not self._exchange.done and self._age <= self._synch_freq:
                return
            self._exchange.finish()
        pair = self._pairs[self._sides.choose(self._rank, self._exchanges, self._seed)]
        self._exchanges += 1
        self._age = 0

        def exchange() -> None:
            question = self._values.ask()
            self._values.take(question, pair.ask(question))

        self._exchange.begin(exchange)

    def _serve(self) -> None:
        """Start to answer, on a passive rank."""
        if self.is_active or self._servers:
            return
        nbytes = self._shown.nbytes
        for peer, pair in self._pairs.items():
            server = self._servers[peer] = Background()
            server.begin(partial(pair.serve, nbytes, self._values.answer))

    def synchronize(self) -> None:
        """End all exchanges; see `DecentralizedModule`."""
        if self.is_active:
            if self._exchange.busy:
                self._exchange.finish()
            for pair in self._pairs.values():
                pair.end()
        else:
            self._serve()
            for peer, server in self._servers.items():
                whom = partial("rank {}".format, peer)
                patiently(server.wait, "synchronize()", whom, *self._times)
                server.finish()
            self._servers.clear()
        agree(self._settings, self._control, "synchronize()")
        self._show()

    def close(self) -> None:
        """Give the process groups to a later module; see `DecentralizedModule`."""
        super().close()
        self._pair_groups.close()

    # Checkpoints --------------------------------------------------------------------------------

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The module's state, with the keys of the module itself."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load the module's state; call it before training, or after `synchronize`."""
        result = self.module.load_state_dict(*args, **kwargs)
        self._shown = self._read()
        self._values.write(self._shown)
        return result

    def gossip_state_dict(self) -> dict[str, Any]:
        """The number of exchanges that this rank has begun, which decides its next peers."""
        return {"exchanges": self._exchanges}

    def load_gossip_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a result of `gossip_state_dict`, after `load_state_dict`.

        Raises:
            StateError: ``state`` is not such a result.
        """
        if not isinstance(state, Mapping) or set(state) != {"exchanges"}:
            raise StateError(
                f"the state is {state!r:.80}; it must be a mapping with the key 'exchanges' alone, "
                "as gossip_state_dict returns"
            )
        exchanges = state["exchanges"]
        if not isinstance(exchanges, int) or isinstance(exchanges, bool) or exchanges < 0:
            raise StateError(
                f"the state's 'exchanges' is {exchanges!r:.80}; it must be a whole number, at "
                "least 0: load an earlier checkpoint"
            )
        self._exchanges = exchanges

    def _gossip_arrays(self) -> dict[str, Any]:
        return self.gossip_state_dict()

    def _continue_with(self, model: Mapping[str, torch.Tensor], gossip: Any) -> None:
        self.load_gossip_state_dict(gossip)
        self.load_state_dict(model)

    def _begin_with(self, model: Mapping[str, torch.Tensor], of_ranks: list[Any]) -> None:
        self._exchanges = 0
        self.load_state_dict(model)
