"""The interface that training needs of an engine: Horovod, BytePS or torch.distributed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from torch import Tensor

from gradcomp.config.schema import Config
from gradcomp.errors import ConfigError
from training.learners.base import Learner
from training.settings.gossip import GossipSettings
from training.settings.outer import OuterSettings
from training.settings.train import TrainSettings

__all__ = ["Engine"]


class Engine(ABC):
    """Carries a job's messages and averages its gradients; names and meaning as in Horovod.

    Attributes:
        name: the key for `training.engines.current.choose`.
        title: the name in messages to users.
        framework: the framework of the models that it trains.
        lost_rank: exceptions that its functions raise when another rank has ended.
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
        """Releases of its packages, by name."""

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
        """Compute with ``count`` threads, deterministically."""

    @abstractmethod
    def sum(self, tensor: Tensor, name: str) -> Tensor:
        """The sum over ranks."""

    @abstractmethod
    def allgather_object(self, value: Any, name: str) -> list[Any]:
        """The values of all ranks, in rank order; every rank must call it."""

    @abstractmethod
    def learner(self, settings: TrainSettings, compress: Config | None, classes: int) -> Learner:
        """The model of the task in ``settings`` with ``classes`` outputs, ready to train.

        Raises:
            GradcompError: the engine does not support these settings or this compression.
        """

    def outer_learner(
        self, settings: TrainSettings, outer: OuterSettings, compress: Config | None, classes: int
    ) -> Learner:
        """As `learner`, for training with outer steps.

        Raises:
            GradcompError: the engine has no outer steps, or does not support these settings.
        """
        raise ConfigError(
            f"outer: {self.title} with {self.framework} has no outer steps here; choose --framework "
            "torch with --engine horovod or torch, or remove the section"
        )

    def gossip_learner(
        self, settings: TrainSettings, gossip: GossipSettings, classes: int, steps_per_epoch: int
    ) -> Learner:
        """As `learner`, for training by gossip.

        Raises:
            GradcompError: the engine does not gossip, or does not support these settings.
        """
        raise ConfigError(
            f"gossip: {self.title} averages gradients over all ranks; add --engine torch, or "
            "remove the section"
        )

    def broadcast_object(self, value: Any, name: str) -> Any:
        """The value of rank 0; every rank must call it."""
        return self.allgather_object(value, name)[0]

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.allgather_object(None, "train.barrier")
