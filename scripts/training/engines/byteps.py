"""BytePS as the engine of training."""

from __future__ import annotations

import importlib.metadata
import itertools
import os
from collections.abc import Mapping
from typing import Any

import byteps.torch as bps
import torch
from byteps.torch import ops
from torch import Tensor, nn

from byteps_compressors.gather import gather
from byteps_compressors.torch import attach
from gradcomp.config.schema import Config
from gradcomp.errors import ConfigError
from torch_compressors import DGCSGD
from training.engines.objects import longest, pack, unpack
from training.learners.torch import TorchEngine

__all__ = ["ENGINE"]


class BytePSEngine(TorchEngine):
    """Stock BytePS, which has one operation: the sum of tensors of equal sizes."""

    name = "byteps"
    title = "BytePS"

    def __init__(self) -> None:
        self._sizes: dict[tuple[str, int], int] = {}
        self._calls = itertools.count()

    def init(self) -> None:
        """See `Engine`, also below.

        Raises:
            ConfigError: BytePS' launcher has not started this process.
        """
        if "DMLC_ROLE" not in os.environ:
            raise ConfigError(
                "BytePS needs a scheduler and servers: start this with "
                "python -m byteps_compressors.launch --workers 2 --servers 1 -- python ..."
            )
        bps.init()

    def versions(self) -> dict[str, str]:
        return {"byteps": importlib.metadata.version("byteps")}

    def rank(self) -> int:
        return int(bps.rank())

    def size(self) -> int:
        return int(bps.size())

    def local_size(self) -> int:
        # bps.local_size() counts processes of one BytePS worker, and here each rank is a worker.
        return self.size() if os.environ.get("DMLC_PS_ROOT_URI") == "127.0.0.1" else 1

    def sum(self, tensor: Tensor, name: str) -> Tensor:
        result = tensor.clone()
        if self.size() > 1:
            ops.synchronize(ops.push_pull_async_inplace(result, average=False, name=name))
        return result

    def allgather_object(self, value: Any, name: str) -> list[Any]:
        data = pack(value)
        texts = gather(data, f"come to {name}", most=longest(len(data)))
        return [unpack(text, rank) for rank, text in enumerate(texts)]

    def broadcast_parameters(self, state: Mapping[str, Tensor]) -> None:
        for name, tensor in state.items():
            mine = tensor if self.rank() == 0 else torch.zeros_like(tensor)
            tensor.copy_(self.sum(mine, f"broadcast.{name}"))

    def compression(self, config: Config, trained: nn.Module, inner: torch.optim.Optimizer) -> Any:
        return attach(trained.named_parameters(), config)

    def optimizer(
        self, inner: torch.optim.Optimizer, model: nn.Module, compression: Any
    ) -> torch.optim.Optimizer:
        result: torch.optim.Optimizer = bps.DistributedOptimizer(
            inner, named_parameters=model.named_parameters()
        )
        if compression is not None:
            compression.check_after_steps(result)
        return result

    def momentum_free_sgd(self) -> type[torch.optim.SGD]:
        return DGCSGD


ENGINE = BytePSEngine()
