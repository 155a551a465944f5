"""torch.compile, activation checkpointing and options of DDP together with our hook: the averages equal
those of an eager model, to the last bit."""

from __future__ import annotations

import gc
import time
import warnings
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from workers.ddp_model import join
from workers.harness import Cases, check_equal, check_same_on_all_ranks, refused
from workers.ranks import hvd

from gradcomp import ConfigError, _core
from gradcomp.adapter_api import Broadcast
from gradcomp.errors import ProtocolError, StateError
from gradcomp.exchange.algorithms.powersgd import PowerSGD
from support.pipelines import configured
from torch_compressors import OuterStep, ddp_hook
from torch_compressors.fsdp import fsdp_reduce_scatter

cases = Cases()

SPEC = "residual|topk(ratio=0.05)"

Averages = list[dict[str, torch.Tensor]]


class Layers(torch.nn.Module):
    """A perceptron of two buckets of DDP, one of its layers unused.

    Args:
        checkpointed: ``use_reentrant`` of activation checkpointing; None without it.
        repeated: passes through the middle layers.
    """

    def __init__(self, checkpointed: bool | None, repeated: int) -> None:
        super().__init__()
        self.first = torch.nn.Linear(20, 512)
        self.middle = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Tanh())
        self.last = torch.nn.Linear(512, 100)
        self.unused = torch.nn.Linear(70, 64)
        self.checkpointed = checkpointed
        self.repeated = repeated

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).relu()
        for _ in range(self.repeated):
            if self.checkpointed is None:
                x = self.middle(x)
            else:
                x = checkpoint(self.middle, x, use_reentrant=self.checkpointed)
        return self.last(x)


def _made(checkpointed: bool | None = None, repeated: int = 1) -> Layers:
    join()
    torch.manual_seed(0)
    return Layers(checkpointed, repeated)


def _wrapped(module: Any, **options: Any) -> Any:
    """In DDP, with our hook; the unused layer is frozen unless an option allows for it."""
    if not options:
        module.unused.requires_grad_(False)
    # Dynamo's buckets must not be below DDP's first, which has 1 MiB.
    model = DistributedDataParallel(module, bucket_cap_mb=1, **options)
    state, hook = ddp_hook(SPEC, model)
    model.register_comm_hook(state, hook)
    return model


def _compiled(model: Any, backend: str = "eager") -> Any:
    """Traced by Dynamo; ``aot_eager`` also traces the backward pass."""
    torch._dynamo.reset()
    return torch.compile(model, backend=backend)


