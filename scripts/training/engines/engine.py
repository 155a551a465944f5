"""What carries a job's messages and averages its gradients: Horovod, BytePS or DDP."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from torch import Tensor

from gradcomp.config.schema import Config
from gradcomp.errors import ConfigError
from training.learners.learner import Learner
from training.settings.gossip import GossipSettings
from training.settings.train import TrainSettings

__all__ = ["Engine", "choose", "engine"]


class Engine(ABC):
    """The functions that training needs, with names and meaning as in Horovod.

    Attributes:
        name: what `choose` calls it.
        title: what users read.
        framework: of the models that it trains.
        lost_rank: what its functions raise when another rank has ended.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    framework: ClassVar[str] = "torch"
    lost_rank: ClassVar[tuple[type[Exception], ...]] = ()

    @abstractmethod
    def init(self) -> None:
        """Find the other ranks."""

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """Which releases it consists of, by package."""

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
    def use_threads(self, count: int) -> None:
        """Compute with so many threads, and always the same."""

    @abstractmethod
    def sum(self, tensor: Tensor, name: str) -> Tensor:
        """The sum over ranks."""

    @abstractmethod
    def allgather_object(self, value: Any, name: str) -> list[Any]:
        """What each rank has given, in rank order."""

    @abstractmethod
    def learner(self, settings: TrainSettings, compress: Config | None, classes: int) -> Learner:
        """A task's model, and how it learns.

        Raises:
            GradcompError: it cannot be had with these settings, or with this compression.
        """

    def gossip_learner(
        self, settings: TrainSettings, gossip: GossipSettings, classes: int, steps_per_epoch: int
    ) -> Learner:
        """The same where ranks gossip.

        Raises:
            GradcompError: this engine averages gradients alone, or cannot gossip so.
        """
        raise ConfigError(
            f"gossip: {self.title} averages gradients over all ranks; add --engine torch, or "
            "remove the section"
        )

    def broadcast_object(self, value: Any, name: str) -> Any:
        """What rank 0 has given."""
        return self.allgather_object(value, name)[0]

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.allgather_object(None, "train.barrier")


_MODULES = {
    ("horovod", "torch"): "horovod",
    ("byteps", "torch"): "byteps",
    ("torch", "torch"): "torch",
    ("horovod", "tensorflow"): "tensorflow",
}

_chosen: Engine | None = None


def choose(name: str, framework: str) -> None:
    """Take an engine for this process; to be called once, before `engine`."""
    global _chosen
    module = importlib.import_module(f"training.engines.{_MODULES[name, framework]}")
    _chosen = module.ENGINE


def engine() -> Engine:
    """The engine of this process: Horovod for PyTorch, unless another was chosen."""
    if _chosen is None:
        choose("horovod", "torch")
    assert _chosen is not None
    return _chosen
