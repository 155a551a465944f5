"""Averages between machines that arrive while the backward pass of earlier layers goes on (FSDP2)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint
from workers.ddp_model import join
from workers.harness import Cases, check_equal, refused
from workers.ranks import hvd

from gradcomp import Config, ConfigError
from gradcomp.adapter_api import Driver, Pipeline
from support.core_tensors import found
from support.pipelines import configured
from torch_compressors.fsdp import FSDPCompression, fsdp_hook
from torch_compressors.fsdp.sharded import sharded_modules
from torch_compressors.gloo.engine import GlooEngine, message_limit

cases = Cases()
four = Cases()
"""Cases that need several ranks in each machine."""

WIDTH = 80
"""Shards of a layer have enough elements to be compressed."""

SPEC = "residual|topk(ratio=0.1)"

ALL = {"0", "1", "2"}
"""The layers with gradients that come before the backward pass reaches the last one, which is 3."""


class Tower(nn.Module):
    """Layers of their own, and an embedding with a gradient that comes after the engine's last node.

    Attributes:
        shards: this rank's parameters, also while modules have whole ones.
        repeats: the next step applies layer 1 twice.
        extends: it applies ``extra``.
        checkpoints: the layers are computed again in the backward pass, in passes of their own.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(90, WIDTH)
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(4)])
        self.extra = nn.Linear(WIDTH, WIDTH)
        self.shards: dict[str, Any] = {}
        self.repeats = self.extends = self.checkpoints = False

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in reversed(self.layers):
            if self.checkpoints:
                x = x + torch.relu(checkpoint(layer, x, use_reentrant=True))
            else:
                x = x + torch.relu(layer(x))
        if self.extends:
            x = self.extra(x)
        if self.repeats:
            x = self.layers[1](x)
        return x.square().mean()


def machines() -> DeviceMesh:
    join()
    shape = (2, hvd.size() // 2)
    return init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))


def tower(mesh: DeviceMesh, together: bool = False, **options: Any) -> Tower:
    """A model that is sharded inside of each machine.

    Args:
        together: layers 1 and 2 are one unit.
        options: of ``fully_shard``.
    """
    torch.manual_seed(7)
    model = Tower()
    layers: Any = model.layers
    parts: list[Any] = [[layers[1], layers[2]]] if together else [layers[1], layers[2]]
    for part in (*parts, layers[0], layers[3], model.extra, model):
        fully_shard(part, mesh=mesh["shard"], **options)
    model.shards = dict(model.named_parameters())
    return model


def ends_at_once(config: Config, model: Tower, group: dist.ProcessGroup) -> Pipeline:
    """Average as `fsdp_hook` does, but before a module's hook returns."""
    pipeline = Pipeline(config, group.rank(), group.size(), 1)
    ranks = dist.get_process_group_ranks(group)
    own = dist.new_group(ranks, None, "gloo", use_local_synchronization=True)
    driver = Driver(GlooEngine({"all": own}, message_limit([10**6], 0)))

    def average(name: str, shard: torch.Tensor) -> None:
        flat = shard.reshape(1, -1).float().numpy()
        found = driver.run(pipeline.round(name, flat, shard.nbytes))
        shard.copy_(torch.from_numpy(found).view_as(shard))

    for name, module in sharded_modules(model).items():
        module.set_all_reduce_hook(partial(average, name))
    return pipeline


def tokens(step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + hvd.rank())
    return torch.randint(0, 90, (16,), generator=generator)


def gradients(model: Tower) -> dict[str, torch.Tensor]:
    return {
        name: one.grad.to_local().clone()
        for name, one in model.shards.items()
        if one.grad is not None
    }


