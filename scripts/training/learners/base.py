"""The interface of a learner: a model, its optimizer and its compression, in one framework."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy.typing as npt

from training.tasks.data import Batch

__all__ = ["Learner", "State", "Sums"]

State = dict[str, Any]


class Sums(NamedTuple):
    """The results of one rank on its share of the test samples.

    Attributes:
        right: number of right predictions.
        nats: sum of the cross-entropies of all predictions.
        predictions: number of predictions.
    """

    right: float
    nats: float
    predictions: float


class Learner(ABC):
    """One rank's part of the model; all ranks make one and call its methods alike.

    Attributes:
        compression: compresses gradients and counts bytes; None without compression.
    """

    compression: Any = None

    @property
    def sent_bytes(self) -> int | None:
        """Bytes that this rank has handed to collectives or to its peers so far.

        None where gradients travel uncompressed, as nothing counts them.
        """
        return None if self.compression is None else int(self.compression.stats.total_bytes)

    @property
    def agrees(self) -> bool:
        """Whether the ranks compare losses before the next step, as they exchange something in it."""
        return True

    @property
    @abstractmethod
    def numel(self) -> int:
        """Elements of all parameters."""

    @abstractmethod
    def parameters(self) -> dict[str, npt.NDArray[Any]]:
        """All parameters by name, the same on every rank; every rank must call it."""

    @abstractmethod
    def broadcast(self) -> None:
        """Give all ranks the model and the optimizer of rank 0."""

    @abstractmethod
    def forward(self, batch: Batch) -> float:
        """The mean loss of a batch; `step` uses its graph."""

    @abstractmethod
    def step(self, lr: float) -> None:
        """Average the gradients of the last `forward` over the ranks, and apply them."""

    @abstractmethod
    def test(self, batches: Iterable[Batch]) -> Sums:
        """Test on this rank's share of the samples; every rank must call it."""

    @abstractmethod
    def state_dict(self) -> State:
        """Model and optimizer, the same on every rank, as torch tensors."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a result of `state_dict`; ignores other keys."""

    @abstractmethod
    def own_state(self) -> State:
        """The part of the model that differs between ranks, as torch tensors."""

    @abstractmethod
    def load_own_state(self, state: Mapping[str, Any], *, same_world: bool) -> None:
        """Restore a result of `own_state`; ignores other keys.

        Args:
            same_world: the state is from this rank, in a job with as many ranks as now.
        """

    def consensus_distance(self) -> float | None:
        """Distance of the ranks' models from their average; None where they share one model.

        Every rank must call it.
        """
        return None

    def summary(self, steps: int) -> dict[str, Any]:
        """Figures that only this kind of learner has, over the ``steps`` of this process.

        Every rank must call it.
        """
        return {}

    def compressor_state(self) -> State | None:
        """The state of this rank's compressor, as torch tensors."""
        return None if self.compression is None else self.compression.state_dict()

    def load_compressor_state(self, state: State | Sequence[State]) -> None:
        """Restore this rank's state, or the states of all ranks of another world size."""
        if self.compression is not None:
            self.compression.load_state_dict(state)
