"""Learning rates and loss scales, on the engine of the job: an overflow on one rank only."""

from __future__ import annotations

from typing import Any

import horovod.torch as hvd
import torch
from workers.ddp_model import join

from horovod_compressors.torch import Compression
from torch_compressors import ddp_hook

SPEC = "residual(lr=scale)|randomk(ratio=0.05)"


def ddp_job(follows: bool) -> None:
    """DDP: the hook averages scaled gradients in the backward pass.

    Args:
        follows: the state reads the loss scale itself.
    """
    join()
    torch.manual_seed(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 70))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state, hook = ddp_hook(SPEC, model, optimizer)
    model.register_comm_hook(state, hook)
    _train(model, optimizer, state, False, follows)


def horovod_job() -> None:
    """Horovod: the stock recipe, with unscale_ between synchronize and step."""
    torch.manual_seed(1)
    model = torch.nn.Linear(64, 70)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = Compression(SPEC, model.named_parameters())
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression=state
    )
    _train(model, optimizer, state, True)


def _train(
    model: torch.nn.Module, optimizer: Any, state: Any, synchronizes: bool, follows: bool = False
) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    if follows:
        state.follow_scaler(scaler)
    skipped = []
    before: dict[str, torch.Tensor] = {}
    for step in range(6):
        optimizer.zero_grad()
        if not follows:
            state.set_loss_scale(scaler.get_scale())
        residuals = {
            name: value / scaler.get_scale()
            for name, value in state.state_dict()["residual"].items()
        }
        if skipped and skipped[-1]:  # the skipped step left no trace
            assert all(torch.equal(residuals[name], before[name]) for name in before)
        before = residuals
        weights = torch.ones(70)
        if step == 3 and hvd.rank() == 1:
            weights[7] = float("inf")
        x = torch.randn(5, 64, generator=torch.Generator().manual_seed(10 * step + hvd.rank()))
        scaler.scale((model(x) * weights).square().mean()).backward()
        if synchronizes:
            optimizer.synchronize()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if synchronizes:
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
        else:
            scaler.step(optimizer)
        old = scaler.get_scale()
        scaler.update()
        skipped.append(scaler.get_scale() < old)
        optimizer.param_groups[0]["lr"] *= 0.5
    assert skipped == [False, False, False, True, False, False], skipped
    (rate,) = {float(one) for one in state.state_dict()["residual_lr"].values()}
    assert abs(rate - 0.1 * 0.5**5) < 1e-8, rate
    for p in model.parameters():
        assert torch.isfinite(p).all()
        others = hvd.allgather(p.detach().reshape(1, -1))
        assert torch.equal(others[0], others[-1])
