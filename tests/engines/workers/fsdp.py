"""Compressed reduce-scatter of sharded models (FSDP2), on real processes and Gloo."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard
from workers import harness
from workers.ddp_model import join
from workers.harness import Cases, check_equal, refused
from workers.ranks import hvd

from gradcomp import Config, ConfigError, Pipeline
from gradcomp.errors import ProtocolError, StateError
from gradcomp.runtime.loopback import run_rounds
from support.core_tensors import found
from support.pipelines import configured
from torch_compressors.fsdp import ReduceScatterCompression, fsdp_hook, fsdp_reduce_scatter
from torch_compressors.fsdp.units import units_of

cases = Cases()
four = Cases()
"""Cases that need four ranks."""

WIDTH = 33
"""Divides by no number of ranks here."""


class Block(nn.Module):
    """Two branches, of which a step may use one."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
        y = self.first(self.norm(x))
        return x + torch.relu(y + self.second(x) if both else y)


class Model(nn.Module):
    """Tied, frozen and uneven parameters, and one that is sharded by columns."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(45, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.columns = nn.Linear(4 * WIDTH - 12, WIDTH)
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.head = nn.Linear(WIDTH, 45, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor, both: bool = True) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, both)
        x = self.columns(self.frozen(x).repeat(1, 4)[:, :-12])
        return nn.functional.cross_entropy(self.head(x), tokens)


def made() -> Model:
    torch.manual_seed(4)
    return Model()


def sharded(
    mesh: Any = None, prepared: Callable[[Model], None] = lambda _: None, **options: Any
) -> Model:
    """The model, sharded by blocks.

    Args:
        prepared: called with the unsharded model.
        options: of ``fully_shard``.
    """
    join()
    model = made()
    prepared(model)

    def placement(parameter: nn.Parameter) -> Shard | None:
        return Shard(1) if parameter.shape == model.columns.weight.shape else None

    for module in units(model):
        fully_shard(module, mesh=mesh, shard_placement_fn=placement, **options)
    return model


def matrices(spec: str, *rules: Any, **compress: Any) -> Config:
    """The configuration with a spec for all matrices, which are small here; see `configured`."""
    return configured(spec, rules=[*rules, {"match": {"min_numel": 1000}, "use": spec}], **compress)


def tokens(step: int, rank: int | None = None) -> torch.Tensor:
    seed = 100 * step + (hvd.rank() if rank is None else rank)
    return torch.randint(0, 45, (16,), generator=torch.Generator().manual_seed(seed))


def backward(model: Model, step: int, **options: Any) -> None:
    for one in model.parameters():
        one.grad = None
    model(tokens(step), **options).backward()


def trained(model: Model, steps: Iterable[int], optimizer: torch.optim.Optimizer) -> None:
    for step in steps:
        backward(model, step)
        optimizer.step()


def gradients(model: Model) -> dict[str, torch.Tensor]:
    """This rank's parts of all gradients."""
    return {
        name: one.grad.to_local() for name, one in model.named_parameters() if one.grad is not None
    }


def check_gradients(one: Model, other: Model, atol: float | None = None) -> None:
    found, expected = gradients(one), gradients(other)
    assert found
    assert found.keys() == expected.keys()
    for name, grad in found.items():
        if atol is None:
            check_equal(grad, expected[name], name)
        else:
            assert torch.allclose(grad, expected[name], rtol=0, atol=atol), name


def units(model: Model) -> list[Any]:
    """The modules that are wrapped."""
    return [*model.blocks, model]


@cases
def dense_is_stock() -> None:
    """The same gradients as FSDP2 alone, to the last bit on two ranks."""
    bf16 = torch.bfloat16
    for options in (
        {},
        {"reshard_after_forward": False},
        {"mp_policy": MixedPrecisionPolicy(param_dtype=bf16, reduce_dtype=torch.float32)},
        {"mp_policy": MixedPrecisionPolicy(param_dtype=bf16, reduce_dtype=bf16)},
        {"mp_policy": MixedPrecisionPolicy(reduce_dtype=torch.float16)},
    ):
        stock, own = sharded(**options), sharded(**options)
        fsdp_reduce_scatter("identity", own)
        for model in (stock, own):
            backward(model, 0)
            model.set_requires_gradient_sync(False)
            model(tokens(1)).backward()
            model.set_requires_gradient_sync(True)
            model(tokens(2)).backward()
        check_gradients(own, stock)


