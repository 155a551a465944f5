"""Training with outer steps: each rank trains alone, and ranks average their changes at times."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from gradcomp.config.schema import Config
from training.learners.base import State
from training.learners.torch import TorchEngine, TorchLearner
from training.settings.outer import OuterSettings
from training.settings.train import TrainSettings

__all__ = ["OuterLearner"]


class OuterLearner(TorchLearner):
    """A module with an optimizer of its own, and ``OuterStep``; tests take the common parameters.

    Args:
        make: the adapter's ``OuterStep``.
    """

    def __init__(
        self,
        engine: TorchEngine,
        make: Callable[..., Any],
        settings: TrainSettings,
        outer: OuterSettings,
        compress: Config | None,
        classes: int,
    ) -> None:
        self._make, self._outer = make, outer
        super().__init__(engine, settings, compress, classes, lambda model: model)

    def _distributed(
        self, inner: torch.optim.Optimizer, compress: Config | None
    ) -> torch.optim.Optimizer:
        config = compress or Config.from_spec("identity")
        self.compression = self._make(config, self._model, **self._outer.arguments())
        return inner

    @property
    def agrees(self) -> bool:
        """See `Learner`: between exchanges no rank waits for another."""
        exchanges: bool = self.compression.exchanges_next
        return exchanges

    @contextmanager
    def _common(self) -> Iterator[nn.Module]:
        """The model as it was after the last outer step."""
        with self.compression.common():
            yield self._model

    def broadcast(self) -> None:
        """Nothing to do: ``OuterStep`` has made the models equal, and optimizers are the ranks' own."""

    def step(self, lr: float) -> None:
        """See `Learner`."""
        super().step(lr)
        self.compression.step()

    def own_state(self) -> State:
        """Buffers, and the optimizer of this rank; the compressor's state has its parameters."""
        return {**super().own_state(), "optimizer": self._optimizer.state_dict()}

    def load_own_state(self, state: Mapping[str, Any], *, same_world: bool) -> None:
        """See `Learner`; in another world all ranks go on with the optimizer of rank 0."""
        super().load_own_state(state, same_world=same_world)
        if same_world:
            self._optimizer.load_state_dict(state["optimizer"])