def backward(model: Tower, step: int) -> set[str]:
    """A backward pass; the layers of `ALL` with averages that come after it has reached layer 3."""
    before: dict[str, torch.Tensor] = {}

    def look(layer: nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        output.register_hook(lambda grad: before.update(gradients(model)))

    hook = model.layers[-1].register_forward_hook(look)
    model(tokens(step)).backward()
    hook.remove()
    after = gradients(model)
    names = {layer: f"layers.{layer}.weight" for layer in ALL}
    return {layer for layer, one in names.items() if not torch.equal(before[one], after[one])}


def check_gradients(one: Tower, other: Tower, what: str) -> None:
    found, expected = gradients(one), gradients(other)
    assert found.keys() == expected.keys()
    assert len(found) > 8
    for name, grad in found.items():
        check_equal(grad, expected[name], f"{what}: {name}")


def check_steps(
    config: Config,
    late: set[str],
    prepared: Callable[[Tower], None] = lambda _: None,
    passes: Sequence[int] = (1, 1, 2, 1),
    **options: Any,
) -> FSDPCompression:
    """Compare steps with those of exchanges that end at once, to the last bit.

    Args:
        late: the layers with averages that come late, from the second backward pass on.
        prepared: called with each sharded model.
        passes: number of backward passes of each step, with accumulated gradients.
        options: of `tower`.
    """
    mesh = machines()
    group = mesh.get_group("replicate")
    own, other = tower(mesh, **options), tower(mesh, **options)
    for model in (own, other):
        prepared(model)
    state = fsdp_hook(config, own, group)
    pipeline = ends_at_once(config, other, group)
    optimizers = [torch.optim.SGD(model.shards.values(), lr=0.1) for model in (own, other)]
    first = True
    for step, count in enumerate(passes):
        for model in (own, other):
            # Gradients of zero, to which others are added, as well as none.
            for one in model.shards.values():
                if one.grad is not None and step == 1:
                    one.grad.zero_()
                else:
                    one.grad = None
        for each in range(count):
            found = backward(own, 10 * step + each)
            assert found == (set() if first else late), (step, found)
            assert not backward(other, 10 * step + each)
            first = False
            check_gradients(own, other, f"step {step}")
        norms = []
        for model, optimizer in zip((own, other), optimizers, strict=True):
            norms.append(nn.utils.clip_grad_norm_(model.shards.values(), 0.01).full_tensor())
            optimizer.step()
            for module in sharded_modules(model).values():
                module.reshard()  # where the backward pass does not
        assert norms[0] > 0.01
        check_equal(*norms)
    expected = pipeline.state_dict()
    assert state.state_dict()["rounds"] == expected["rounds"]
    for name, residual in state.state_dict()["residual"].items():
        check_equal(residual, torch.from_numpy(expected["residual"][name]), name)
    return state


SPECS = [
    Config.from_spec("identity"),
    Config.from_spec("fp16"),
    Config.from_spec("int8"),
    Config.from_spec(SPEC),
    configured(SPEC, exchange="sra"),
    configured("residual|int4", exchange="sra"),
    configured(SPEC, exchange="sparse_allreduce"),
    Config.from_spec("chunk_allreduce(ratio=0.1)"),
]


@cases
def averages_are_those_of_exchanges_that_end_at_once() -> None:
    """Also accumulated over two passes and clipped; exchanges of one phase and of several."""
    for config in SPECS:
        check_steps(config, ALL)


@cases
def shards_on_devices() -> None:
    """Averages are those of the host; exchanges end at once on all ranks, also where one has no device."""
    everywhere, first = True, hvd.rank() == 0
    kept = f"{SPEC}|raw32"  # of one size on all ranks
    for here, device, peer in (
        (everywhere, "auto", False),
        (first, "auto", False),
        (everywhere, "direct", True),
        (first, "direct", False),
    ):
        for spec, exchange in (("identity", "auto"), (kept, "gather"), ("residual|int4", "sra")):
            config = configured(spec, exchange=exchange, device=device)
            with found(here) as there:
                # Without a device there is nothing to wait for, but other ranks do not.
                late = ALL if spec == "identity" and not peer else set()
                if exchange == "sra" and not peer:
                    late = ALL  # the host's, without `direct`
                check_steps(config, late)
            calls = {line.split()[0] for line in there.log}
            expected = {"launch", "wait", "decode"} if spec == kept else set()
            if peer and spec != "identity":
                expected = {"begin", "launch", "wait", "add", "decode"}
            assert calls == (expected if here else set()), (spec, device, there.log)


def overlapping() -> Iterator[Tower]:
    """A model after its first backward pass, for exchanges of one phase and of several."""
    mesh = machines()
    model = tower(mesh)
    for config in (Config.from_spec("fp16"), configured(SPEC, exchange="sra")):
        fsdp_hook(config, model, mesh.get_group("replicate"))
        model.zero_grad()
        backward(model, 0)
        yield model


@cases
def the_backward_pass_does_not_wait() -> None:
    """Rank 1 begins its backward pass when that of rank 0 has reached layer 3."""
    for model in overlapping():
        word = torch.zeros(1)

        def reached(layer: nn.Module, inputs: Any, output: torch.Tensor, word: Any = word) -> None:
            output.register_hook(lambda grad: dist.send(word, 1))

        hooks = [model.layers[-1].register_forward_hook(reached)] if hvd.rank() == 0 else []
        loss = model(tokens(1))
        if hvd.rank() == 1:
            dist.recv(word, 0)
        loss.backward()
        for hook in hooks:
            hook.remove()


def events(model: Tower, step: int) -> list[str]:
    """Events of a backward pass in order: layers that it reaches, and calls of the engine."""
    log: list[str] = []

    def seen(what: str) -> Any:
        stock: Any = getattr(GlooEngine, what)

        def call(engine: GlooEngine, *arguments: Any) -> Any:
            log.append(" ".join([what, *(one.name for one in arguments if what == "start")]))
            return stock(engine, *arguments)

        return mock.patch.object(GlooEngine, what, call)

    def reached(number: int, layer: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        output.register_hook(lambda grad: log.append(f"layer {number}"))

    hooks = [
        layer.register_forward_hook(partial(reached, number))
        for number, layer in enumerate(model.layers)
    ]
    with seen("start"), seen("flush"), seen("finish"):
        model(tokens(step)).backward()
    for hook in hooks:
        hook.remove()
    return log


@cases
def exchanges_are_under_way() -> None:
    """Each one is on the network before the next layer's backward pass, and none is awaited."""
    for model in overlapping():
        found = events(model, 1)
        before = found[: found.index("layer 3")]
        assert [re.sub(r"(layers\.\d).*", r"\1", one) for one in before] == [
            *("layer 0", "start layers.0", "flush"),
            *("layer 1", "start layers.1", "flush"),
            *("layer 2", "start layers.2", "flush"),
        ], found
        assert "finish" in found


@cases
def modules_of_all_kinds() -> None:
    config = Config.from_spec(SPEC)
    bf16 = torch.bfloat16
    # One dtype for all: the gradients are the output.
    for dtype in (bf16, torch.float16):
        check_steps(config, ALL, lambda model, dtype=dtype: model.to(dtype))
    check_steps(config, ALL, together=True)
    check_steps(config, ALL, offload_policy=CPUOffloadPolicy(pin_memory=False))
    check_steps(config, ALL, lambda model: model.set_reshard_after_backward(False))
    # The output is cast to the parameters' dtype.
    check_steps(config, set(), mp_policy=MixedPrecisionPolicy(bf16, bf16))
    check_steps(config, ALL, mp_policy=MixedPrecisionPolicy(bf16, torch.float32))


@cases
def a_hook_on_one_rank() -> None:
    """It gets the averages, and the ranks still make requests in one order."""
    mesh = machines()
    model = tower(mesh)
    group = mesh.get_group("replicate")
    seen = []
    if hvd.rank() == 1:
        weight: Any = model.layers[2].weight
        weight.register_post_accumulate_grad_hook(lambda one: seen.append(one.grad.to_local()))
    fsdp_hook(configured(SPEC, exchange="sra"), model, group)
    for step in range(3):
        model.zero_grad()
        assert backward(model, step) == (ALL - {"2"} if step else set())
        if seen:
            check_equal(seen[-1], gradients(model)["layers.2.weight"], str(step))
    assert len(seen) == 3 * hvd.rank()


@cases
def changes_after_the_first_pass() -> None:
    """Averages that would be lost are errors with a remedy."""
    mesh = machines()
    group = mesh.get_group("replicate")
    model = tower(mesh)
    fsdp_hook(SPEC, model, group)
    backward(model, 0)
    weight: Any = model.layers[2].weight
    hook = weight.register_post_accumulate_grad_hook(lambda one: None)
    words = "register_post_accumulate_grad_hook", "call fsdp_hook again"
    refused(partial(backward, model, 1), ConfigError, "'layers.2'", *words)
    hook.remove()
    model = tower(mesh)
    fsdp_hook(SPEC, model, group)
    backward(model, 0)
    layer: Any = model.layers[2]
    layer.set_gradient_divide_factor(2.0)
    layer.set_force_sum_reduction_for_comms(True)
    refused(partial(backward, model, 1), ConfigError, "'layers.2'", "call fsdp_hook again")


@cases
def parameters_that_come_after_the_hook() -> None:
    """A model that is made without memory."""
    mesh = machines()
    with torch.device("meta"):
        model = tower(mesh)
    fsdp_hook(SPEC, model, mesh.get_group("replicate"))
    model.to_empty(device="cpu")
    model.shards = dict(model.named_parameters())
    for one in model.shards.values():
        nn.init.normal_(one.to_local(), std=0.1)
    assert backward(model, 0) == set()
    assert backward(model, 1) == ALL


@cases
def a_pass_after_one_that_failed() -> None:
    """The averages of the failed pass reach no gradients."""
    mesh = machines()
    model = tower(mesh)
    fsdp_hook(SPEC, model, mesh.get_group("replicate"))
    backward(model, 0)

    def fail(grad: torch.Tensor) -> None:
        raise ArithmeticError

    def failing(layer: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        output.register_hook(fail)

    hook = model.layers[-1].register_forward_hook(failing)
    refused(model(tokens(1)).backward, ArithmeticError)
    hook.remove()
    root: Any = model
    root.reset_iter_state()
    model.zero_grad()
    refused(model(tokens(2)).backward, ConfigError, "build the model again")


@cases
def other_modules_in_each_pass() -> None:
    """Layers that are applied twice, that join later, and that are computed again."""
    mesh = machines()
    group = mesh.get_group("replicate")
    own, other = tower(mesh), tower(mesh)
    state = fsdp_hook(SPEC, own, group)
    pipeline = ends_at_once(state.config, other, group)
    for step in range(6):
        for model in (own, other):
            model.zero_grad()
            model.repeats = step in (1, 2, 5)
            model.extends = step in (2, 3, 4)
            model.checkpoints = step in (4, 5)
            model(tokens(step)).backward()
        check_gradients(own, other, f"step {step}")
    assert state.state_dict()["rounds"] == pipeline.state_dict()["rounds"]


@cases
def reduction_after_the_backward_pass() -> None:
    """As schedules of pipelines do it, outside of the autograd engine."""
    mesh = machines()
    group = mesh.get_group("replicate")
    own, other = tower(mesh), tower(mesh)
    state = fsdp_hook(SPEC, own, group)
    ends_at_once(state.config, other, group)
    for step in range(3):
        for model in (own, other):
            model.zero_grad()
            model.set_requires_gradient_sync(step == 1)
            model(tokens(step)).backward()
            if step == 1:
                continue
            model.set_requires_gradient_sync(True)
            root: Any = model
            fsdp_state = root._get_fsdp_state()
            for each in fsdp_state._state_ctx.all_states:
                for parameters in each._fsdp_param_groups:
                    parameters.post_backward()
            fsdp_state._root_post_backward_final_callback()
        check_gradients(own, other, f"step {step}")


@four
def divided_sums() -> None:
    """Sums that are divided after the exchange: it ends at once."""
    config = Config.from_spec(SPEC)

    def force(model: Tower) -> None:
        for module in sharded_modules(model).values():
            module.set_force_sum_reduction_for_comms(True)

    check_steps(config, set(), force)
    for one in (config, configured(SPEC, exchange="sra")):
        check_steps(one, ALL)
