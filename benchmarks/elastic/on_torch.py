"""Training of the workers of elastic jobs, with PyTorch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import horovod.torch as hvd
import torch
from torch import nn

from elastic.digits import RATE, STOCK, Classes, Floats, outer_momentum
from horovod_compressors.torch import Compression
from powersgd_training import perceptron


class Training:
    """See `elastic.digits.Training`."""

    hvd = hvd

    def __init__(self, spec: str, seed: int, noted: Callable[[type[Any]], type[Any]]) -> None:
        torch.set_num_threads(1)
        self._model = perceptron(seed)
        self._compression: Any = hvd.Compression.none
        held = {}
        if spec != STOCK:
            self._compression = Compression(spec, self._model.named_parameters())
            held["compression"] = self._compression
        self._own: dict[str, torch.Tensor] = {}
        for name, p in self._model.named_parameters():
            p.register_hook(functools.partial(self._keep, name))
        self._optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(self._model.parameters(), RATE, outer_momentum(spec)),
            named_parameters=self._model.named_parameters(),
            compression=self._compression,
        )
        state = noted(hvd.elastic.TorchState)
        self.state = state(model=self._model, optimizer=self._optimizer, step=0, **held)

    def _keep(self, name: str, grad: torch.Tensor) -> None:
        self._own[name] = grad.clone()

    def step(self, inputs: Floats, classes: Classes) -> tuple[list[Floats], list[Floats]]:
        """Make a step."""
        self._optimizer.zero_grad()
        logits = self._model(torch.from_numpy(inputs))
        nn.functional.cross_entropy(logits, torch.from_numpy(classes)).backward()
        self._optimizer.step()
        averages = [p.grad.numpy() for p in self._model.parameters() if p.grad is not None]
        return [self._own[name].numpy() for name, _ in self._model.named_parameters()], averages

    def parameters(self) -> list[Floats]:
        """All parameters."""
        return [p.detach().numpy() for p in self._model.parameters()]

    def unsent(self, part: str) -> list[Floats | None]:
        """Residuals, or momenta."""
        held = self._compression.state_dict()[part]
        found = [held.get(name) for name, _ in self._model.named_parameters()]
        return [None if array is None else array.numpy() for array in found]

    def logits(self, inputs: Floats) -> Floats:
        """The results for inputs."""
        with torch.no_grad():
            found: Floats = self._model(torch.from_numpy(inputs)).numpy()
        return found

    def of_first(self, value: float) -> float:
        """The value of rank 0."""
        return float(hvd.broadcast(torch.tensor(value, dtype=torch.float64), 0, "value"))
