"""Loss scales, clipping, learning rates, torch.compile and uneven data of sharded models (FSDP2)."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.nn.parallel import DistributedDataParallel
from workers import fsdp
from workers.harness import Cases, check_equal, refused
from workers.ranks import Compression, hvd

from gradcomp import ConfigError
from support.core_tensors import found
from torch_compressors import GossipDataParallel
from torch_compressors.fsdp import fsdp_hook, fsdp_reduce_scatter

cases = Cases()

OVERFLOW = 3
"""The step of mixed precision with an Inf on rank 1."""


def _parameters(model: nn.Module) -> dict[str, torch.Tensor]:
    """This rank's parts."""
    return {name: one.to_local().detach().clone() for name, one in model.named_parameters()}


def _overflow(embedding: nn.Module, inputs: Any, output: torch.Tensor) -> None:
    """A hook that lets one row of one gradient overflow, which lies in the shard of one rank."""

    def overflowing(grad: torch.Tensor) -> torch.Tensor:
        grad = grad.clone()
        grad[0] = torch.inf
        return grad

    output.register_hook(overflowing)


def _trained(
    scaler: torch.amp.GradScaler, follows: bool, device: str = "host", **options: Any
) -> nn.Module:
    """A model after some steps with a loss scale; without one, the step that overflows is left out.

    Args:
        scaler: may be disabled.
        follows: the state reads the scale itself.
        device: ``compress.device``.
        options: of ``fully_shard``.
    """
    model = fsdp.sharded(**options)
    config = fsdp.matrices("residual|topk(ratio=0.1)|raw32", device=device)
    state = fsdp_reduce_scatter(config, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
    if follows:
        state.follow_scaler(scaler)
    before: dict[str, torch.Tensor] = {}
    for step in range(6):
        overflows = step == OVERFLOW
        if overflows and not scaler.is_enabled():
            continue
        if not follows:
            state.set_loss_scale(scaler.get_scale())
        saved = state.state_dict()
        residuals = {name: one / saved["loss_scale"] for name, one in saved["residual"].items()}
        if step == OVERFLOW + 1 and scaler.is_enabled():
            assert before
            for name, one in before.items():
                check_equal(residuals[name], one, name)  # the skipped step left no trace
        before = residuals
        optimizer.zero_grad()
        hook = None
        if overflows and hvd.rank() == 1:
            hook = model.embedding.register_forward_hook(_overflow)
        scaler.scale(model(fsdp.tokens(step))).backward()
        if hook is not None:
            hook.remove()
        whole = {name: bool(one.isfinite().all()) for name, one in fsdp.gradients(model).items()}
        assert whole == {name: not overflows or name != "embedding.weight" for name in whole}
        old = _parameters(model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about PyTorch's own scaler
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        skipped = all(torch.equal(one, old[name]) for name, one in _parameters(model).items())
        assert skipped == overflows, step
    return model


def _check_equal_models(one: nn.Module, other: nn.Module) -> None:
    expected = _parameters(other)
    for name, value in _parameters(one).items():
        check_equal(value, expected[name], name)


@cases
def loss_scale_and_clipping() -> None:
    """All ranks skip a step with an overflow in one shard; the others are those of float32."""

    plain = _trained(torch.amp.GradScaler("cpu", enabled=False), follows=False)
    for kind, follows in ((torch.amp.GradScaler, True), (ShardedGradScaler, False)):
        scaler = kind("cpu", init_scale=1024.0, growth_interval=2)
        _check_equal_models(_trained(scaler, follows), plain)
        assert scaler.get_scale() == 2048.0
    half = MixedPrecisionPolicy(param_dtype=torch.float16, reduce_dtype=torch.float16)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2)
    _trained(scaler, follows=True, mp_policy=half)


@cases
def a_loss_scale_of_shards_on_devices() -> None:
    """The models are those of the host, and the skipped step leaves no trace in residuals on devices."""
    plain = _trained(torch.amp.GradScaler("cpu", enabled=False), follows=False)
    for setting, sign in (("auto", "launch"), ("direct", "begin")):
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
        with found(True) as device:
            _check_equal_models(_trained(scaler, follows=True, device=setting), plain)
        for entry in (sign, "poison"):
            assert any(line.startswith(entry) for line in device.log), device.log


@cases
def clipping_is_stock() -> None:
    """The norm of averages over all shards, and the clipped gradients."""
    stock, own = fsdp.sharded(), fsdp.sharded()
    fsdp_reduce_scatter("identity", own)
    norms = []
    for model in (stock, own):
        fsdp.backward(model, 0)
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1).full_tensor())
    assert norms[0] > 0.1
    check_equal(*norms)
    fsdp.check_gradients(own, stock)


@cases
def residuals_follow_the_learning_rate() -> None:
    spec = "residual(lr=scale)|topk(ratio=0.1)"
    state = fsdp.check_in_one_process(
        fsdp.matrices(spec), lambda one, step: one.set_lr(0.5 / (step + 1))
    )
    assert {float(one) for one in state.state_dict()["residual_lr"].values()} == {0.125}
    model = fsdp.sharded()
    fsdp_reduce_scatter(fsdp.matrices(spec), model)
    refused(lambda: fsdp.backward(model, 0), ConfigError, "set_lr")


def _compiled(one: Any) -> Any:
    return torch.compile(one, backend="aot_eager")


def _compile_blocks(model: fsdp.Model) -> None:
    model.blocks = nn.ModuleList(map(_compiled, model.blocks))


@cases
def compile_of_sharded_models() -> None:
    """Parameters and modules keep their names, for rules and checkpoints."""
    topk = {"match": {"name": "blocks.1.second*"}, "use": "residual|topk(ratio=0.1)"}
    config = fsdp.matrices("residual|int4", topk)
    alone = dist.new_group([hvd.rank()], use_local_synchronization=True)
    wanted: Any = None
    for where in ("nowhere", "around", "inside"):
        torch._dynamo.reset()
        model = fsdp.sharded(prepared=_compile_blocks) if where == "inside" else fsdp.sharded()
        called = _compiled(model) if where == "around" else model
        state = fsdp_reduce_scatter(config, called)
        between = fsdp_hook("identity", called, alone)
        for step in range(2):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about PyTorch's own code
                fsdp.backward(called, step)
        found = [
            {name.replace("_orig_mod.", ""): one for name, one in fsdp.gradients(model).items()},
            state.state_dict()["residual"],
        ]
        rounds = [state.state_dict()["rounds"], between.state_dict()["rounds"]]
        if wanted is None:
            wanted = found, rounds
        assert rounds == wanted[1], where
        for ours, eager in zip(found, wanted[0], strict=True):
            assert ours.keys() == eager.keys(), where
            for name, one in ours.items():
                check_equal(one, eager[name], f"{where}: {name}")


@cases
def sharded_models_are_refused_elsewhere() -> None:
    model = fsdp.sharded()
    for make in (
        lambda: GossipDataParallel(model),
        lambda: Compression("int8", model.named_parameters()),
    ):
        refused(make, ConfigError, "is sharded over ranks", "use torch_compressors.fsdp")
    refused(lambda: DistributedDataParallel(model), RuntimeError)  # PyTorch's own
    refused(
        lambda: fsdp_reduce_scatter("dgc(ratio=0.01)", model),
        ConfigError,
        "momentum_correction",
        "leave the momentum to the optimizer",
    )


@cases
def uneven_data() -> None:
    """A rank without data takes part by a pass with a loss multiplied by 0."""
    fsdp.check_in_one_process(
        fsdp.matrices("residual|int4"), weight=lambda step, rank: float(step < 2 + rank)
    )
