"""`OuterStep` on real processes: local steps, averages of changes, checkpoints inside a round."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch
from torch.nn.parallel import DistributedDataParallel
from workers import harness
from workers.ddp_model import join
from workers.harness import Cases, check_equal, check_same_on_all_ranks, refused

from gradcomp import Config, ConfigError, Loopback
from gradcomp.adapter_api import OuterSGD
from gradcomp.errors import ProtocolError, StateError
from support.pipelines import configured, rules_of
from torch_compressors import OuterStep

cases = Cases()

SPECS = {
    "feedback": "residual|topk(ratio=0.05)",
    "levels": "int4",
    "low_rank": "powersgd(rank=2,start_step=1)",
    "random": "residual|randomk(ratio=0.1)",
    "dense": "identity",
}


class Model(torch.nn.Module):
    """A matrix for each spec, and a vector."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(hvd.rank())  # OuterStep makes the ranks equal
        for name in SPECS:
            self.register_parameter(name, torch.nn.Parameter(torch.randn(80, 64).to(dtype)))
        self.bias = torch.nn.Parameter(torch.randn(9).to(dtype))

    def change(self, step: int) -> None:
        """An inner step that differs by rank."""
        for index, p in enumerate(self.parameters()):
            seed = [step, hvd.rank(), index]
            p.data.sub_(0.1 * change_of(seed, p.shape).to(p.dtype))


def change_of(seed: list[int], shape: torch.Size) -> torch.Tensor:
    generator = torch.Generator().manual_seed(hash(tuple(seed)) % 2**31)
    return torch.randn(shape, generator=generator)


def config() -> Config:
    return configured("identity", rules=rules_of(SPECS, "{}"))


@cases
def outer_steps_are_those_of_the_loopback() -> None:
    join()
    model = Model()
    outer = OuterStep(config(), model, every=3, lr=0.7, momentum=0.5)
    names = [name for name, _ in model.named_parameters()]
    values = {n: p.detach().reshape(-1).numpy().copy() for n, p in model.named_parameters()}
    ranks = [OuterSGD(values, 0.7, 0.5, True) for _ in range(hvd.size())]
    loopback = Loopback(config(), hvd.size())
    for step in range(9):
        model.change(step)
        made = outer.step()
        assert made == (step % 3 == 2), step
        if not made:
            continue
        changes = {}
        for index, (name, p) in enumerate(model.named_parameters()):
            of_ranks = []
            for rank, one in enumerate(ranks):
                trained = torch.from_numpy(one.start[name].copy()).view(p.shape)
                for inner in range(step - 2, step + 1):
                    trained -= 0.1 * change_of([inner, rank, index], p.shape)
                of_ranks.append(one.start[name].reshape(p.shape) - trained.numpy())
            changes[name] = of_ranks
        averages = loopback.step(changes)
        for rank, one in enumerate(ranks):
            for name in names:
                one.step(name, averages[name][rank].reshape(-1))
        for name, p in model.named_parameters():
            wanted = torch.from_numpy(ranks[0].start[name]).view(p.shape)
            check_equal(p.detach(), wanted, f"{step}: {name}")
            check_same_on_all_ranks(p, name)
    assert outer.inner_steps == 9
    assert outer.stats.steps == 3


@cases
def low_precision_parameters() -> None:
    """The start of a round is kept in float32: small changes add up."""
    join()
    model = Model(torch.bfloat16)
    outer = OuterStep("identity", model, every=1, lr=1.0, momentum=0.0)
    for _ in range(64):
        with torch.no_grad():
            model.bias.sub_(2.0**-9 * model.bias.abs().clamp(min=1))
        outer.step()
        check_same_on_all_ranks(model.bias.float(), "bias")
    for p in model.parameters():
        assert torch.isfinite(p).all()


@cases
def checkpoints_inside_a_round() -> None:
    """A job resumed after 5 of 9 steps, with 3 per round, ends in the same bits."""
    join()
    directory = Path(harness.shared) / f"outer-{hvd.size()}"
    straight, resumed = Model(), Model()
    outers = [OuterStep(config(), one, every=3, momentum=0.9) for one in (straight, resumed)]
    for step in range(5):
        straight.change(step)
        outers[0].step()
    outers[0].save(directory, 5)
    assert outers[1].load(directory) == 5
    whole = outers[1]._state_to_save()
    for key in ("compression", "outer", "inner_steps", "values"):
        damaged = {name: part for name, part in whole.items() if name != key}
        refused(lambda d=damaged: outers[1]._take_saved(d), StateError, "")
    for step in range(5, 9):
        for model, outer in zip((straight, resumed), outers, strict=True):
            model.change(step)
            outer.step()
    for (name, one), other in zip(straight.named_parameters(), resumed.parameters(), strict=True):
        check_equal(one.detach(), other.detach(), name)


@cases
def a_scaler_skips_inner_steps_alone() -> None:
    """An overflow on one rank: its inner step is left out, and no outer step."""
    join()
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 70)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    outer = OuterStep("int4", model, every=2)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    made = 0
    for step in range(6):
        x = torch.ones(4, 64) * (float("inf") if step == 3 and hvd.rank() == 1 else 1.0)
        optimizer.zero_grad()
        scaler.scale(model(x).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        made += outer.step()
    assert made == 3
    for name, p in model.named_parameters():
        assert torch.isfinite(p).all()
        check_same_on_all_ranks(p, name)


@cases
def wrong_arguments() -> None:
    join()
    makes: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (lambda: OuterStep("fp16", Model(), every=0), ConfigError, "every is 0"),
        (lambda: OuterStep("fp16", Model(), lr=-1.0), ConfigError, "outer learning rate is -1.0"),
        (lambda: OuterStep("dgc(warmup_epochs=0)", Model()), ConfigError, "momentum of its own"),
        (lambda: OuterStep("dion", Model()), ConfigError, "momentum of its own"),
        (lambda: OuterStep("residual(lr=scale)|sign", Model()), ConfigError, "leave out lr=scale"),
        (lambda: OuterStep("fp16", DistributedDataParallel(Model())), ConfigError, "module itself"),
        (lambda: OuterStep("fp16", Model(), every=2 + hvd.rank()), ProtocolError, "every: 2 on"),
    ]
    for make, kind, part in makes:
        refused(make, kind, part)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        OuterStep("residual|topk(ratio=0.01)", Model(), momentum=0.9)
        OuterStep("residual|topk(ratio=0.01)", Model())
    assert ["often diverges" in str(one.message) for one in caught] == [True]
