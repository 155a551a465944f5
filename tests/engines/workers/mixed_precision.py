"""Learning rates and loss scales, on the engine of the job: an overflow on one rank only."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from workers.ddp_model import join
from workers.ranks import Compression, hvd

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


def accumulation_job(of: str) -> None:
    """Two backward passes in a step, with another scale in the second one.

    The weights equal those of float32 without the step in which a pass of one rank overflows.
    """
    if of == "ddp":
        join()
    for spec in ("residual|topk(ratio=0.05)", "ef21(momentum=0.5)|topk(ratio=0.05)"):
        scaled, plain = (_accumulate(of, spec, scales) for scales in (True, False))
        for one, other in zip(scaled, plain, strict=True):
            assert torch.equal(one, other), (one - other).abs().max()


def _accumulate(of: str, spec: str, scales: bool) -> list[torch.Tensor]:
    torch.manual_seed(1)
    model: Any = torch.nn.Linear(64, 70)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.125)
    if of == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
        state, hook = ddp_hook(spec, model, optimizer)
        model.register_comm_hook(state, hook)
    else:
        state = Compression(spec, model.named_parameters())
        optimizer = hvd.DistributedOptimizer(
            optimizer,
            named_parameters=model.named_parameters(),
            compression=state,
            backward_passes_per_step=2,
        )
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scales)
    for step in range(6):
        overflows = step == 3
        if overflows and not scales:
            continue
        optimizer.zero_grad()
        for passed in range(2):
            if scales and passed == 1:
                factor = 0.25 if step % 2 else 4.0
                scaler.update(factor * scaler.get_scale())
                for p in model.parameters():
                    p.grad.mul_(factor)
            if scales:
                state.set_loss_scale(scaler.get_scale())
            seed = 100 * step + 10 * passed + hvd.rank()
            x = torch.randn(5, 64, generator=torch.Generator().manual_seed(seed))
            weights = torch.ones(70)
            if overflows and passed == 0 and hvd.rank() == 1:
                weights[7] = float("inf")
            waits = model.no_sync() if of == "ddp" and passed == 0 else nullcontext()
            with waits:
                scaler.scale((model(x) * weights).square().mean()).backward()
        if of == "horovod":
            optimizer.synchronize()
        scaler.unscale_(optimizer)
        before = [p.detach().clone() for p in model.parameters()]
        with optimizer.skip_synchronize() if of == "horovod" else nullcontext():
            scaler.step(optimizer)
        skipped = all(map(torch.equal, before, model.parameters()))
        assert skipped == overflows, step
        scaler.update()
    return [p.detach() for p in model.parameters()]


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
