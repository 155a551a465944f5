"""`OuterStep` on real processes: outer steps, averages of changes, checkpoints inside a round."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from workers import harness
from workers.ddp_model import join
from workers.harness import Cases, check_equal, check_same_on_all_ranks, refused
from workers.ranks import HorovodOuterStep, hvd

from gradcomp import Config, ConfigError, Loopback, OuterLoopback
from gradcomp.adapter_api import OuterOptions
from gradcomp.errors import ProtocolError, StateError
from gradcomp.runtime.measure.profile import Profile
from support.pipelines import configured, rules_of
from support.scope import FULL
from torch_compressors import OuterStep

cases = Cases()
with_horovod = Cases()
"""Those of `cases` that also run in a job of Horovod, with its `OuterStep`."""

four = Cases()
"""Cases that need four ranks of Horovod."""

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
            self.register_parameter(name, parameter_of(name, dtype))
        self.bias = parameter_of("bias", dtype)

    @staticmethod
    def shape_of(name: str) -> tuple[int, ...]:
        """The shape of a parameter."""
        return (9,) if name == "bias" else (80, 64)

    def change(self, step: int) -> None:
        """An inner step that differs by rank."""
        for index, p in enumerate(self.parameters()):
            seed = [step, hvd.rank(), index]
            p.data.sub_(0.1 * change_of(seed, p.shape).to(p.dtype))


def parameter_of(name: str, dtype: torch.dtype) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.randn(Model.shape_of(name)).to(dtype))


def change_of(seed: list[int], shape: tuple[int, ...]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(hash(tuple(seed)) % 2**31)
    return torch.randn(shape, generator=generator)


def config() -> Config:
    return configured("identity", rules=rules_of(SPECS, "{}"))


MAKER: Callable[..., Any] = HorovodOuterStep or OuterStep
"""Of this job's engine."""


