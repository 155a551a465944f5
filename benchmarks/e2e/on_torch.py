"""Contenders on torch.distributed: DDP with PyTorch's own hooks, and top-k in plain PyTorch."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from e2e.contenders import Contender
from e2e.model import Synthetic
from e2e.worker import Run, config_of, optimizer
from torch_compressors import ddp_hook

_ONE_BUCKET_MB = 1 << 20


class Engine:
    """See e2e.worker.Engine."""

    def __init__(self) -> None:
        dist.init_process_group("gloo")
        self.rank = dist.get_rank()

    def barrier(self) -> None:
        """Wait for all ranks."""
        dist.barrier()

    def prepare(self, contender: Contender, model: Synthetic, prefix: str) -> Run:
        """The step function of a contender."""
        if contender.kind == "topk":
            return Run(_plain_top_k(model, float(contender.spec)))
        # On Gloo powerSGD_hook aborts with several buckets: their collectives change order.
        ours = None
        bucket_mb = _ONE_BUCKET_MB if contender.kind == "powersgd" else None
        # All parameters are zeros already.
        ddp = DistributedDataParallel(model, bucket_cap_mb=bucket_mb, init_sync=False)
        if contender.kind == "alone":
            ddp.register_comm_hook(None, _kept)
        elif contender.kind == "fp16":
            ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif contender.kind == "powersgd":
            state = powerSGD_hook.PowerSGDState(
                None, matrix_approximation_rank=int(contender.spec), start_powerSGD_iter=2
            )
            ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        elif contender.kind == "ours":
            idle = optimizer(model, contender.spec)
            ours, hook = ddp_hook(config_of(contender.spec), ddp, idle)
            ddp.register_comm_hook(ours, hook)

        def step() -> None:
            ddp.zero_grad()
            ddp(torch.zeros(1, requires_grad=True)).backward()

        return Run(step, ours)

    def close(self) -> None:
        """Leave the job."""
        dist.destroy_process_group()


def _kept(_: None, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A hook that does not change gradients."""
    future = torch.futures.Future[torch.Tensor]()
    future.set_result(bucket.buffer())
    return future


def _plain_top_k(model: Synthetic, ratio: float) -> Callable[[], None]:
    """Top-k with error feedback in its usual form (GRACE's formulation).

    Values and int64 indices of each tensor are gathered, then added in every rank.
    """
    size = dist.get_world_size()
    residuals = [torch.zeros(weight.numel()) for weight in model.weights]

    def step() -> None:
        model.zero_grad()
        model(torch.zeros(1, requires_grad=True)).backward()
        flights = []
        for weight, residual in zip(model.weights, residuals, strict=True):
            assert weight.grad is not None
            residual += weight.grad.view(-1)
            k = max(1, int(ratio * residual.numel()))
            indices = residual.abs().topk(k, sorted=False).indices
            values = residual[indices]
            residual[indices] = 0
            all_values = [torch.empty_like(values) for _ in range(size)]
            all_indices = [torch.empty_like(indices) for _ in range(size)]
            works = [
                dist.all_gather(all_values, values, async_op=True),
                dist.all_gather(all_indices, indices, async_op=True),
            ]
            flights.append((weight.grad.view(-1), works, all_values, all_indices))
        for grad, works, all_values, all_indices in flights:
            for work in works:
                work.wait()
            grad.zero_()
            for values, indices in zip(all_values, all_indices, strict=True):
                grad.index_add_(0, indices, values, alpha=1 / size)

    return step
