"""What learns: a model, its optimizer, and the compression of its gradients, in one framework."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy.typing as npt

from training.tasks.data import Batch

__all__ = ["Learner", "State", "Sums"]

State = dict[str, Any]


class Sums(NamedTuple):
    """What a rank has found in its share of the test samples.

    Attributes:
        right: right predictions.
        nats: their cross-entropies, in all.
        predictions: how many there were.
    """

    right: float
    nats: float
    predictions: float


class Learner(ABC):
    """One rank's part of the model; all ranks make one and call its methods alike.

    Attributes:
        compression: what compresses gradients and counts bytes; None where nothing does.
    """

    compression: Any = None

    @property
    def sent_bytes(self) -> int | None:
        """What this rank has handed to collectives or to its peers so far; None: nobody counts, as
        gradients travel uncompressed."""
        return None if self.compression is None else int(self.compression.stats.total_bytes)

    @property
    @abstractmethod
    def numel(self) -> int:
        """Elements of all parameters."""

    @abstractmethod
    def parameters(self) -> dict[str, npt.NDArray[Any]]:
        """What is trained, by name: the same on every rank, and every rank must ask."""

    @abstractmethod
    def broadcast(self) -> None:
        """Give all ranks the model and the optimizer of rank 0."""

    @abstractmethod
    def forward(self, batch: Batch) -> float:
        """The mean loss of a batch, from which `step` goes on."""

    @abstractmethod
    def step(self, lr: float) -> None:
        """Average the gradients of the last `forward` over the ranks, and apply them."""

    @abstractmethod
    def test(self, batches: Iterable[Batch]) -> Sums:
        """Test on this rank's share of the samples; every rank must."""

    @abstractmethod
    def state_dict(self) -> State:
        """Model and optimizer, which are the same on every rank; of tensors of torch."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what `state_dict` gave; other keys may be there too."""

    @abstractmethod
    def own_state(self) -> State:
        """What this rank alone has of the model, with tensors of torch."""

    @abstractmethod
    def load_own_state(self, state: Mapping[str, Any], *, same_world: bool) -> None:
        """Take up what `own_state` gave; other keys may be there too.

        Args:
            same_world: this rank gave it, among as many ranks as there are now.
        """

    def consensus_distance(self) -> float | None:
        """How far ranks are from their average; None where they have one model. Every rank must
        call it."""
        return None

    def summary(self, steps: int) -> dict[str, Any]:
        """Figures of this way to learn alone, over the steps of this process; every rank must call
        it."""
        return {}

    def compressor_state(self) -> State | None:
        """This rank's compressor, with tensors of torch."""
        return None if self.compression is None else self.compression.state_dict()

    def load_compressor_state(self, state: State | Sequence[State]) -> None:
        """Take up this rank's state, or those of all ranks of another world size."""
        if self.compression is not None:
            self.compression.load_state_dict(state)