def quietly(make: Callable[..., Any], model: Model, **options: Any) -> Any:
    """An `OuterStep` without the warning about momentum and error feedback."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make(config(), model, **options)


def loopback_of(model: Model, **options: Any) -> OuterLoopback:
    """All ranks' parameters in this process."""
    values = {name: p.detach().numpy() for name, p in model.named_parameters()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return OuterLoopback(config(), values, hvd.size(), **options)


def change_all(loopback: OuterLoopback, step: int) -> None:
    """The inner step of each rank."""
    for rank, values in enumerate(loopback.values):
        for index, (name, value) in enumerate(values.items()):
            change = change_of([step, rank, index], Model.shape_of(name))
            value -= (0.1 * change).numpy().reshape(-1)


def check_profile(profile: Profile, options: OuterOptions) -> None:
    """Each exchange has the round before it."""
    rounds = [one.round for one in profile.steps]
    assert [one.inner_steps for one in rounds if one] == [options.period] * len(rounds)
    assert len(rounds) == 18 // options.period
    for one in profile.steps:
        assert one.utilisation is not None
        assert 0 <= one.utilisation <= 1


def samples_of(rank: int) -> int:
    """Samples of a rank in each inner step; of two ranks they sum to 3."""
    return rank + 1


SETTINGS: list[dict[str, Any]] = [
    {"lr": 0.7, "momentum": 0.5},
    {"lr": 1.0, "momentum": 0.0, "weighted": True},
    {"fragments": 3, "momentum": 0.5},
    {"fragments": 3, "overlap": 1, "mixing": 0.25, "momentum": 0.9},
    {"overlap": 2, "momentum": 0.9},
]


@with_horovod
@cases
def outer_steps_are_those_of_the_loopback() -> None:
    """For every setting: the bits of a simulation."""
    join()
    # By default Horovod has the weights, and the fragments under way.
    for setting in SETTINGS if FULL or MAKER is OuterStep else SETTINGS[1:4:2]:
        model = Model()
        outer = quietly(MAKER, model, every=6, **setting)
        loopback = loopback_of(model, every=6, **setting)
        profile = outer.stats.start_profile()
        for step in range(18):
            model.change(step)
            weighted = outer.options.weighted
            made = outer.step(**({"samples": samples_of(hvd.rank())} if weighted else {}))
            assert made == ((step + 1) % outer.options.period == 0), step
            change_all(loopback, step)
            loopback.step([*map(samples_of, range(hvd.size()))] if weighted else None)
            for name, p in model.named_parameters():
                wanted = torch.from_numpy(loopback.values[hvd.rank()][name]).view(p.shape)
                check_equal(p.detach(), wanted, f"{setting}, {step}: {name}")
        own = [p.detach().clone() for p in model.parameters()]
        with outer.common():
            for name, p in model.named_parameters():
                check_same_on_all_ranks(p, name)
                start = torch.from_numpy(loopback.common()[name])
                check_equal(p.detach(), start, f"{setting}: {name}")
        for p, kept in zip(model.parameters(), own, strict=True):
            check_equal(p.detach(), kept, str(setting))
        assert outer.inner_steps == 18
        assert outer.stats.steps == 3
        check_profile(profile, outer.options)


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


@with_horovod
@cases
def checkpoints_inside_a_round() -> None:
    """A job resumed after 5 of 9 steps, with 3 per round, ends in the same bits."""
    join()
    for number, options in enumerate(RESUMED):
        check_resumes(options, Path(harness.shared) / f"outer-{MAKER.__module__}" / str(number))


RESUMED: list[dict[str, Any]] = [
    {"every": 3, "momentum": 0.9},
    {"every": 6, "fragments": 2, "overlap": 2, "mixing": 0.5, "momentum": 0.9},
]


def check_resumes(options: dict[str, Any], directory: Path) -> None:
    """A run resumed after 5 of 9 steps; with overlap, while an average is under way."""
    straight, resumed = Model(), Model()
    outers = [quietly(MAKER, one, **options) for one in (straight, resumed)]
    for step in range(5):
        straight.change(step)
        outers[0].step()
    outers[0].save(directory, 5)
    assert outers[1].load(directory) == 5
    whole = outers[1].state_dict()
    kept = copy.deepcopy(whole)
    for key in whole:
        damaged = {name: part for name, part in whole.items() if name != key}
        refused(lambda d=damaged: outers[1].load_state_dict(d), StateError, "")
    outers[1].load_state_dict(whole)
    for step in range(5, 9):
        for model, outer in zip((straight, resumed), outers, strict=True):
            model.change(step)
            outer.step()
    for kind in ("values", "averages"):  # a state does not change with the training
        for name, one in whole[kind].items():
            check_equal(one, kept[kind][name], f"{kind} of {name}")
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


@with_horovod
@cases
def arguments_that_no_engine_takes() -> None:
    join()
    dtype = torch.bfloat16 if hvd.rank() else torch.float32
    refused(lambda: MAKER("fp16", Model().to(dtype)), ProtocolError, "bfloat16")
    outer = MAKER("residual|sign", Model())
    refused(lambda: outer.set_loss_scale(1024.0), ConfigError, "leave the call out")
    for call in (outer.allow_discard, outer.discard_step):
        refused(call, ConfigError, "load a checkpoint of OuterStep.save")


@cases
def wrong_arguments() -> None:
    join()
    makes: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (lambda: OuterStep("fp16", Model(), every=0), ConfigError, "every is 0"),
        (lambda: OuterStep("fp16", Model(), fragments=7, every=7), ConfigError, "at most 6"),
        (lambda: OuterStep("fp16", Model()).step(samples=3), ConfigError, "not weighted"),
        (lambda: OuterStep("fp16", Model(), lr=-1.0), ConfigError, "outer learning rate is -1.0"),
        (lambda: OuterStep("dgc(warmup_epochs=0)", Model()), ConfigError, "its own momentum"),
        (lambda: OuterStep("dion", Model()), ConfigError, "its own momentum"),
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


@four
def ddp_inside_nodes() -> None:
    """Gradients are averaged inside nodes in each step, and changes between nodes at times."""
    join()
    first = hvd.rank() // 2 * 2
    nodes = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    two_level = configured("residual|topk(ratio=0.1)", exchange="two_level", ranks_per_node=2)
    torch.manual_seed(hvd.rank())
    model = DistributedDataParallel(torch.nn.Linear(64, 70), process_group=nodes[first // 2])
    refused(lambda: OuterStep("fp16", model), ConfigError, "over ranks")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    outer = OuterStep(two_level, model, every=2)
    pairs = Loopback(configured("residual|topk(ratio=0.1)"), 2)
    parameters = dict(model.named_parameters())
    starts = {name: p.detach().clone() for name, p in parameters.items()}
    for step in range(6):
        x = change_of([step, hvd.rank(), 0], (8, 64))
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        changes = {name: starts[name] - p.detach() for name, p in parameters.items()}
        if not outer.step():
            continue
        of_ranks = {name: hvd.allgather(one[None]) for name, one in changes.items()}
        averages = pairs.step({name: [one[0], one[2]] for name, one in of_ranks.items()})
        for name, p in parameters.items():
            check_same_on_all_ranks(p, name)
            starts[name] -= torch.from_numpy(averages[name][0])
            check_equal(p.detach(), starts[name], f"{step}: {name}")


@four
def shards_between_replicas() -> None:
    """FSDP2 in groups of two ranks; the ranks that hold the same shards average."""
    # Not at the top: PyTorch has them from 2.6 on.
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import distribute_tensor

    join()
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    torch.manual_seed(0)
    whole = Model()
    torch.manual_seed(0)
    model = Model()
    fully_shard(model, mesh=mesh["shards"])
    group = mesh["replicas"].get_group()
    refused(lambda: OuterStep("int8", model), ConfigError, "give OuterStep the process_group")
    refused(lambda: HorovodOuterStep("int8", model), ConfigError, "is sharded over ranks")
    outer = OuterStep("int8", model, every=2, process_group=group, lr=1.0, momentum=0.0)
    mean = Loopback("int8", 2)
    starts = {n: p.to_local().detach().clone() for n, p in model.named_parameters()}
    assert sum(one.numel() for one in starts.values()) < sum(p.numel() for p in whole.parameters())
    replica = mesh["replicas"].get_local_rank()
    for step in range(4):
        for index, p in enumerate(model.parameters()):
            full = change_of([step, replica, index], tuple(p.shape))
            own = p.to_local()
            own.detach().sub_(
                0.1 * distribute_tensor(full, mesh["shards"], p.placements).to_local()
            )
        changes = {n: starts[n] - p.to_local().detach() for n, p in model.named_parameters()}
        if not outer.step():
            continue
        for name, p in model.named_parameters():
            both = [torch.empty_like(changes[name]) for _ in range(2)]
            dist.all_gather(both, changes[name].contiguous(), group=group)
            starts[name] -= torch.from_numpy(mean.step({name: both})[name][0])
            check_equal(p.to_local().detach(), starts[name], f"{step}: {name}")
