"""Decentralized training: each rank has its own model, and ranks gossip about parameters."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from gradcomp.adapter_api import FloatArray, GossipRound, Node
from gradcomp.errors import GradcompError, StateError
from gradcomp.gossip import Gossip, Topology, Traffic, topology_at
from torch_compressors.gossip.agreement import agree, setting_text
from torch_compressors.gossip.background import Background
from torch_compressors.gossip.checkpoints import with_arrays, with_tensors
from torch_compressors.gossip.module import DecentralizedModule
from torch_compressors.gossip.node import NodeRanks, agreed_node
from torch_compressors.gossip.options import GossipOptions
from torch_compressors.gossip.transport import Transport, naming_the_lost

__all__ = ["GossipDataParallel"]


class GossipDataParallel(DecentralizedModule):
    """A module that mixes its parameters with those of a few peers after each optimizer step.

    `attach` sets the optimizer. Between steps the module has the parameters for gradients,
    evaluation and saving; with push-sum they are de-biased. At the beginning all ranks take the
    parameters and buffers of rank 0. Buffers, such as running statistics, then differ between
    ranks; `averaged` averages them, too.

    Algorithms, with x the parameters after the optimizer's step:

    - ``dpsgd``: D-PSGD, Lian et al. (NeurIPS 2017): `gradcomp.gossip.SimpleGossip`;
    - ``sgp``: Stochastic Gradient Push, Assran et al. (ICML 2019), algorithm 1:
      `gradcomp.gossip.PushSum`;
    - ``osgp``: Overlap SGP, the same authors' algorithm 2: ``sgp`` with ``overlap``;
    - ``quantized_push_sum``: Taheri et al. (ICML 2020): `gradcomp.gossip.QuantizedPushSum`;
    - ``powergossip``, ``choco``, ``deepsqueeze``, ``moniqua``: the classes of `gradcomp.gossip`.

    With ``overlap`` a round runs on a thread during the next step. Its change is added at its end:
    x += mixed - x_begin, with x_begin the values at its beginning. Deviation from Overlap SGP: sent
    values leave x when received ones arrive, not before, so messages in flight never bias x / w.

    Args:
        module: parameters that require gradients must be floating; they are mixed in float32.
        settings: by name, those of `GossipOptions`, such as ``algorithm``, ``topology``, ``overlap``
            and ``timeout``, and keywords of the algorithm, such as ``gamma``, ``codec`` and
            ``compression_rank``.

    Every rank must make the same number of optimizer steps. Ranks compare their arguments, models
    and, unless ``synch_freq`` is above 0, numbers of rounds at the beginning, in the first step
    after a load, and in `synchronize`.

    Raises:
        GradcompError: a name, number or topology is not allowed; the message gives the remedy.
        ProtocolError: on all ranks, if their models or arguments differ.
        ConfigError: with ``two_level``, the ranks do not form equal nodes.
    """

    def __init__(self, module: nn.Module, **settings: Any) -> None:
        options = GossipOptions.of(**settings)
        super().__init__(module, options.timeout, options.retries, options.compared())
        options.check()
        self._options = options
        self._check_replicas_every = options.check_replicas_every
        self._node = Node.of(dist.get_rank(), dist.get_world_size(), 1)
        if options.two_level:
            self._node = agreed_node(options.ranks_per_node, self._control)
        self._topologies = options.topologies(self._node.count)
        self._gossip = self._make_gossip(self._topologies[0])
        self._node_ranks = NodeRanks(self._node, self._limit)
        leaders = range(0, dist.get_world_size(), self._node.size)
        self._transport = Transport(leaders, timeout=options.timeout, retries=options.retries)
        self._background = Background()
        self._begun = 0
        self._steps = 0
        self._is_compared = False
        self._age = 0
        self._weight = 1.0
        # x, if it differs from the module's parameters.
        self._numerator: FloatArray | None = None
        self._before = self._mixed = np.empty(0, np.float32)
        self._take_over_rank_0()

    def _make_gossip(self, topology: Topology) -> Gossip:
        shapes = {
            name: tuple(parameter.shape) for name, parameter in self._parameters_by_name.items()
        }
        return self._options.gossip(topology, self._node.index, shapes)

    def _compare(self, where: str) -> None:
        """Compare settings and progress over all ranks."""
        agree(lambda: self._settings() | self._progress(), self._control, where, self._node.size)
        self._is_compared = True

    def _progress(self) -> dict[str, Any]:
        found: dict[str, Any] = {"topologies": setting_text(self._topologies)}
        if self._options.synch_freq == 0:
            # Only the first rank of a node counts them.
            found["rounds"] = self._begun if self._node.leads else None
        return found

    # Training -----------------------------------------------------------------------------------

    def _before_step(self) -> None:
        """Let the optimizer step on x, not on x / w, with the gradients of the node."""
        if not self._is_compared:
            self._compare("the first step")
        if self._check_replicas_every and self._steps % self._check_replicas_every == 0:
            self._node_ranks.check_equal(
                self.module.named_parameters(), f"before step {self._steps}"
            )
        self._node_ranks.average_gradients(self._parameters_by_name.values())
        if self._weight == 1.0:
            return
        self._numerator = self._current()
        self._write(self._numerator)

    def _after_step(self) -> None:
        x = self._read()
        self._share(self._gossiped(x) if self._node.leads else x)
        self._steps += 1

    def _gossiped(self, x: FloatArray) -> FloatArray:
        """x after the gossip of this step."""
        if not self._options.overlaps:
            self._transport.run(self._next_round(x))
            self._take_weight()
            return x
        if self._background.busy:
            self._age += 1
            if not self._background.done and self._age <= self._options.synch_freq:
                return x
        x = self._finished(x)
        self._begin(x)
        return x

    def _next_round(self, x: FloatArray) -> GossipRound:
        topology = topology_at(self._topologies, self._begun)
        if topology is not self._gossip.topology:
            self._gossip.change_topology(topology)
        self._begun += 1
        return self._gossip.round(x)

    def _begin(self, x: FloatArray) -> None:
        self._before, self._mixed = x.copy(), x.copy()
        self._age = 0
        round_ = self._next_round(self._mixed)
        self._background.begin(lambda: self._transport.run(round_))

    def _finished(self, x: FloatArray) -> FloatArray:
        """x plus the change of the round in flight, after waiting for its end."""
        if not self._background.busy:
            return x
        self._background.finish()
        self._take_weight()
        return x + (self._mixed - self._before)

    def _share(self, x: FloatArray) -> None:
        """Write x / w of the node's first rank to the modules of all its ranks."""
        x, self._weight = self._node_ranks.of_first(x, self._weight)
        if not self._node.leads:
            self._gossip.weight = self._weight
        self._show(x)

    def _current(self) -> FloatArray:
        """x."""
        if self._numerator is not None:
            return self._numerator
        return self._read() * np.float32(self._weight)

    def _take_weight(self) -> None:
        self._weight = self._gossip.weight

    def _show(self, x: FloatArray) -> None:
        """Write x / w to the module."""
        if self._weight == 1.0:
            self._numerator = None
            self._write(x)
        else:
            self._numerator = x
            self._write(x / np.float32(self._weight))

    # State for callers --------------------------------------------------------------------------

    @property
    def topology(self) -> Topology:
        """The current topology: the peers of each rank."""
        return self._gossip.topology

    @property
    def traffic(self) -> Traffic:
        """Traffic of this rank with peers."""
        return self._gossip.traffic

    @property
    def node_traffic(self) -> Traffic:
        """Traffic of this rank inside its node, with ``two_level``; see `NodeRanks`."""
        return self._node_ranks.traffic

    @property
    def weight(self) -> float:
        """w of push-sum; 1 for other algorithms."""
        return self._weight

    def set_topology(self, topology: Topology) -> None:
        """Continue with another topology, such as one with more peers per step.

        Every rank must call this, at the same step.

        Raises:
            GradcompError: ``synch_freq`` is above 0, so that ranks may be some rounds apart, or the
                algorithm does not allow the topology.
        """
        if self._options.synch_freq:
            raise GradcompError(
                f"synch_freq is {self._options.synch_freq}, so ranks may be some rounds apart; with "
                "0 the topology can change"
            )
        self._share(self._finished(self._current()))
        self._gossip.change_topology(topology)
        self._topologies = {0: topology}
        self._is_compared = False

    def synchronize(self) -> None:
        """End all rounds that any rank has begun; see `DecentralizedModule`.

        Every rank must call this, at the same step.
        """
        x = self._current()
        if self._options.synch_freq:
            x = self._serve(x)
        self._compare("synchronize()")
        # With bounded staleness ranks may be some rounds apart.
        begun = torch.tensor([self._begun], dtype=torch.int64, device="cpu")
        with naming_the_lost("synchronize()"), self._control.request() as group:
            dist.all_reduce(begun, dist.ReduceOp.MAX, group)
        x = self._finished(x)
        while self._node.leads and self._begun < int(begun):
            self._begin(x)
            x = self._finished(x)
        if self._options.overlaps:
            self._share(x)
        self._barrier()

    def close(self) -> None:
        """Give the process groups to a later module; see `DecentralizedModule`."""
        super().close()
        self._node_ranks.close()
        self._transport.close()

    def _serve(self, x: FloatArray) -> FloatArray:
        """Gossip until all ranks have arrived, because some may still wait for this rank's rounds."""
        arrival = Background()
        arrival.begin(self._barrier)
        while self._node.leads and not arrival.done:
            if self._background.done or not self._background.busy:
                x = self._finished(x)
                self._begin(x)
            time.sleep(0.001)
        arrival.finish()
        return x

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The module's state, with de-biased parameters; it does not wait for other ranks.

        Keys are those of the module itself, which can load the state without this wrapper.
        """
        if self._background.busy and self._options.synch_freq == 0 and self._node.size == 1:
            self._show(self._finished(self._current()))
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load the module's state."""
        if self._background.busy:
            self._background.finish()
        self._numerator = None
        return self.module.load_state_dict(*args, **kwargs)

    def gossip_state_dict(self) -> dict[str, Any]:
        """State of this rank's algorithm: numbers, texts and tensors.

        It belongs to this rank's `state_dict` of the same step; call `synchronize` before both.
        ``numerator`` is x, flat, where w is not 1: x / w times w would be rounded.
        """
        return with_tensors(self._gossip_arrays())

    def load_gossip_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a result of `gossip_state_dict`, after `load_state_dict`.

        Raises:
            StateError: the state is not of this algorithm, module and topology.
        """
        if self._background.busy:
            raise StateError(
                "a round is in flight: load states before training, or after synchronize()"
            )
        arrays = with_arrays(state)
        numerator = None
        if isinstance(arrays, Mapping) and "numerator" in arrays:
            numerator = self._checked_numerator(arrays["numerator"])
            arrays = {key: value for key, value in arrays.items() if key != "numerator"}
        self._gossip.load_state_dict(arrays)
        self._begun = self._gossip.step
        self._take_weight()
        self._numerator = numerator if self._weight != 1.0 else None
        self._is_compared = False

    def _checked_numerator(self, value: Any) -> FloatArray:
        size = sum(parameter.numel() for parameter in self._parameters_by_name.values())
        is_float = isinstance(value, np.ndarray) and value.dtype == np.float32
        if not is_float or value.shape != (size,) or not np.isfinite(value).all():
            raise StateError(
                f"the state's 'numerator' is {value!r:.80}; it must be {size} finite numbers of "
                "float32: load an earlier checkpoint of the same model"
            )
        numerator: FloatArray = value.copy()
        return numerator

    def _gossip_arrays(self) -> dict[str, Any]:
        state = self._gossip.state_dict()
        if self._numerator is not None:
            state["numerator"] = self._numerator.copy()
        return state

    def _continue_with(self, model: Mapping[str, torch.Tensor], gossip: Any) -> None:
        self.load_gossip_state_dict(gossip)
        self.module.load_state_dict(model)

    def _begin_with(self, model: Mapping[str, torch.Tensor], of_ranks: list[Any]) -> None:
        found = [state.get("step") if isinstance(state, Mapping) else None for state in of_ranks]
        steps = [number for number in found if isinstance(number, int) and number >= 0]
        if len(steps) < len(of_ranks):
            raise StateError(
                f"the checkpoint's numbers of rounds are {found!r:.80}; they must be whole numbers, "
                "at least 0: load one that GossipDataParallel has saved"
            )
        step = max(steps)  # ranks inside nodes do not count
        fresh = self._make_gossip(topology_at(self._topologies, step))
        fresh.load_state_dict(fresh.state_dict() | {"step": step})
        fresh.traffic = self._gossip.traffic
        self._gossip = fresh
        self._begun = step
        self._weight = 1.0
        self._is_compared = False
        self.load_state_dict(model)

    @property
    def _ranks_per_node(self) -> int:
        return self._node.size
