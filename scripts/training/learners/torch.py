"""Learning in PyTorch, and the part of an engine that it needs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from gradcomp.config.schema import Config
from training.engines.base import Engine
from training.learners.base import Learner, State, Sums
from training.settings.train import TrainSettings
from training.tasks.catalog import task_of
from training.tasks.data import Batch

__all__ = ["TorchEngine", "TorchLearner"]


class TorchEngine(Engine):
    """An engine that averages the gradients of PyTorch modules."""

    @abstractmethod
    def broadcast_parameters(self, state: Mapping[str, Tensor]) -> None:
        """Give all ranks the tensors of rank 0."""

    @abstractmethod
    def compression(self, config: Config, trained: nn.Module, inner: torch.optim.Optimizer) -> Any:
        """The compression of a model's gradients, for `optimizer`; None where nothing is sent.

        Args:
            trained: the result of `trained` for the model.
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

    def trained(self, model: nn.Module) -> nn.Module:
        """The module that training steps call instead of ``model``."""
        return model

    def use_threads(self, count: int) -> None:
        """See `Engine`."""
        torch.set_num_threads(count)
        torch.use_deterministic_algorithms(True)

    def learner(self, settings: TrainSettings, compress: Config | None, classes: int) -> Learner:
        """See `Engine`."""
        return TorchLearner(self, settings, compress, classes)


class TorchLearner(Learner):
    """A module under the stock distributed optimizer."""

    def __init__(
        self,
        engine: TorchEngine,
        settings: TrainSettings,
        compress: Config | None,
        classes: int,
        trained: Callable[[nn.Module], nn.Module] | None = None,
    ) -> None:
        """``trained``: makes the module called instead of the model; None: the engine's."""
        self._engine = engine
        torch.manual_seed(settings.seed)
        self._model = task_of(settings).model(classes)
        self._trained = (trained or engine.trained)(self._model)
        sgd = torch.optim.SGD
        if compress is not None and compress.momentum_correction is not None:
            sgd = engine.momentum_free_sgd()
        inner = sgd(
            self._model.parameters(),
            lr=settings.lr,
            momentum=settings.momentum,
            nesterov=settings.nesterov,
            weight_decay=settings.weight_decay,
        )
        self._optimizer = self._distributed(inner, compress)
        self._loss = torch.zeros(())

    def _distributed(
        self, inner: torch.optim.Optimizer, compress: Config | None
    ) -> torch.optim.Optimizer:
        """The optimizer that ``step`` calls; sets `compression`."""
        if compress is not None:
            self.compression = self._engine.compression(compress, self._trained, inner)
        return self._engine.optimizer(inner, self._model, self.compression)

    @property
    def numel(self) -> int:
        """See `Learner`."""
        return sum(p.numel() for p in self._model.parameters() if p.requires_grad)

    @contextmanager
    def _common(self) -> Iterator[nn.Module]:
        """The model with parameters common to all ranks; every rank must enter."""
        yield self._model

    def parameters(self) -> dict[str, npt.NDArray[Any]]:
        """See `Learner`."""
        with self._common() as model:
            named = model.named_parameters()
            return {
                name: parameter.detach().clone().contiguous().numpy() for name, parameter in named
            }

    def broadcast(self) -> None:
        """See `Learner`."""
        self._engine.broadcast_parameters(self._model.state_dict())
        # The engines' broadcast_optimizer_state would first take a step with zero gradients, which
        # decays the weights and fills the momentum buffers.
        state = self._engine.broadcast_object(self._optimizer.state_dict(), name="train.sgd")
        self._optimizer.load_state_dict(state)

    def forward(self, batch: Batch) -> float:
        """See `Learner`."""
        self._optimizer.zero_grad()
        self._loss = functional.cross_entropy(self._trained(batch.inputs), batch.classes)
        return self._loss.item()

    def step(self, lr: float) -> None:
        """See `Learner`."""
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()

    def test(self, batches: Iterable[Batch]) -> Sums:
        """See `Learner`."""
        self._average_buffers()
        right = nats = predictions = 0.0
        with self._common() as model, torch.inference_mode():
            model.eval()
            for batch in batches:
                scores = model(batch.inputs)
                right += float((scores.argmax(dim=1) == batch.classes).sum())
                nats += float(functional.cross_entropy(scores, batch.classes, reduction="sum"))
                predictions += batch.classes.numel()
        self._model.train()
        return Sums(right, nats, predictions)

    def state_dict(self) -> State:
        """See `Learner`."""
        with self._common() as model:
            common = {name: value.clone() for name, value in model.state_dict().items()}
        return {"model": common, "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Learner`."""
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])

    def own_state(self) -> State:
        """The running statistics of normalisation layers."""
        return {"buffers": dict(self._model.named_buffers())}

    def load_own_state(self, state: Mapping[str, Any], *, same_world: bool) -> None:
        """See `Learner`."""
        for name, buffer in self._model.named_buffers():
            buffer.copy_(state["buffers"][name])

    def _average_buffers(self) -> None:
        """Average the running statistics, which each rank has gathered alone."""
        for name, buffer in self._model.named_buffers():
            if buffer.is_floating_point():
                mean = self._engine.sum(buffer, f"train.buffer.{name}") / self._engine.size()
                buffer.copy_(mean)