def rows_of_columns(grad: np.ndarray[Any, Any], ranks: int) -> np.ndarray[Any, Any]:
    """The columns of each rank, one below the other, as FSDP2 lays them out."""
    return np.concatenate(np.split(grad, ranks, axis=1))


def check_in_one_process(
    config: Config,
    before: Callable[[Any, int], None] = lambda *_: None,
    weight: Callable[[int, int], float] = lambda *_: 1.0,
    kinds: Sequence[str] = ("residual",),
) -> ReduceScatterCompression:
    """Compare steps with rounds of whole gradients of an unsharded model, to the last bit.

    Args:
        before: called with each compression before each step.
        weight: factor of a step's loss on a rank.
        kinds: of state that must be that of one process, too.
    """
    ranks, rank = hvd.size(), hvd.rank()
    model, whole = sharded(), made()
    state = fsdp_reduce_scatter(config, model)
    pipelines = [Pipeline(config, one, ranks, scatters=True) for one in range(ranks)]
    for step in range(4):
        for one in (state, *pipelines):
            before(one, step)
        for one in model.parameters():
            one.grad = None
        (model(tokens(step)) * weight(step, rank)).backward()
        found = gradients(model)
        of_ranks = []
        for one in range(ranks):
            whole.zero_grad()
            (whole(tokens(step, one)) * weight(step, one)).backward()
            grads = {
                n: p.grad.numpy().copy() for n, p in whole.named_parameters() if p.grad is not None
            }
            grads["columns.weight"] = rows_of_columns(grads["columns.weight"], ranks)
            of_ranks.append(grads)
        for name in of_ranks[0]:
            sums = run_rounds(
                [
                    pipeline.bucket_round("unit", {name: grads[name]})
                    for pipeline, grads in zip(pipelines, of_ranks, strict=True)
                ]
            )
            expected = torch.from_numpy(sums[rank][0]) / ranks
            check_equal(found[name].reshape(-1), expected, f"{name} in step {step}")
    for kind in kinds:
        own = state.state_dict()[kind]
        expected_state = pipelines[rank].state_dict()[kind]
        assert own.keys() == expected_state.keys()
        assert "blocks.1.second.weight" in own
        for name, array in own.items():
            check_equal(array, torch.from_numpy(expected_state[name]), name)
    return state


@cases
def int4_is_as_in_one_process() -> None:
    topk = {"match": {"name": "*second*"}, "use": "residual|topk(ratio=0.1)"}
    state = check_in_one_process(matrices("residual|int4", topk))
    assert set(state.uncompressed.values()) == {"default rule: ndim <= 1"}
    assert "columns.weight" not in state.uncompressed
    assert state.stats.ratio > 4


@cases
def differences_are_as_in_one_process() -> None:
    """EF21, also in a step of mixed precision that every rank skips."""
    topk = {"match": {"name": "*second*"}, "use": "ef21(momentum=0.5)|topk(ratio=0.1)"}
    kinds = ("estimate", "estimate_rows")
    check_in_one_process(matrices("ef21|int4", topk), kinds=kinds)
    check_in_one_process(
        matrices("ef21|int4", topk),
        before=lambda one, step: one.set_loss_scale((4.0, 4.0, 2.0, 2.0)[step]),
        weight=lambda step, rank: float("inf") if (step, rank) == (1, 1) else 1.0,
        kinds=kinds,
    )


@cases
def reduced_on_devices() -> None:
    """Sums and residuals are those of the host, whatever the ranks' devices take."""
    topk = {"match": {"name": "*second*"}, "use": "residual(beta=0.9)|topk(ratio=0.1)"}
    for ranks, least in (({1}, 0), ({0, 1}, 1200)):
        with found(hvd.rank() in ranks, least) as device:
            check_in_one_process(matrices("int4", topk, device="auto"))
        for entry in ("launch", "give", "decode"):
            there = any(line.startswith(entry) for line in device.log)
            assert there is (hvd.rank() in ranks), device.log
        assert not any(line.startswith("begin") for line in device.log)


@cases
def reduced_from_device_to_device() -> None:
    """Messages of the uncompressed parameters, too, travel from device to device."""
    topk = {"match": {"name": "*second*"}, "use": "residual(beta=0.9)|topk(ratio=0.1)|raw32"}
    through_hosts = check_in_one_process(matrices("residual|int4", topk))
    with found(True) as device:
        state = check_in_one_process(matrices("residual|int4", topk, device="direct"))
    # Here messages have the core's frames.
    assert state.stats.sent_bytes == through_hosts.stats.sent_bytes
    assert any("ndim <= 1" in reason for reason in state.uncompressed.values())
    reduced = 4 * len(units(sharded()))
    assert device.log.count(f"begin {hvd.size()} messages") == reduced
    assert device.log.count(f"add {hvd.size()} messages") == reduced


