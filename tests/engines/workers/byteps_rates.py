"""Learning rates and loss scales in BytePS' error feedback.

python -m workers.byteps_rates REPORTS CASE...
"""

from __future__ import annotations

import sys
from typing import Any

import byteps.torch as bps
import numpy as np
import torch
from byteps.torch import ops
from workers.byteps_cases import NUMEL, SEED, TAIL, averages, gradient
from workers.byteps_model import Tensor
from workers.runner import Cases, refused, report

from byteps_compressors.torch import Attached, Compression, DistributedOptimizer, attach
from gradcomp import ConfigError, Loopback, StateError
from support.pipelines import config_of

RATES = [0.1, 0.1, 0.05, 0.0, 0.02, 0.002]
SCALED = [
    "residual(lr=scale)|topk(ratio=0.01)",
    "residual(beta=0.9,gamma=0.5,lr=scale)|sign",
    "residual(lr=scale)|randomk(ratio=0.05)",
    "residual(lr=scale)|identity",
]
STATEFUL = [
    "residual|topk(ratio=0.01)",
    "residual|sign",
    "residual(lr=scale)|topk(ratio=0.01)",
    "signum|sign",
    "momentum_correction|topk(ratio=0.01)",
    "topk(ratio=0.01)",
]

cases = Cases()


def attached_to(name: str, numel: int, spec: str, feedback: str) -> Attached:
    parameters = [(name, torch.empty(numel))]
    return attach(parameters, config_of(spec, SEED), server_feedback=feedback)


@cases
def rates() -> None:
    """`set_lr`: averages equal the model's, with and without feedback on servers."""
    handles, models = {}, {}
    for i, spec in enumerate(SCALED):
        for feedback in ("on", "off"):
            for numel in (NUMEL, TAIL):
                name = f"rates.{i}.{feedback}.{numel}"
                handles[name] = attached_to(name, numel, spec, feedback)
                (own,) = handles[name]._tensors.values()
                models[name] = Tensor(
                    spec, numel, own.id, ranks=bps.size(), seed=SEED, feedback=feedback == "on"
                )
    for step, rate in enumerate(RATES):
        for name, one in handles.items():
            one.set_lr(rate if step % 2 else {name: rate, "another": 1.0})
            models[name].set_lr(rate)
        grads = {
            name: [gradient(name, step, r, _numel(one), torch.float32) for r in range(bps.size())]
            for name, one in handles.items()
        }
        results = averages({name: of[bps.rank()].clone() for name, of in grads.items()})
        for name, model in models.items():
            wanted = model.step([grad.numpy() for grad in grads[name]], step)
            assert results[name].numpy().tobytes() == wanted.tobytes(), (name, step)
        if step == 2:  # rates and units of the servers' residuals are part of a checkpoint
            for one in handles.values():
                one.load_state_dict(one.state_dict())


def _numel(one: Attached) -> int:
    (tensor,) = one._tensors.values()
    return tensor.numel


@cases
def optimizer_rates() -> None:
    """`DistributedOptimizer` reads each group's rate, also with accumulation."""
    spec = "residual(lr=scale)|topk(ratio=0.01)"
    first, second = (torch.nn.Parameter(torch.zeros(100, 160)) for _ in range(2))
    named = [("optimizer_rates.a", first), ("optimizer_rates.b", second)]
    groups = [{"params": [first], "lr": 1.0}, {"params": [second], "lr": 0.5}]
    optimizer = DistributedOptimizer(
        torch.optim.SGD(groups, lr=1.0), named, config_of(spec, SEED), 2, server_feedback="on"
    )
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.3)
    models = {}
    for name, p in named:
        own = optimizer.compression._tensors[name]
        models[name] = Tensor(spec, p.numel(), own.id, ranks=bps.size(), seed=SEED, feedback=True)
    for step in range(4):
        optimizer.zero_grad(set_to_none=False)
        grads = {
            name: [gradient(name, step, r, p.numel(), torch.float32) for r in range(bps.size())]
            for name, p in named
        }
        for _ in range(2):  # half of the gradient in each backward pass
            halves = [(p * grads[n][bps.rank()].view(p.shape) / 2).sum() for n, p in named]
            sum(halves).backward()
        rate = {
            name: group["lr"]
            for (name, _), group in zip(named, optimizer.param_groups, strict=True)
        }
        optimizer.step()
        schedule.step()
        for name, p in named:
            models[name].set_lr(rate[name])
            wanted = models[name].step([grad.numpy() for grad in grads[name]], step)
            assert p.grad.numpy().tobytes() == wanted.tobytes(), (name, step)


