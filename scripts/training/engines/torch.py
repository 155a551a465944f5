"""torch.distributed as the engine of training: DistributedDataParallel, or gossip."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gradcomp.config.schema import Config
from gradcomp.errors import PeerError, ProtocolError
from torch_compressors import DGCSGD, OuterStep, ddp_hook, init_process_group
from torch_compressors.gloo.gather import gather_bytes
from torch_compressors.gloo.process_group import local_world_size
from training.engines.objects import check_length, pack, unpack
from training.learners.gossip import GossipLearner
from training.learners.outer import OuterLearner
from training.learners.torch import TorchEngine
from training.settings.gossip import GossipSettings
from training.settings.outer import OuterSettings
from training.settings.train import TrainSettings

__all__ = ["ENGINE"]


class DDPEngine(TorchEngine):
    """Stock DistributedDataParallel on Gloo, with our communication hook; or our gossip."""

    name = "torch"
    title = "torch.distributed"
    lost_rank = (ProtocolError, PeerError)

    def init(self) -> None:
        """See `Engine`, also below."""
        init_process_group("gloo")

    def versions(self) -> dict[str, str]:
        return {}  # it is a part of torch

    def rank(self) -> int:
        return dist.get_rank()

    def size(self) -> int:
        return dist.get_world_size()

    def local_size(self) -> int:
        return local_world_size()

    def sum(self, tensor: Tensor, name: str) -> Tensor:
        result = tensor.clone()
        try:
            dist.all_reduce(result)
        except RuntimeError as error:
            raise ProtocolError(f"another rank does not answer in '{name}': {error}") from error
        return result

    def allgather_object(self, value: Any, name: str) -> list[Any]:
        texts = gather_bytes(pack(value))
        return [unpack(text, rank) for rank, text in enumerate(texts)]

    def broadcast_object(self, value: Any, name: str) -> Any:
        packed = pack(value)
        length = torch.tensor([len(packed)])
        dist.broadcast(length, 0)
        check_length(int(length), len(packed), 0)
        data = torch.zeros(int(length), dtype=torch.uint8)
        if self.rank() == 0:
            data = torch.frombuffer(bytearray(packed), dtype=torch.uint8)
        dist.broadcast(data, 0)
        return unpack(data.numpy().tobytes(), 0)

    def broadcast_parameters(self, state: Mapping[str, Tensor]) -> None:
        for tensor in state.values():
            dist.broadcast(tensor, 0)

    def trained(self, model: nn.Module) -> nn.Module:
        if self.size() == 1:
            return model
        # The trainer averages buffers itself.
        return DistributedDataParallel(model, forward_sync_buffers=False)

    def compression(self, config: Config, trained: nn.Module, inner: torch.optim.Optimizer) -> Any:
        if not isinstance(trained, DistributedDataParallel):
            return None
        state, hook = ddp_hook(config, trained, inner)
        trained.register_comm_hook(state, hook)
        return state

    def optimizer(
        self, inner: torch.optim.Optimizer, model: nn.Module, compression: Any
    ) -> torch.optim.Optimizer:
        return inner

    def gossip_learner(
        self, settings: TrainSettings, gossip: GossipSettings, classes: int, steps_per_epoch: int
    ) -> GossipLearner:
        return GossipLearner(self, settings, gossip, classes, steps_per_epoch)

    def outer_learner(
        self, settings: TrainSettings, outer: OuterSettings, compress: Config | None, classes: int
    ) -> OuterLearner:
        return OuterLearner(self, OuterStep, settings, outer, compress, classes)

    def momentum_free_sgd(self) -> type[torch.optim.SGD]:
        return DGCSGD


ENGINE = DDPEngine()
