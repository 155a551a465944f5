"""What carries a job's messages and averages its gradients: Horovod, BytePS or DDP."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gradcomp.config import Config
from gradcomp.errors import ConfigError
from torch_compressors.gossip import DecentralizedModule
from training.gossip_settings import GossipSettings

__all__ = ["ENGINES", "Engine", "choose", "engine"]


class Engine(ABC):
    """The functions that training needs, with names and meaning as in Horovod.

    Attributes:
        name: what `choose` calls it.
        title: what users read.
        lost_rank: what its functions raise when another rank has ended.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    lost_rank: ClassVar[tuple[type[Exception], ...]] = ()

    @abstractmethod
    def init(self) -> None:
        """Find the other ranks."""

    @abstractmethod
    def version(self) -> str:
        """Which release of it this is."""

    @abstractmethod
    def rank(self) -> int:
        """This rank, in [0, size)."""

    @abstractmethod
    def size(self) -> int:
        """Number of ranks."""

    @abstractmethod
    def local_size(self) -> int:
        """Number of ranks on this host."""

    @abstractmethod
    def sum(self, tensor: Tensor, name: str) -> Tensor:
        """The sum over ranks."""

    @abstractmethod
    def allgather_object(self, value: Any, name: str) -> list[Any]:
        """What each rank has given, in rank order."""

    @abstractmethod
    def broadcast_parameters(self, state: Mapping[str, Tensor]) -> None:
        """Give all ranks the tensors of rank 0."""

    @abstractmethod
    def compression(self, config: Config, trained: nn.Module, inner: torch.optim.Optimizer) -> Any:
        """The compression of a model's gradients, for `optimizer`; None where nothing is sent.

        Args:
            trained: what `trained` made of the model.
            inner: the optimizer of one rank.
        """

    @abstractmethod
    def optimizer(
        self, inner: torch.optim.Optimizer, model: nn.Module, compression: Any
    ) -> torch.optim.Optimizer:
        """The stock distributed optimizer."""

    @abstractmethod
    def momentum_free_sgd(self) -> type[torch.optim.SGD]:
        """The SGD for specs that apply the momentum themselves."""

    def decentralized(
        self, model: nn.Module, settings: GossipSettings, seed: int, steps_per_epoch: int
    ) -> DecentralizedModule:
        """What training steps call in the model's place where ranks gossip.

        Raises:
            ConfigError: this engine averages gradients alone.
        """
        raise ConfigError(
            f"gossip: {self.title} averages gradients over all ranks; add --engine torch, or "
            "remove the section"
        )

    def trained(self, model: nn.Module) -> nn.Module:
        """What training steps call in the model's place."""
        return model

    def broadcast_object(self, value: Any, name: str) -> Any:
        """What rank 0 has given."""
        return self.allgather_object(value, name)[0]

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.allgather_object(None, "train.barrier")


ENGINES: Sequence[str] = ("horovod", "byteps", "torch")
"""What `choose` takes."""

_chosen: Engine | None = None


def choose(name: str) -> None:
    """Take one of `ENGINES` for this process; to be called once, before `engine`."""
    global _chosen
    module = importlib.import_module(f"training.{name}_engine")
    _chosen = module.ENGINE


def engine() -> Engine:
    """The engine of this process: Horovod, unless another was chosen."""
    if _chosen is None:
        choose("horovod")
    assert _chosen is not None
    return _chosen
