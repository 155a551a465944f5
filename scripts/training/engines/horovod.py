"""Horovod as the engine of training."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import horovod
import horovod.torch as hvd
import torch
from horovod.common.exceptions import HorovodInternalError
from torch import Tensor, nn

from gradcomp.config.schema import Config
from gradcomp.errors import PeerError
from horovod_compressors.torch import Compression, OuterStep
from horovod_compressors.torch.wait import wait
from torch_compressors import DGCSGD
from training.engines.horovod_objects import Bytes, HorovodObjects
from training.learners.outer import OuterLearner
from training.learners.torch import TorchEngine
from training.settings.outer import OuterSettings
from training.settings.train import TrainSettings

__all__ = ["ENGINE"]


class HorovodEngine(HorovodObjects, TorchEngine):
    """Stock Horovod."""

    name = "horovod"
    title = "Horovod"
    lost_rank = (HorovodInternalError, PeerError)

    def init(self) -> None:
        """See `Engine`, also below."""
        # two_level needs process sets, and the configuration is read only after hvd.init().
        os.environ.setdefault("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
        hvd.init()

    def versions(self) -> dict[str, str]:
        return {"horovod": str(horovod.__version__)}

    def rank(self) -> int:
        return int(hvd.rank())

    def size(self) -> int:
        return int(hvd.size())

    def local_size(self) -> int:
        return int(hvd.local_size())

    def sum(self, tensor: Tensor, name: str) -> Tensor:
        handle = hvd.allreduce_async(tensor, op=hvd.Sum, name=name)
        wait(handle)
        result: Tensor = hvd.synchronize(handle)
        return result

    def _allgather(self, data: Bytes, name: str) -> Bytes:
        handle = hvd.allgather_async(torch.from_numpy(data.copy()), name=name)
        wait(handle)
        result: Bytes = hvd.synchronize(handle).numpy()
        return result

    def _broadcast(self, data: Bytes, name: str) -> Bytes:
        handle = hvd.broadcast_async(torch.from_numpy(data.copy()), root_rank=0, name=name)
        wait(handle)
        result: Bytes = hvd.synchronize(handle).numpy()
        return result

    def barrier(self) -> None:
        hvd.barrier()

    def broadcast_parameters(self, state: Mapping[str, Tensor]) -> None:
        hvd.broadcast_parameters(state, root_rank=0)

    def compression(self, config: Config, trained: nn.Module, inner: torch.optim.Optimizer) -> Any:
        return Compression(config, named_parameters=trained.named_parameters())

    def optimizer(
        self, inner: torch.optim.Optimizer, model: nn.Module, compression: Any
    ) -> torch.optim.Optimizer:
        result: torch.optim.Optimizer = hvd.DistributedOptimizer(
            inner,
            named_parameters=model.named_parameters(),
            compression=compression or hvd.Compression.none,
        )
        return result

    def outer_learner(
        self, settings: TrainSettings, outer: OuterSettings, compress: Config | None, classes: int
    ) -> OuterLearner:
        return OuterLearner(self, OuterStep, settings, outer, compress, classes)

    def momentum_free_sgd(self) -> type[torch.optim.SGD]:
        return DGCSGD


ENGINE = HorovodEngine()
