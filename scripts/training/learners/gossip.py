"""Training by gossip: each rank has a model of its own, and tests take their average."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from torch_compressors.gossip import DecentralizedModule
from training.learners.base import State
from training.learners.torch import TorchEngine, TorchLearner
from training.settings.gossip import GossipSettings
from training.settings.train import TrainSettings

__all__ = ["GossipLearner"]


class GossipLearner(TorchLearner):
    """A module; its ranks gossip after each step of the optimizer."""

    def __init__(
        self,
        engine: TorchEngine,
        settings: TrainSettings,
        gossip: GossipSettings,
        classes: int,
        steps_per_epoch: int,
    ) -> None:
        def trained(model: nn.Module) -> nn.Module:
            self._gossip: DecentralizedModule = gossip.wrap(
                model, seed=settings.seed, steps_per_epoch=steps_per_epoch
            )
            return self._gossip

        super().__init__(engine, settings, None, classes, trained)
        self._optimizer = self._gossip.attach(self._optimizer)

    @property
    def sent_bytes(self) -> int:
        """Bytes that this rank has sent so far, to peers and inside its node."""
        return (self._gossip.traffic.bits + self._gossip.node_traffic.bits) // 8

    @contextmanager
    def _common(self) -> Iterator[nn.Module]:
        """The model with the average parameters of all ranks."""
        with self._gossip.averaged() as model:
            yield model

    def _average_buffers(self) -> None:
        """Nothing to do: `_common` averages buffers, too."""

    def consensus_distance(self) -> float:
        """See `Learner`."""
        self._gossip.synchronize()
        return self._gossip.consensus_distance()

    def own_state(self) -> State:
        """Everything: model, optimizer and state of gossip differ between ranks."""
        buffers = super().own_state()
        self._gossip.synchronize()
        gossip = {
            "model": self._gossip.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "gossip": self._gossip.gossip_state_dict(),
        }
        return {**buffers, "gossip": gossip}

    def load_own_state(self, state: Mapping[str, Any], *, same_world: bool) -> None:
        """See `Learner`.

        The state of gossip is about peers of the old job: in another world all ranks begin with
        the average instead.
        """
        super().load_own_state(state, same_world=same_world)
        if not same_world:
            self._gossip.load_state_dict(self._gossip.state_dict())
            return
        saved = state["gossip"]
        self._gossip.load_state_dict(saved["model"])
        self._gossip.load_gossip_state_dict(saved["gossip"])
        self._optimizer.load_state_dict(saved["optimizer"])

    def summary(self, steps: int) -> dict[str, Any]:
        """Means over ranks."""
        traffic = self._gossip.traffic
        counts = torch.tensor([traffic.bits, self._gossip.node_traffic.bits, traffic.messages])
        bits, node_bits, messages = self._engine.sum(counts.double(), "train.gossip").tolist()
        count = self._engine.size() * max(steps, 1)
        means = {
            "bits_per_step": bits / count,
            "node_bits_per_step": node_bits / count,
            "messages_per_step": messages / count,
        }
        return {"gossip": {"consensus_distance": self.consensus_distance(), **means}}