@cases
def unused_parameters() -> None:
    """They count as zero, also where one rank alone uses them; otherwise the error has a remedy."""
    stock, own = sharded(), sharded()
    fsdp_reduce_scatter("identity", own)
    if not hasattr(stock, "set_reduce_scatter_unused_params"):
        refused(partial(backward, own, 0, both=False), ConfigError, "'blocks.1'", "or PyTorch 2.13")
        return
    stock.set_reduce_scatter_unused_params(True)
    for both, used in ((False, False), (hvd.rank() == 0, True), (True, True)):
        for model in (stock, own):
            backward(model, 0, both=both)
        check_gradients(own, stock)
        grad = gradients(own)["blocks.0.second.weight"]
        assert bool(grad.any()) == used
    own.set_reduce_scatter_unused_params(False)
    refused(partial(backward, own, 0, both=False), ConfigError, "'blocks.1'", "unused_params(True)")


@cases
def reductions() -> None:
    """Averages, sums with a factor, and a reduction that is not supported."""
    stock, own = sharded(), sharded()
    fsdp_reduce_scatter("identity", own)
    for model in (stock, own):
        for unit in units(model):
            unit.set_force_sum_reduction_for_comms(False)
        backward(model, 0)
    check_gradients(own, stock)
    for unit in units(own):
        unit.set_gradient_divide_factor(4.0)
    refused(partial(backward, own, 0), ConfigError, "set_force_sum_reduction_for_comms(True)")
    again = sharded()
    fsdp_reduce_scatter("identity", again)
    for unit in units(again):
        unit.set_gradient_divide_factor(4.0)
    backward(again, 0)
    expected = gradients(stock)
    for name, grad in gradients(again).items():
        check_equal(grad, expected[name] / 2, name)


def as_it_was(model: Model) -> dict[str, torch.Tensor]:
    return {name: one.to_local().clone() for name, one in model.named_parameters()}


@cases
@four
def resume() -> None:
    """A run that goes on from a checkpoint ends in the same bits; without it, in others."""
    config = matrices("residual|topk(ratio=0.05)")
    home = harness.shared / f"fsdp-{hvd.size()}"
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = fsdp_reduce_scatter(config, model)
    trained(model, range(3), optimizer)
    state.save(home, 3)
    middle = as_it_was(model)
    trained(model, range(3, 6), optimizer)
    end = as_it_was(model)
    for loads in (True, False):
        other = sharded()
        with torch.no_grad():
            for name, one in other.named_parameters():
                one.to_local().copy_(middle[name])
        begun = fsdp_reduce_scatter(config, other)
        if loads:
            assert begun.load(home) == 3
        trained(other, range(3, 6), torch.optim.SGD(other.parameters(), lr=0.1))
        same = {name: torch.equal(end[name], one) for name, one in as_it_was(other).items()}
        assert all(same.values()) == loads, same
    saved = state.state_dict()
    refused(lambda: state.load_state_dict([saved]), StateError, "'columns.weight'", "own state")


@cases
def ranks_apart() -> None:
    """Errors of the backward pass, and of the beginning."""
    model = sharded()
    state = fsdp_reduce_scatter("residual|int4", model)
    state.set_step(hvd.rank())
    refused(partial(backward, model, 0), ProtocolError, "the script's step", "rank 1")
    own = "residual|int4" if hvd.rank() else "residual|int8"
    refused(partial(fsdp_reduce_scatter, own, model), ProtocolError, "different compression")
    converted = model.double() if hvd.rank() else model
    refused(partial(fsdp_reduce_scatter, "int8", converted), ProtocolError, "of float64, digest")


@cases
def refusals() -> None:
    join()
    refused(partial(fsdp_reduce_scatter, "int4", made()), ConfigError, "call", "fully_shard first")
    model = sharded()
    compress = {"default": "int4"}
    for settings, word in (
        ({"compress": {"default": "powersgd(rank=2)"}}, "needs a codec"),
        ({"compress": {**compress, "policy": "auto"}}, "policy: auto is for ddp_hook"),
        ({"compress": {**compress, "exchange": "gather"}}, "has no exchange: gather"),
        ({"compress": compress, "check_replicas_every": 9}, "check_replicas_every is for ddp_hook"),
        ({"compress": compress, "stats": {"profile": "x", "error": True}}, "stats.error is for"),
    ):
        wanted = Config.from_mapping({"version": 1, **settings})
        refused(partial(fsdp_reduce_scatter, wanted, model), ConfigError, word)