@cases
def rates_without_plugin() -> None:
    """`Compression.set_lr`: averages equal the loopback's."""
    spec = "residual(lr=scale)|randomk(ratio=0.1)"
    parameter = torch.nn.Parameter(torch.zeros(100, 90))
    named = [("without_plugin.w", parameter)]
    compression = Compression(spec, named)
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD([parameter], lr=1.0), named_parameters=named, compression=compression
    )
    loop = Loopback(spec, bps.size())
    for step, rate in enumerate(RATES):
        compression.set_lr(rate)
        loop.set_lr(rate)
        of = [gradient("w", step, r, 9000, torch.float32).view(100, 90) for r in range(bps.size())]
        (parameter * of[bps.rank()]).sum().backward()
        optimizer.step()
        wanted = loop.step({"without_plugin.w": [g.numpy() for g in of]})["without_plugin.w"][0]
        assert torch.equal(parameter.grad, torch.from_numpy(wanted)), step
        optimizer.zero_grad(set_to_none=False)
        ops.synchronize(ops.push_pull_async_inplace(torch.zeros(1), name="barrier"))


# The scale of each step, and whether an Inf on worker 1 makes all workers skip it.
STEPS = [
    *((1024.0, True), (512.0, False), (512.0, False), (512.0, True), (256.0, False)),
    *((512.0, False), (512.0, True), (256.0, True), (128.0, True), (64.0, False), (64.0, False)),
]


@cases
def loss_scales() -> None:
    """A run with changes of scale and skipped steps equals one without them, bit for bit."""
    names, scaled, plain = {}, {}, {}
    for i, spec in enumerate(STATEFUL):
        for feedback in ("on", "off"):
            name = f"loss_scales.{i}.{feedback}"
            names[name] = spec
            scaled[name] = attached_to(name, NUMEL, spec, feedback)
            plain[name] = attached_to(f"{name}.plain", NUMEL, spec, feedback)

    def grads(step: int, scale: float, suffix: str) -> dict[str, torch.Tensor]:
        return {
            name + suffix: gradient(name, step, bps.rank(), NUMEL, torch.float32) * scale
            for name in names
        }

    applied = 0
    for number, (scale, skips) in enumerate(STEPS):
        rate = 0.5 ** (applied / 2)
        for one in [*scaled.values(), *plain.values()]:
            one.set_lr(rate)
        for one in scaled.values():
            one.set_loss_scale(scale)
            if number % 3 == 0:
                one.load_state_dict(one.state_dict())
                one.set_loss_scale(scale)
        mine = grads(applied, scale, "")
        if skips:
            for grad in mine.values():
                if bps.rank() == 1:
                    # In the second step of a run of skipped ones, in each partition.
                    grad[:: 100 if number == 7 else NUMEL] = float("inf")
            for name, average in averages(mine).items():
                assert not torch.isfinite(average).all(), (name, number)
            continue
        results = averages(mine)
        wanted = averages(grads(applied, 1.0, ".plain"))
        for name, spec in names.items():
            got = results[name] / scale
            same = got.numpy().tobytes() == wanted[f"{name}.plain"].numpy().tobytes()
            assert same, (spec, name, number)
        applied += 1
    for name, one in scaled.items():
        one.set_loss_scale(STEPS[-1][0])
        mine, other = one.state_dict(), plain[name].state_dict()
        for kind in ("residual", "momentum", "servers"):
            for key, value in mine[kind].items():
                assert torch.equal(value / STEPS[-1][0], other[kind][f"{key}.plain"]), (name, kind)


