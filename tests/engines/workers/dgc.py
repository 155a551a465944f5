"""Deep Gradient Compression on real Horovod: the authors' data, replicas, and the optimizer."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import horovod.torch as hvd
import torch
from dgc_reference import config_of_case
from workers import harness
from workers.harness import MATRIX, Cases

from gradcomp import ConfigError, Loopback, ProtocolError
from horovod_compressors.torch import Compression
from support.pipelines import configured
from support.plugins import register_python
from support.reference import reference
from torch_compressors import DGCSGD

cases = Cases()


@cases
def the_authors_data() -> None:
    """A reference case of two ranks without sampling: averages and state."""
    about, arrays = reference("dgc-03")
    assert about["world_size"] == hvd.size()
    params = harness.parameters_of(about)
    compression = Compression(config_of_case(about), params.items())
    compression.set_epoch(0)
    opt = harness.optimizer(params, compression)
    for step, averages in harness.replay(about, arrays, "out", opt, params):
        state = compression.state_dict()
        for kind, theirs in (("momentum", "momentum"), ("residual", "velocity")):
            for name in averages:
                if f"{theirs}.{name}" in arrays:
                    expected = arrays[f"{theirs}.{name}"][step, hvd.rank()]
                    harness.check_close(about, state[kind][name].numpy(), expected)


@cases
def as_the_loopback() -> None:
    """100 steps of every codec that works with momentum correction, with warm-up; see replicas.py."""
    memory = "momentum_correction(nesterov=true,clip=scaled_norm,clip_norm=5)"
    takes = ["identity", "topk(ratio=0.05)", "sampled_topk(ratio=ramp(from=0.3,to=0.02,steps=60))"]
    takes += ["threshold(tau=0.5,values=fp16)", "chunktopk(ratio=0.1,chunk=8,values=int8)"]
    takes += ["chunk_allreduce(ratio=steps([0.5,0.1],every=30),chunk=16)"]
    takes += ["globaltopk(ratio=epochs([0.2,0.05]))|rice"]
    uses = [f"{memory}|{codec}" for codec in takes]
    register_python()
    uses.append(memory.replace("(", "(masking=false,") + "|bf8(stochastic=true)")
    uses += [
        uses[1].replace("scaled_norm", "joint_norm"),
        uses[5].replace("scaled_norm", "joint_norm"),
    ]
    rules = [
        {"match": {"name": f"*.{position}.*"}, "use": use} for position, use in enumerate(uses)
    ]
    config = configured(f"{memory}|identity", rules=rules)
    shapes = {f"{position}.{n}": (24, 10 + n) for position in range(len(uses)) for n in range(2)}
    params = harness.parameters(shapes)
    compression = Compression(config, params.items())
    opt = harness.optimizer(params, compression)
    loopback = Loopback(config, hvd.size())
    for step in range(100):
        for one in (compression, loopback):
            one.set_epoch(step // 50)
        of_ranks = [harness.gradients(params, step, rank) for rank in range(hvd.size())]
        averages = harness.averages(opt, params, of_ranks[hvd.rank()])
        expected = loopback.step({name: [grads[name] for grads in of_ranks] for name in params})
        for name, average in averages.items():
            harness.check_equal(average, expected[name][hvd.rank()], f"{step}: {name}")
    for name, p in params.items():
        harness.check_same_on_all_ranks(p, name)


@cases
def all_elements_are_sgd() -> None:
    """With all elements sent and no masking, DGCSGD's steps equal SGD's on averaged gradients."""
    for nesterov, codec in itertools.product((False, True), ("topk(ratio=1)", "randomk(ratio=1)")):
        word = str(nesterov).lower()
        spec_text = f"momentum_correction(masking=false,nesterov={word})|{codec}"
        shapes = {"matrix": MATRIX, "bias": (9,)}
        params = harness.parameters(shapes)
        twins = [torch.nn.Parameter(torch.ones(shape)) for shape in shapes.values()]
        options = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": nesterov}
        for p in params.values():
            p.data.fill_(1.0)
        opt = hvd.DistributedOptimizer(
            DGCSGD(params.values(), **options),
            named_parameters=list(params.items()),
            compression=Compression(spec_text, params.items()),
        )
        plain = torch.optim.SGD(twins, **options)
        for step in range(5):
            harness.averages(opt, params, harness.gradients(params, step))
            of_ranks = [harness.gradients(params, step, rank) for rank in range(hvd.size())]
            for twin, name in zip(twins, params, strict=True):
                twin.grad = sum(grads[name] for grads in of_ranks) / hvd.size()
            plain.step()
        for twin, p in zip(twins, params.values(), strict=True):
            torch.testing.assert_close(p, twin, rtol=1e-4, atol=1e-5)


@cases
def clipping_by_the_norm_of_the_model() -> None:
    """Gradients of torch.autograd.grad are clipped together before any is sent."""
    spec_text = "momentum_correction|topk(ratio=0.05)"
    params = harness.parameters({"first": MATRIX, "second": (90, 50), "bias": (9,)})
    opt = hvd.DistributedOptimizer(
        DGCSGD(params.values(), lr=0.1),
        named_parameters=list(params.items()),
        compression=Compression(spec_text, params.items()),
    )
    loopback, limit = Loopback(spec_text, hvd.size()), 0.5
    for step in range(3):
        of_ranks = [harness.gradients(params, step, rank) for rank in range(hvd.size())]
        mine = of_ranks[hvd.rank()]
        loss = sum((p * mine[name]).sum() for name, p in params.items())
        for p, grad in zip(
            params.values(), torch.autograd.grad(loss, params.values()), strict=True
        ):
            p.grad = grad
        torch.nn.utils.clip_grad_norm_(params.values(), limit)
        opt.synchronize()
        clipped = [_clipped(grads, limit) for grads in of_ranks]
        averages = loopback.step({name: [grads[name] for grads in clipped] for name in params})
        for name, p in params.items():
            harness.check_equal(p.grad, averages[name][hvd.rank()], f"{step}: {name}")
        with opt.skip_synchronize():
            opt.step()


def _clipped(grads: dict[str, torch.Tensor], limit: float) -> dict[str, torch.Tensor]:
    holders = [torch.nn.Parameter(torch.zeros_like(grad)) for grad in grads.values()]
    for holder, grad in zip(holders, grads.values(), strict=True):
        holder.grad = grad.clone()
    torch.nn.utils.clip_grad_norm_(holders, limit)
    return {name: holder.grad for name, holder in zip(grads, holders, strict=True)}


@cases
def momentum_twice() -> None:
    """An optimizer with a momentum of its own is refused on every rank, before anything is sent."""
    for make, part in (
        (lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9), "SGD has momentum=0.9"),
        (lambda p: torch.optim.Adam(p), "Adam has betas=(0.9, 0.999)"),
        (lambda p: DGCSGD(p, lr=1.0, momentum=0.8), "DGCSGD has momentum 0.8"),
        (lambda p: DGCSGD(p, lr=1.0, nesterov=True), "DGCSGD has nesterov True"),
    ):
        _refused_with(make, "dgc(warmup_epochs=0)", part)
    _refused_with(
        lambda p: DGCSGD(p, lr=1.0), "residual|topk(k=3)", "leaves the momentum to the compression"
    )


def _refused_with(make: Callable[[Any], Any], spec_text: str, part: str) -> None:
    params = harness.parameters({"w": MATRIX})
    opt = hvd.DistributedOptimizer(
        make(params.values()),
        named_parameters=list(params.items()),
        compression=Compression(spec_text, params.items()),
    )
    grads = harness.gradients(params, 0)
    harness.refused(lambda: harness.averages(opt, params, grads), ConfigError, part)


@cases
def epochs_that_nobody_tells() -> None:
    """Epochs that are missing or differ between ranks: an error on every rank."""
    for epoch, kind, part in (
        (None, ConfigError, "call set_epoch(epoch)"),
        (hvd.rank(), ProtocolError, "epoch: 0 on rank 0; 1 on rank 1"),
    ):
        params = harness.parameters({"w": MATRIX})
        compression = Compression("dgc", params.items())
        if epoch is not None:
            compression.set_epoch(epoch)
        step = partial(
            harness.averages,
            harness.optimizer(params, compression),
            params,
            harness.gradients(params, 0),
        )
        harness.refused(step, kind, part)