@cases
def a_part_named_model() -> None:
    """As in most models of Hugging Face; the model itself is compressed, too."""
    join()
    model = nn.Sequential()
    model.add_module("model", nn.Linear(9, 8))
    model.add_module("head", nn.Linear(8, 5))
    for module in (model.model, model):
        fully_shard(module)
    alone = dist.new_group([hvd.rank()], use_local_synchronization=True)
    between = fsdp_hook("identity", model, alone)
    inside = fsdp_reduce_scatter("identity", model)
    model(torch.ones(3, 9)).sum().backward()
    assert set(between.state_dict()["rounds"]) == {"model", "whole model"}
    assert set(inside.state_dict()["rounds"]) == set(dict(model.named_parameters()))


@cases
def parameters_are_in_the_order_of_torch() -> None:
    """Also of modules that are wrapped together."""
    join()
    model = nn.Sequential(nn.Linear(9, 8), nn.TransformerEncoderLayer(8, 2, 6), nn.Linear(8, 7))
    fully_shard([model[0], model[2]])
    fully_shard(model)
    for one in (model, sharded()):
        for unit in units_of(one):
            state = unit.module._get_fsdp_state()
            # PyTorch 2.9 and 2.10 have one, later versions a list.
            (group,) = getattr(state, "_fsdp_param_groups", None) or (state._fsdp_param_group,)
            expected = [id(each.sharded_param) for each in group.fsdp_params]
            found = [id(each.parameter) for each in unit.parameters]
            assert found == expected, unit.name
    fsdp_reduce_scatter("int4", model)
    model(torch.ones(3, 9)).sum().backward()


@four
def both_levels() -> None:
    """Two machines of two ranks: compressed inside, between, both, and native HSDP."""
    join()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    between = mesh.get_group("replicate")
    models = {
        "between": sharded(mesh["shard"]),
        "both": sharded(mesh["shard"]),
        "native": sharded(mesh),
        "stock": sharded(mesh),
    }
    for name in ("between", "both"):
        fsdp_hook("identity", models[name], between)
    for name in ("both", "native"):
        fsdp_reduce_scatter("identity", models[name])
    for model in models.values():
        backward(model, 0)
    check_gradients(models["both"], models["between"])
    check_gradients(models["native"], models["stock"])
    check_gradients(models["both"], models["stock"], atol=1e-6)

    inside, outside = sharded(mesh["shard"]), sharded(mesh)
    states = [
        fsdp_reduce_scatter(matrices("residual|int4"), inside),
        fsdp_hook(matrices("residual|topk(ratio=0.05)"), inside, between),
        fsdp_reduce_scatter(matrices("residual|int4"), outside),
    ]
    for model in (inside, outside):
        trained(model, range(3), torch.optim.SGD(model.parameters(), lr=0.1))
        for name, one in model.named_parameters():
            of_machines = [torch.empty_like(one.to_local()) for _ in range(2)]
            dist.all_gather(of_machines, one.to_local().detach().contiguous(), group=between)
            check_equal(*of_machines, name)
    assert all(state.stats.ratio > 3 for state in states)
    home = harness.shared / "fsdp-both"
    states[2].save(home, 1)
    assert states[2].load(home) == 1


@four
def four_ranks() -> None:
    """Close to stock's sums; and states of another number of ranks."""
    stock, own = sharded(), sharded()
    state = fsdp_reduce_scatter("identity", own)
    for model in (stock, own):
        backward(model, 0)
    check_gradients(own, stock, atol=1e-6)
    join()
    plain = nn.Linear(100, 90)
    fully_shard(plain)
    state = fsdp_reduce_scatter("residual|topk(ratio=0.1)", plain)
    states = []
    for rank in range(3):
        pipeline = Pipeline(state.config, rank, 3, scatters=True)
        states.append(
            {**pipeline.state_dict(), "residual": {"weight": np.full(9000, rank + 1.0, np.float32)}}
        )
    state.load_state_dict(states)
    assert torch.equal(state.state_dict()["residual"]["weight"], torch.full([9000], 2.0))