def _averages(ddp: Any, forward: Any = None, parts: tuple[int, ...] = (1, 1, 1)) -> Averages:
    """The averages of some steps of SGD.

    Args:
        ddp: the model.
        forward: the compiled model around it.
        parts: number of micro-batches of each step, all but the last under ``no_sync``.
    """
    found = []
    model = ddp if forward is None else forward
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for step, number in enumerate(parts):
        optimizer.zero_grad()
        for part in range(number):
            seed = 100 * step + 10 * part + hvd.rank()
            x = torch.randn(8, 20, generator=torch.Generator().manual_seed(seed))
            # Dynamo warns about PyTorch's own code.
            with ddp.no_sync() if part < number - 1 else nullcontext(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model(x).square().mean().backward()
        named = ddp.module.named_parameters()
        found.append({n: p.grad.clone() for n, p in named if p.grad is not None})
        optimizer.step()
    return found


@cache
def _eager(repeated: int = 1, parts: tuple[int, ...] = (1, 1, 1)) -> Averages:
    return _averages(_wrapped(_made(repeated=repeated)), parts=parts)


def _check(found: Averages, wanted: Averages, label: str) -> None:
    for step, (one, other) in enumerate(zip(found, wanted, strict=True)):
        names = [name.removeprefix("_orig_mod.") for name in one]
        assert names == list(other), label
        for name, average in zip(names, one.values(), strict=True):
            check_equal(average, other[name], f"{label} {step}: {name}")
        check_same_on_all_ranks(torch.cat([one.reshape(-1) for one in one.values()]), label)


def _state(ddp: Any) -> Any:
    ((_, state),) = ddp._comm_hooks
    return state.state_dict()


@cases
def compile_around_and_inside() -> None:
    """Parameters keep their names, for rules and checkpoints; ``no_sync`` inside compiled steps."""
    parts = (1, 2, 1)
    eager = _wrapped(_made())
    wanted = _averages(eager, parts=parts)
    around = _wrapped(_made())
    _check(_averages(around, _compiled(around, "aot_eager"), parts), wanted, "around")
    inside = _wrapped(_compiled(_made(), "aot_eager"))
    _check(_averages(inside, parts=parts), wanted, "inside")
    for one in (around, inside):
        assert _state(one)["rounds"] == _state(eager)["rounds"]
        for name, residual in _state(eager)["residual"].items():
            check_equal(_state(one)["residual"][name], residual, name)


@cases
def compile_with_options_of_ddp() -> None:
    wanted = _eager()
    for options in ({"static_graph": True}, {"find_unused_parameters": True}):
        model = _wrapped(_made(), **options)
        _check(_averages(model, _compiled(model)), wanted, str(options))
    model = _wrapped(_made(checkpointed=False))
    _check(_averages(model, _compiled(model)), wanted, "checkpointed")


@cases
def compile_of_several_models() -> None:
    """As a generator and its judge."""
    wanted = _eager()
    models = [_wrapped(_made()) for _ in range(2)]
    both = _compiled(lambda x: (models[0](x), models[1](-x)))
    _check(_averages(models[0], lambda x: both(x)[0]), wanted, "one of two")


@cases
def activation_checkpointing() -> None:
    """Both kinds, also of layers that are used twice."""
    for repeated in (1, 2):
        wanted = _eager(repeated)
        for reentrant in (False, True):
            # PyTorch's own condition for the reentrant kind in layers that are used twice.
            options = {"static_graph": True} if reentrant and repeated > 1 else {}
            model = _wrapped(_made(reentrant, repeated), **options)
            _check(_averages(model), wanted, f"{repeated} {reentrant}")


@cases
def options_of_ddp_together() -> None:
    """Accumulation with the others; with ``static_graph`` the first step has one micro-batch, as
    PyTorch demands."""
    parts = (1, 2, 3)
    wanted = _eager(parts=parts)
    for checkpointed, options in (
        (False, {}),
        (None, {"static_graph": True}),
        (None, {"find_unused_parameters": True}),
        (False, {"static_graph": True, "gradient_as_bucket_view": True}),
    ):
        model = _wrapped(_made(checkpointed), **options)
        _check(_averages(model, parts=parts), wanted, f"{checkpointed} {options}")


@cases
def a_rank_uses_its_share_of_the_processors() -> None:
    before = _core.thread_count()
    with mock.patch("gradcomp.codec.threads.processors", return_value=3 * hvd.local_size() + 1):
        _wrapped(_made())
    used = _core.thread_count()
    _core.set_thread_count(before)
    assert used == 3, used


class Words(torch.nn.Module):
    """A sparse embedding, and a complex layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(100, 64, sparse=True)
        self.turn = torch.nn.Parameter(torch.ones(64, 64, dtype=torch.complex64))
        self.shift = torch.nn.Parameter(torch.ones(64, 2, dtype=torch.complex64).T)
        self.last = torch.nn.Linear(64, 64)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        turned = torch.einsum("ij,kj->ik", self.words(numbers) * (1 + 0.5j), self.turn)
        turned = turned + self.shift.sum(0)
        return self.last(turned.real + turned.imag)


@cases
def sparse_and_complex_gradients() -> None:
    """They travel uncompressed, as in DDP without a hook, where their rules allow it."""
    join()
    rules = [{"match": {"name": "words.*"}, "use": "identity"}]
    rules.append({"match": {"name": "turn"}, "use": "fp16"})
    config = configured(default=SPEC, rules=rules)
    numbers = torch.tensor([1, hvd.rank(), 3])
    for clip_norm, options in ((None, {}), (1e9, {}), (None, {"find_unused_parameters": True})):
        found = []
        for hooked in (False, True):
            torch.manual_seed(0)
            model = DistributedDataParallel(Words(), bucket_cap_mb=0.01, **options)
            if hooked:
                state, hook = ddp_hook(config, model, clip_norm=clip_norm)
                model.register_comm_hook(state, hook)
            for _ in range(2):
                model.zero_grad()
                model(numbers).square().sum().backward()
            grads = (model.module.words.weight.grad.to_dense(), model.module.turn.grad)
            grads += (model.module.shift.grad,)
            found.append([*grads, model.module.words.weight.grad.layout])
        for ours, stock in zip(found[1][:3], found[0][:3], strict=True):
            check_equal(ours, stock, str(options))
        assert found[1][3] == torch.sparse_coo
    assert state.state_dict()["rounds"].keys() >= {"words.weight", "turn"}
    for name, kind in (("words.*", "sparse"), ("turn", "complex")):
        kept = [rule for rule in rules if rule["match"] != {"name": name}]
        model = DistributedDataParallel(Words())
        model.register_comm_hook(*ddp_hook(configured(default=SPEC, rules=kept), model))
        loss = model(numbers).square().sum()
        refused(
            loss.backward, ConfigError, f"is {kind} and cannot take 'residual(", "use: identity"
        )


class Fails(torch.autograd.Function):
    """The identity, with an error in its backward pass if it is told so."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, fails: bool) -> torch.Tensor:
        ctx.fails = fails
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        if ctx.fails:
            raise ValueError("this layer fails")
        return grad, None


@cases
def an_interrupted_backward_pass() -> None:
    """The next pass has the remedy of DDP, and a model that is wrapped again goes on."""
    join()
    first, last = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)
    module = torch.nn.ModuleList([first, last])

    class Both(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = module

        def forward(self, x: torch.Tensor, fails: bool) -> torch.Tensor:
            return last(Fails.apply(first(x), fails))

    for spec in ("identity", SPEC):
        model = DistributedDataParallel(Both(), bucket_cap_mb=0.01)
        model.register_comm_hook(*ddp_hook(spec, model))
        for step in range(4):
            loss = model(torch.ones(4, 64), step == 2).sum()
            if step == 2:
                refused(loss.backward, ValueError, "this layer fails")
                model._update_process_group(dist.group.WORLD)
            elif step == 3:
                refused(
                    loss.backward,
                    ProtocolError,
                    "wrap the model again and call ddp_hook again, on every rank",
                )
            else:
                loss.backward()
        del model, loss
        again = DistributedDataParallel(Both(), bucket_cap_mb=0.01)
        again.register_comm_hook(*ddp_hook(spec, again))
        again(torch.ones(4, 64), False).sum().backward()
        check_same_on_all_ranks(first.weight.grad, spec)


@cases
def averages_over_the_ranks_with_data_are_refused() -> None:
    join()
    model = _wrapped(_made())
    with model.join(divide_by_initial_world_size=False):
        loss = model(torch.ones(4, 20)).sum()
        refused(loss.backward, ConfigError, "divide_by_initial_world_size is False", "to True")


@cases
def one_matrix_for_a_bucket_is_pytorchs() -> None:
    """Averages and residuals of 900 elements, which need no padding, from the same random numbers."""
    join()
    rank, side, start = 2, 30, 2
    spec = f"powersgd(rank={rank},start_step={start},batched=true)"
    factor = torch.randn(side, rank, generator=torch.Generator().manual_seed(1))
    theirs = powersgd.PowerSGDState(None, rank, start_powerSGD_iter=start)
    theirs.p_memory_dict[0], theirs.q_memory_dict[0] = torch.empty(side, rank), factor.clone()

    def layers() -> torch.nn.Module:
        torch.manual_seed(0)
        sizes = ((20, 40), (40, 2), (2, 10))
        return torch.nn.Sequential(*(torch.nn.Linear(*pair, bias=False) for pair in sizes))

    ours, stock = (DistributedDataParallel(layers()) for _ in range(2))
    state, hook = ddp_hook(configured(default="identity", rules=[{"match": {}, "use": spec}]), ours)
    ours.register_comm_hook(state, hook)
    stock.register_comm_hook(theirs, powersgd.batched_powerSGD_hook)
    drawn = factor.T.reshape(-1).numpy()
    orthogonalize = powersgd._orthogonalize
    with (
        mock.patch.object(PowerSGD, "draw", side_effect=lambda *_: drawn.copy()),
        # PyTorch 2.13.0 asserts three dimensions, and its own hook gives two.
        mock.patch.object(
            powersgd, "_orthogonalize", side_effect=lambda factor: orthogonalize(factor[None])
        ),
    ):
        for step in range(6):
            x = torch.randn(8, 20, generator=torch.Generator().manual_seed(10 * step + hvd.rank()))
            for model in (ours, stock):
                model.zero_grad()
                model(x).square().mean().backward()
            for found, expected in zip(ours.parameters(), stock.parameters(), strict=True):
                torch.testing.assert_close(found.grad, expected.grad, rtol=1e-4, atol=1e-6)
    residuals = [*state.state_dict()["residual"].items()]
    assert len(residuals) == 3
    flat = torch.cat([residual.reshape(-1) for _, residual in sorted(residuals, reverse=True)])
    assert flat.norm() > 0.01
    torch.testing.assert_close(flat, theirs.error_dict[0], rtol=1e-3, atol=1e-5)


def _groups() -> int:
    return len(dist.distributed_c10d._world.pg_map)


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


@cases
def models_one_after_the_other_use_the_same_groups() -> None:
    """Also where ranks free or close them at different times."""
    join()

    def trained(*, closes: bool) -> Any:
        model = _wrapped(_made())
        ((_, state),) = model._comm_hooks
        _averages(model)
        if closes:
            state.close()
            loss = model(torch.ones(4, 20)).sum()
            refused(loss.backward, StateError, "is closed", "call ddp_hook again")
            assert state.state_dict()["residual"]
        return model

    gc.collect()
    model = trained(closes=True)
    groups, threads = _groups(), _threads()
    kept = []
    for number in range(8):
        model = trained(closes=number == 2)
        if number % hvd.size() == hvd.rank():
            kept = [model]  # freed later than on the other rank
    # This model and the last one, and one that each rank has kept.
    assert _groups() <= groups + 1 + hvd.size(), _groups()
    assert _threads() <= threads + 4 * (1 + hvd.size()), _threads()
    del model
    kept.clear()
    for make in (
        lambda: OuterStep("int8", torch.nn.Linear(64, 64), every=1),
        lambda: fsdp_reduce_scatter("int8", fully_shard(torch.nn.Linear(64, 64))),
    ):
        gc.collect()
        compression: Any = make()
        groups = _groups()
        for _ in range(3):
            compression = make()
        assert _groups() <= groups + 1, _groups()
        compression.close()


@cases
def groups_of_a_step_that_has_failed_are_not_used_again() -> None:
    join()
    gc.collect()
    model = DistributedDataParallel(torch.nn.Linear(64, 80))
    state, _ = ddp_hook(SPEC, model)
    state._gloo.start(Broadcast("begins", np.zeros(1, np.uint8)))
    group = state._gloo.lent
    state.close()
    assert not group.free
    again, _ = ddp_hook(SPEC, model)
    assert again._gloo.lent is not group
    # Nobody takes the message of rank 0, and Gloo's thread does not poll for that.
    hvd.barrier()
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.1


# The last case: such a model changes Dynamo's rules for all others of the process.
@cases
def pythons_reducer() -> None:
    with mock.patch.object(torch._dynamo.config, "optimize_ddp", "python_reducer"):
        refused(lambda: _wrapped(_made()), ConfigError, "optimize_ddp='python_reducer'", "to True")
