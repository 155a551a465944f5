"""Training by gossip: each rank has a model of its own, and what is tested is their average."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from torch_compressors.gossip import DecentralizedModule
from training.engine import engine

__all__ = ["Gossip"]


class Gossip:
    """A model that ranks train together by gossip, its optimizer, and their states."""

    def __init__(self, trained: DecentralizedModule, optimizer: torch.optim.Optimizer) -> None:
        """Gossip after each step of the optimizer."""
        self._trained = trained
        self._optimizer = trained.attach(optimizer)

    @property
    def sent_bytes(self) -> int:
        """What this rank has sent so far: to peers, and inside of its machine."""
        return (self._trained.traffic.bits + self._trained.node_traffic.bits) // 8

    @contextmanager
    def average(self) -> Iterator[nn.Module]:
        """The model with the average of all ranks, for a while; every rank must enter."""
        with self._trained.averaged() as model:
            yield model

    def distance(self) -> float:
        """How far ranks are from their average; every rank must call it."""
        self._trained.synchronize()
        return self._trained.consensus_distance()

    def state(self) -> dict[str, Any]:
        """What this rank alone has; every rank must call it."""
        self._trained.synchronize()
        return {
            "model": self._trained.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "gossip": self._trained.gossip_state_dict(),
        }

    def restore(self, state: dict[str, Any] | None) -> None:
        """Take up a state of this rank; None: the model's parameters are new ones of all ranks."""
        if state is None:
            self._trained.load_state_dict(self._trained.state_dict())
            return
        self._trained.load_state_dict(state["model"])
        self._trained.load_gossip_state_dict(state["gossip"])
        self._optimizer.load_state_dict(state["optimizer"])

    def summary(self, steps: int) -> dict[str, float]:
        """Means over ranks, of the steps that this process has taken; every rank must call it."""
        traffic = self._trained.traffic
        own = torch.tensor([traffic.bits, self._trained.node_traffic.bits, traffic.messages])
        bits, node_bits, messages = engine().sum(own.double(), "train.gossip").tolist()
        count = engine().size() * max(steps, 1)
        return {
            "bits_per_step": bits / count,
            "node_bits_per_step": node_bits / count,
            "messages_per_step": messages / count,
        }
