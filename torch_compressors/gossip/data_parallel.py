"""Decentralized training: each rank has a model of its own, and ranks gossip about parameters."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from gradcomp.arrays import FloatArray
from gradcomp.errors import GradcompError, StateError
from gradcomp.gossip import PushSum, Topology, Traffic, make_gossip, make_topology
from torch_compressors.gossip.background import Background
from torch_compressors.gossip.transport import Transport

__all__ = ["GossipDataParallel"]

_ALIASES = {"dpsgd": "gossip", "sgp": "push_sum", "osgp": "push_sum"}


class GossipDataParallel(nn.Module):
    """A module whose parameters are mixed with those of a few peers after each optimizer step.

    `attach` says which optimizer's steps. Between steps the module's parameters are those to
    compute gradients at, to evaluate and to save: de-biased ones, where the algorithm is push-sum.
    At the beginning all ranks take the parameters and buffers of rank 0. Buffers, such as running
    statistics, then stay each rank's own; `averaged` has the average of them, too.

    Algorithms, with x the parameters after the optimizer's step:

    - ``dpsgd``: D-PSGD, Lian et al. (NeurIPS 2017): `gradcomp.gossip.SimpleGossip`;
    - ``sgp``: Stochastic Gradient Push, Assran et al. (ICML 2019), algorithm 1:
      `gradcomp.gossip.PushSum`;
    - ``osgp``: Overlap SGP, the same authors' algorithm 2: ``sgp`` with ``overlap``;
    - ``powergossip``, ``choco``, ``deepsqueeze``, ``moniqua``: the classes of `gradcomp.gossip`,
      whose keywords ``options`` are.

    With ``overlap`` a round runs on a thread, beside the next step, and what it changed is added
    when it has ended: x += mixed - x at the round's beginning. Deviation from Overlap SGP: what a
    rank sends leaves its x together with the arrival of what it gets, not before, so that x / w is
    never biased by messages under way.

    Args:
        module: parameters that require gradients must be floating; they are mixed in float32.
        algorithm: one of the above.
        topology: a name for `gradcomp.gossip.make_topology`, or a topology; by default ``npdde``
            for sgp and osgp, ``ring`` for the others.
        peers_per_step: for topologies by name that change.
        overlap: gossip while the next gradient is computed.
        synch_freq: with ``overlap``, how many further steps a rank may take while a round is under
            way, before it waits: bounded staleness. 0: it waits after the next one. Above 0 results
            depend on timing.
        seed: of topologies and algorithms; the same on every rank.
        timeout, retries: see `Transport`; a dead peer shows as `gradcomp.errors.PeerError`, raised
            by the optimizer's step.
        options: of the algorithm, such as ``gamma``, ``codec``, ``compression_rank``.

    Every rank must take equally many optimizer steps.

    Raises:
        GradcompError: a name, number or topology that does not fit; the message says what does.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        algorithm: str = "sgp",
        topology: str | Topology | None = None,
        peers_per_step: int = 1,
        overlap: bool = False,
        synch_freq: int = 0,
        seed: int = 0,
        timeout: float = 30.0,
        retries: int = 2,
        **options: Any,
    ) -> None:
        super().__init__()
        if not dist.is_initialized():
            raise GradcompError(
                "torch.distributed is not initialized: call "
                "torch.distributed.init_process_group() first, and start ranks with torchrun"
            )
        overlap = overlap or algorithm == "osgp"
        if synch_freq < 0 or (synch_freq and not overlap):
            raise GradcompError(
                f"synch_freq is {synch_freq}; it must be at least 0, and above 0 with overlap=True "
                "alone"
            )
        self.module = module
        self._parameters_by_name = {
            name: one for name, one in module.named_parameters() if one.requires_grad
        }
        for name, one in self._parameters_by_name.items():
            if not one.is_floating_point():
                raise GradcompError(f"parameter '{name}' is of {one.dtype}; it must be floating")
        rank, world_size = dist.get_rank(), dist.get_world_size()
        name = _ALIASES.get(algorithm, algorithm)
        if name in ("choco", "deepsqueeze", "moniqua", "powergossip"):
            options = {"seed": seed, **options}
        if topology is None:
            topology = "npdde" if name == "push_sum" else "ring"
        if isinstance(topology, str):
            topology = make_topology(topology, world_size, peers_per_step=peers_per_step, seed=seed)
        if topology.world_size != world_size:
            raise GradcompError(
                f"'{topology.name}' is for {topology.world_size} ranks, and the job has "
                f"{world_size}"
            )
        shapes = {name: tuple(one.shape) for name, one in self._parameters_by_name.items()}
        try:
            self._gossip = make_gossip(name, topology, rank, shapes, **options)
        except ValueError as error:
            raise GradcompError(str(error)) from error
        self._overlap = overlap
        self._synch_freq = synch_freq
        self._transport = Transport(timeout=timeout, retries=retries)
        limit = timedelta(seconds=timeout * (retries + 1))
        self._control = dist.new_group(backend="gloo", timeout=limit)
        self._background = Background()
        self._begun = 0
        self._age = 0
        self._weight = 1.0
        # x, where it is not what the module has.
        self._numerator: FloatArray | None = None
        self._before = self._mixed = np.empty(0, np.float32)
        self._attached = False
        self._take_over_rank_0()

    # Training -----------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's."""
        return self.module(*args, **kwargs)

    def attach(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Gossip after each step of this optimizer of the module's parameters; returns it.

        Raises:
            GradcompError: an optimizer is attached already.
        """
        if self._attached:
            raise GradcompError(
                "an optimizer is attached already: give one optimizer several parameter groups"
            )
        self._attached = True
        optimizer.register_step_pre_hook(lambda *_: self._bias())
        optimizer.register_step_post_hook(lambda *_: self._after_step())
        return optimizer

    def _bias(self) -> None:
        """The optimizer works on x, not on x / w."""
        if self._weight == 1.0:
            return
        if self._numerator is None:
            self._numerator = self._read() * np.float32(self._weight)
        self._write(self._numerator)

    def _after_step(self) -> None:
        x = self._read()
        if self._overlap:
            if self._background.busy:
                self._age += 1
                if not self._background.done and self._age <= self._synch_freq:
                    self._show(x)
                    return
                x += self._finished()
            self._begin(x)
        else:
            self._begun += 1
            self._transport.run(self._gossip.round(x))
            self._take_weight()
        self._show(x)

    def _begin(self, x: FloatArray) -> None:
        self._before, self._mixed = x.copy(), x.copy()
        self._age = 0
        self._begun += 1
        one = self._gossip.round(self._mixed)
        self._background.begin(lambda: self._transport.run(one))

    def _finished(self) -> FloatArray:
        """What the round that is under way changes."""
        self._background.finish()
        self._take_weight()
        return self._mixed - self._before

    def _take_weight(self) -> None:
        if isinstance(self._gossip, PushSum):
            self._weight = self._gossip.weight

    def _show(self, x: FloatArray) -> None:
        """Let the module have x / w."""
        if self._weight == 1.0:
            self._numerator = None
            self._write(x)
        else:
            self._numerator = x
            self._write(x / np.float32(self._weight))

    def _apply_finished(self) -> None:
        if self._background.busy:
            x = self._numerator if self._numerator is not None else self._read()
            self._show(x + self._finished())

    def _read(self) -> FloatArray:
        """A copy of the module's parameters, flat."""
        parts = [one.detach().reshape(-1).float() for one in self._parameters_by_name.values()]
        if not parts:
            return np.empty(0, np.float32)
        flat: FloatArray = torch.cat(parts).cpu().numpy()
        return flat

    @torch.no_grad()
    def _write(self, flat: FloatArray) -> None:
        values = torch.from_numpy(flat)
        begin = 0
        for one in self._parameters_by_name.values():
            one.copy_(values[begin : begin + one.numel()].view_as(one))
            begin += one.numel()

    # What others look at ------------------------------------------------------------------------

    @property
    def topology(self) -> Topology:
        """Who exchanges with whom."""
        return self._gossip.topology

    @property
    def traffic(self) -> Traffic:
        """What this rank has sent."""
        return self._gossip.traffic

    @property
    def weight(self) -> float:
        """w of push-sum; 1 for other algorithms."""
        return self._weight

    def set_topology(self, topology: Topology) -> None:
        """Go on with another one, such as one of more peers a step; every rank must call this, at
        the same step.

        Raises:
            GradcompError: ``synch_freq`` is above 0, so that ranks may be some rounds apart, or the
                algorithm does not take the topology.
        """
        if self._synch_freq:
            raise GradcompError(
                f"synch_freq is {self._synch_freq}, so ranks may be some rounds apart; with 0 the "
                "topology can change"
            )
        self._apply_finished()
        self._gossip.change_topology(topology)

    def synchronize(self) -> None:
        """End all rounds that any rank has begun; every rank must call this, at the same step.

        To be called before a checkpoint and at the end of training, so that no rank leaves while
        others wait for it.
        """
        if self._synch_freq:
            self._serve()
        # Ranks of bounded staleness may be some rounds apart.
        begun = torch.tensor([self._begun])
        dist.all_reduce(begun, dist.ReduceOp.MAX, self._control)
        self._apply_finished()
        while self._begun < int(begun):
            self._begin(self._numerator if self._numerator is not None else self._read())
            self._apply_finished()
        dist.barrier(self._control)

    def _serve(self) -> None:
        """Gossip on until all ranks are here: some may still wait for rounds of this one."""
        arrival = Background()
        arrival.begin(lambda: dist.barrier(self._control))
        while not arrival.done:
            if self._background.done or not self._background.busy:
                self._apply_finished()
                self._begin(self._numerator if self._numerator is not None else self._read())
            time.sleep(0.001)
        arrival.finish()

    @contextmanager
    def averaged(self) -> Iterator[nn.Module]:
        """The module with the average of all ranks' parameters and floating buffers, for a while.

        Every rank must enter at the same step; afterwards each has its own values back.
        """
        self.synchronize()
        tensors: list[torch.Tensor] = [*self._parameters_by_name.values()]
        tensors += [one for one in self.module.buffers() if one.is_floating_point()]
        own = [one.detach().clone() for one in tensors]
        with torch.no_grad():
            for one in tensors:
                mean = one.detach().float().cpu()
                dist.all_reduce(mean, group=self._control)
                one.copy_(mean / dist.get_world_size())
        try:
            yield self.module
        finally:
            with torch.no_grad():
                for one, value in zip(tensors, own, strict=True):
                    one.copy_(value)

    def consensus_distance(self) -> float:
        """sqrt(mean over ranks of |x_i - mean|^2); every rank must call it, at the same step."""
        own = torch.from_numpy(self._read()).double()
        mean = own.clone()
        dist.all_reduce(mean, group=self._control)
        squares = (own - mean / dist.get_world_size()).square().sum().reshape(1)
        dist.all_reduce(squares, group=self._control)
        return float((squares / dist.get_world_size()).sqrt())

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The module's, with de-biased parameters; no rank waits for others in it.

        Keys are those of the module alone, so that it loads the state without this wrapper.
        """
        if self._synch_freq == 0:
            self._apply_finished()
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The module's."""
        if self._background.busy:
            self._background.finish()
        self._numerator = None
        return self.module.load_state_dict(*args, **kwargs)

    def gossip_state_dict(self) -> dict[str, Any]:
        """What this rank's algorithm must go on with: numbers and tensors.

        It belongs to this rank and to the `state_dict` of the same moment; call `synchronize`
        before both.
        """
        return _with_tensors(self._gossip.state_dict())

    def load_gossip_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a state of `gossip_state_dict`, after `load_state_dict`.

        Raises:
            StateError: it is not one of this algorithm, module and topology.
        """
        if self._background.busy:
            raise StateError("a round is under way: load states before training, or synchronize")
        self._gossip.load_state_dict(_with_arrays(state))
        self._begun = self._gossip.step
        self._numerator = None
        self._take_weight()

    def _take_over_rank_0(self) -> None:
        with torch.no_grad():
            for one in [*self.module.parameters(), *self.module.buffers()]:
                value = one.detach().cpu()
                dist.broadcast(value, 0, group=self._control)
                one.copy_(value)


def _with_tensors(state: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: {name: torch.from_numpy(array) for name, array in value.items()}
        if isinstance(value, dict)
        else value
        for key, value in state.items()
    }


def _with_arrays(state: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: {name: torch.as_tensor(one).cpu().numpy() for name, one in value.items()}
        if isinstance(value, Mapping)
        else value
        for key, value in state.items()
    }