@cases
def discarded_steps() -> None:
    """A run with discarded steps equals one without them; the servers' residuals, too."""
    specs = ("residual|topk(ratio=0.05)", "momentum_correction|topk(ratio=0.05)", "residual|sign")
    handles, plain, names = {}, {}, {}
    for i, spec in enumerate(specs):
        for feedback in ("on", "off"):
            name = f"discarded.{i}.{feedback}"
            names[name] = spec
            handles[name] = attached_to(name, NUMEL, spec, feedback)
            plain[name] = attached_to(f"{name}.plain", NUMEL, spec, feedback)
    for handle in handles.values():
        refused(handle.discard_step, ConfigError, "call allow_discard() once")
        handle.allow_discard()
        refused(handle.discard_step, StateError, "there is no step to discard")

    def grads(step: int, suffix: str, scale: float) -> dict[str, torch.Tensor]:
        return {
            name + suffix: gradient(name, step, bps.rank(), NUMEL, torch.float32) * scale
            for name in names
        }

    for step in range(5):
        for spike in range(step % 3):
            averages(grads(100 + spike, "", 1000.0))
            for handle in handles.values():
                handle.discard_step()
                refused(handle.discard_step, StateError, "there is no step to discard")
        results, wanted = averages(grads(step, "", 1.0)), averages(grads(step, ".plain", 1.0))
        for name, spec in names.items():
            assert torch.equal(results[name], wanted[f"{name}.plain"]), (spec, name, step)
    for name, handle in handles.items():
        mine, other = handle.state_dict(), plain[name].state_dict()
        for kind in ("residual", "momentum", "servers"):
            for key, value in mine[kind].items():
                assert torch.equal(value, other[kind][f"{key}.plain"]), (name, kind)


@cases
def grad_scaler() -> None:
    """torch's GradScaler: an overflow on one worker, skipped by all."""
    torch.manual_seed(1)
    model = torch.nn.Linear(64, 70)
    named = [(f"grad_scaler.{name}", p) for name, p in model.named_parameters()]
    optimizer = DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), named, "residual(lr=scale)|randomk(ratio=0.05)"
    )
    state = optimizer.compression
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    skipped: list[bool] = []
    before: dict[str, Any] = {}
    for step in range(6):
        optimizer.zero_grad(set_to_none=False)
        state.set_loss_scale(scaler.get_scale())
        saved = state.state_dict()
        now = {
            f"{kind} {name}": value / scaler.get_scale()
            for kind in ("residual", "servers")
            for name, value in saved[kind].items()
        }
        if skipped and skipped[-1]:  # the skipped step left no trace
            assert all(torch.equal(now[name], before[name]) for name in before)
        before = now
        weights = torch.ones(70)
        if step == 3 and bps.rank() == 1:
            weights[7] = float("inf")
        x = torch.randn(5, 64, generator=torch.Generator().manual_seed(10 * step + bps.rank()))
        scaler.scale((model(x) * weights).square().mean()).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        old = scaler.get_scale()
        scaler.update()
        skipped.append(scaler.get_scale() < old)
        if not skipped[-1]:
            optimizer.param_groups[0]["lr"] *= 0.5
    assert skipped == [False, False, False, True, False, False], skipped
    (rate,) = {float(one) for one in state.state_dict()["residual_lr"].values()}
    assert abs(rate - 0.1 * 0.5**4) < 1e-8, rate
    state.check_replicas()
    assert all(torch.isfinite(p).all() for p in model.parameters())


@cases
def wrong_values() -> None:
    """Rates and scales out of range are refused before anything changes."""
    one = attached_to("wrong_values", NUMEL, "residual(lr=scale)|sign", "on")
    for rate in (-1.0, np.nan, np.inf):
        refused(lambda rate=rate: one.set_lr(rate), ConfigError, "the learning rate is")
    for scale in (0.0, -1.0, np.nan, np.inf):
        refused(lambda scale=scale: one.set_loss_scale(scale), ConfigError, "the loss scale is")


def main(reports: str, names: list[str]) -> None:
    bps.init()
    report({name: cases[name] for name in names}, bps.rank(), reports)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
