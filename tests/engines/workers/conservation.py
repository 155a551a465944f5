"""Error feedback in models that do not use all parameters in each step: given = applied + residual.

The law holds for the mean over the ranks of all gradients, of all averages that the script could apply, and of
what residuals still hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from workers import harness
from workers.ddp_model import Given, Training, join
from workers.harness import MATRIX, Cases, refused
from workers.ranks import Compression, hvd

from gradcomp import ConfigError, ProtocolError
from torch_compressors import GradientAverager, ddp_hook
from torch_compressors.fsdp import fsdp_reduce_scatter

cases = Cases()
with_horovod = Cases()

SPECS = ("residual|topk(ratio=0.05)", "residual|sign", "powersgd(rank=2,start_step=0)")
NAMES = ("a", "b", "c")
STEPS = 12


class Sums:
    """What a job has given and applied, by parameter.

    Args:
        params: of the model.
    """

    def __init__(self, params: Mapping[str, torch.Tensor]) -> None:
        self.params = params
        self.given = {name: torch.zeros(MATRIX) for name in params}
        self.applied = {name: torch.zeros(MATRIX) for name in params}

    def gradients(self, step: int, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """This rank's gradients of some parameters; those of all ranks are given."""
        names = list(names)
        for rank in range(hvd.size()):
            for name, grad in harness.gradients(self.params, step, rank).items():
                if name in names:
                    self.given[name] += grad / hvd.size()
        mine = harness.gradients(self.params, step)
        return {name: mine[name] for name in names}

    def apply(self, grads: Mapping[str, torch.Tensor | None]) -> None:
        """The script applies averages."""
        for name, grad in grads.items():
            if grad is not None:
                self.applied[name] += grad

    def check(self, residuals: Mapping[str, Any], label: str) -> None:
        """Check the law."""
        for name, given in self.given.items():
            held = torch.zeros(MATRIX)
            if name in residuals:
                held = torch.as_tensor(residuals[name]).reshape(MATRIX).clone()
            mean = hvd.allgather(held.reshape(1, *MATRIX)).mean(0)
            lost = float((given - self.applied[name] - mean).norm())
            assert lost <= 1e-4 * float(given.norm()), f"{label}: {name}: {lost} is lost"


def _ddp(
    use: Callable[[int], Iterable[str]],
    spec: str,
    label: str,
    no_sync: Callable[[int], Iterable[str]] | None = None,
    late: bool = False,
    to_none: bool = True,
    **options: Any,
) -> None:
    """Train in DDP.

    Args:
        use: the names of the parameters that a step uses on this rank.
        no_sync: those that a pass before it uses, under ``no_sync``.
        late: the hook's state gets its model by ``register_comm_hook``.
        to_none: ``set_to_none`` of ``zero_grad``.
    """
    join()
    params = {name: torch.nn.Parameter(torch.zeros(MATRIX)) for name in NAMES}
    model = DistributedDataParallel(Given(params), bucket_cap_mb=0.005, **options)
    state, hook = ddp_hook(spec, None if late else model)
    model.register_comm_hook(state, hook)
    sums = Sums(params)
    for step in range(STEPS):
        model.zero_grad(set_to_none=to_none)
        if no_sync is not None:
            with model.no_sync():
                model(sums.gradients(100 + step, no_sync(step))).backward()
        model(sums.gradients(step, use(step))).backward()
        sums.apply({name: p.grad for name, p in params.items()})
    sums.check(state.state_dict()["residual"], f"{label}, {spec}")


def _in_turn(step: int) -> str:
    return "ab"[step % 2] + "c"


@cases
def parameters_in_turn() -> None:
    for spec in SPECS:
        _ddp(_in_turn, spec, "in turn", find_unused_parameters=True)
    spec = SPECS[0]
    _ddp(_in_turn, spec, "late", late=True, find_unused_parameters=True)
    for to_none in (False, True):
        options = {"find_unused_parameters": True, "gradient_as_bucket_view": True}
        _ddp(_in_turn, spec, f"views, {to_none}", to_none=to_none, **options)


@cases
def parameters_that_are_frozen_and_thawed() -> None:
    """The whole model is used before and after; in between, most of it is left out."""
    _ddp(
        lambda step: "abc" if not 3 <= step < 9 else "c",
        SPECS[0],
        "frozen",
        find_unused_parameters=True,
    )


@cases
def experts_of_some_ranks() -> None:
    """As in a mixture of experts: each rank chooses, and in some steps none chooses one of them."""
    choices = np.random.default_rng(0).integers(0, 2, (STEPS, hvd.size()))

    def chosen(step: int) -> str:
        return "ab"[int(choices[step, hvd.rank()])] + "c"

    def given(sums: Sums, step: int) -> dict[str, torch.Tensor]:
        for rank in range(hvd.size()):
            name = "ab"[int(choices[step, rank])]
            for used in (name, "c"):
                sums.given[used] += harness.gradients(sums.params, step, rank)[used] / hvd.size()
        mine = harness.gradients(sums.params, step)
        return {name: mine[name] for name in chosen(step)}

    join()
    for spec in SPECS:
        params = {name: torch.nn.Parameter(torch.zeros(MATRIX)) for name in NAMES}
        model = DistributedDataParallel(
            Given(params), bucket_cap_mb=0.005, find_unused_parameters=True
        )
        state, hook = ddp_hook(spec, model)
        model.register_comm_hook(state, hook)
        sums = Sums(params)
        for step in range(STEPS):
            model.zero_grad(set_to_none=True)
            model(given(sums, step)).backward()
            sums.apply({name: p.grad for name, p in params.items()})
        sums.check(state.state_dict()["residual"], f"experts, {spec}")


@cases
def passes_without_synchronization() -> None:
    """A parameter that only the pass under ``no_sync`` uses is averaged, as in plain DDP."""
    _ddp(lambda step: "c", SPECS[0], "no_sync", no_sync=_in_turn, find_unused_parameters=True)


@cases
def a_static_graph() -> None:
    for spec in SPECS:
        _ddp(lambda step: "ac", spec, "static", static_graph=True)


@cases
def parameters_in_turn_without_a_wrapper() -> None:
    """`GradientAverager` in a plain loop: the law, unused parameters, steps and a discarded one."""
    join()
    for spec in SPECS:
        params = {name: torch.nn.Parameter(torch.zeros(MATRIX)) for name in NAMES}
        averager = GradientAverager(spec, params.items())
        averager.allow_discard()
        sums = Sums(params)
        for step in range(STEPS):
            names = _in_turn(step)
            if step == 5:
                harness.backward(params, harness.gradients(params, 100))
                averager.average()
                averager.discard_step()
            for p in params.values():
                p.grad = None
            harness.backward(params, sums.gradients(step, names))
            averager.average()
            assert [name for name, p in params.items() if p.grad is not None] == sorted(names)
            sums.apply({name: p.grad for name, p in params.items()})
        sums.check(averager.state_dict()["residual"], f"averager, {spec}")
        averager.close()


@cases
def averages_without_a_wrapper_are_those_of_ddp() -> None:
    spec = "residual|topk(ratio=0.05)"
    join()
    params = {name: torch.nn.Parameter(torch.zeros(MATRIX)) for name in NAMES}
    params["bias"] = torch.nn.Parameter(torch.zeros(9, dtype=torch.float64))
    optimizer = torch.optim.SGD(params.values(), lr=0.5)
    averager = GradientAverager(spec, params.items(), optimizer)
    wrapped = Training(spec, {name: tuple(p.shape) for name, p in params.items() if name != "bias"})
    for step in range(3):
        grads = harness.gradients(params, step)
        optimizer.zero_grad()
        harness.backward(params, grads)
        averager.optimizer_step()
        expected = wrapped.averages({name: grads[name] for name in NAMES})
        for name, average in expected.items():
            harness.check_equal(params[name].grad, average, name)
    for p in params.values():
        harness.check_same_on_all_ranks(p.detach())
    refused(
        lambda: GradientAverager(spec, params.items()).optimizer_step(), ConfigError, "no optimizer"
    )
    refused(lambda: GradientAverager(spec, []), ConfigError, "no parameter that needs a gradient")
    number = torch.nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    refused(lambda: GradientAverager(spec, [("z", number)]), ConfigError, "takes real parameters")
    table = torch.nn.Embedding(100, 64, sparse=True)
    sparse = GradientAverager("identity", table.named_parameters())
    table(torch.arange(3)).sum().backward()
    refused(sparse.average, ConfigError, "'weight' has the layout torch.sparse_coo")
    other = "fp16" if hvd.rank() else "int8"
    refused(lambda: GradientAverager(other, params.items()), ProtocolError, "different compression")


@cases
def a_discarded_step_of_ddp() -> None:
    join()
    params = {name: torch.nn.Parameter(torch.zeros(MATRIX)) for name in NAMES}
    model = DistributedDataParallel(Given(params), bucket_cap_mb=0.005)
    state, hook = ddp_hook(SPECS[0], model)
    model.register_comm_hook(state, hook)
    state.allow_discard()
    _discard(params, lambda grads: model(grads).backward(), state, model.zero_grad)


@with_horovod
def a_discarded_step_of_horovod() -> None:
    """As GANs do: gradients are synchronized, and then thrown away."""
    params = harness.parameters(dict.fromkeys(NAMES, MATRIX))
    compression = Compression(SPECS[0], list(params.items()))
    optimizer = harness.optimizer(params, compression)
    compression.allow_discard()

    def average(grads: Mapping[str, torch.Tensor]) -> None:
        harness.backward(params, grads)
        if hvd.size() > 1:
            harness.refused(compression.discard_step, Exception, "synchronize")
        optimizer.synchronize()

    _discard(params, average, compression, optimizer.zero_grad)


@with_horovod
def parameters_in_turn_on_horovod() -> None:
    for spec in SPECS:
        params = harness.parameters(dict.fromkeys(NAMES, MATRIX))
        compression = Compression(spec, list(params.items()))
        optimizer = harness.optimizer(params, compression)
        sums = Sums(params)
        prefix = next(iter(params)).rpartition(".")[0]
        for step in range(STEPS):
            names = [f"{prefix}.{name}" for name in _in_turn(step)]
            harness.backward(params, sums.gradients(step, names))
            optimizer.synchronize()
            sums.apply({name: p.grad for name, p in params.items()})
            optimizer.zero_grad()
        sums.check(compression.state_dict()["residual"], f"Horovod, {spec}")


def _discard(
    params: Mapping[str, torch.Tensor],
    average: Callable[[Mapping[str, torch.Tensor]], None],
    state: Any,
    zero_grad: Callable[[], None],
) -> None:
    """A spike is discarded between steps: nothing of it comes back."""
    sums = Sums(params)
    for step in range(6):
        if step in (0, 3):
            spike = harness.gradients(params, 100 + step)
            average({name: 1000 * grad for name, grad in spike.items()})
            zero_grad()
            state.discard_step()
        average(sums.gradients(step, params))
        sums.apply({name: p.grad for name, p in params.items()})
        zero_grad()
    sums.check(state.state_dict()["residual"], "discarded")
    assert set(state.state_dict()["rounds"].values()) == {6}


class Experts(torch.nn.Module):
    """Two units of FSDP, which are used in turn, and a root."""

    def __init__(self) -> None:
        super().__init__()
        self.root = torch.nn.Linear(80, 64, bias=False)
        self.experts = torch.nn.ModuleList([torch.nn.Linear(80, 64, bias=False) for _ in "ab"])

    def forward(self, x: torch.Tensor, number: int) -> torch.Tensor:
        return self.root(x) + self.experts[number](x)


@cases
def units_of_fsdp_in_turn() -> None:
    """And a discarded step; gradients are those of a sum, so they are known from the input."""
    join()
    torch.manual_seed(0)
    model: Any = Experts()
    for expert in model.experts:
        fully_shard(expert)
    fully_shard(model)
    state = fsdp_reduce_scatter("residual|topk(ratio=0.05)|raw32", model)
    state.allow_discard()
    names = ("root.weight", "experts.0.weight", "experts.1.weight")
    given = {name: torch.zeros(MATRIX) for name in names}
    applied = {name: torch.zeros(MATRIX) for name in names}
    weights = torch.linspace(-1, 1, 64)

    def run(step: int, scale: float) -> list[torch.Tensor]:
        """Returns the inputs of all ranks."""
        inputs = [
            scale * torch.randn(5, 80, generator=torch.Generator().manual_seed(10 * step + rank))
            for rank in range(hvd.size())
        ]
        model.zero_grad()
        (model(inputs[hvd.rank()], step % 2) * weights).sum().backward()
        return inputs

    for step in range(STEPS):
        if step in (3, 7):
            run(step, 1000.0)
            state.discard_step()
        inputs = run(step, 1.0)
        for name in ("root.weight", f"experts.{step % 2}.weight"):
            given[name] += sum(torch.outer(weights, x.sum(0)) for x in inputs) / hvd.size()
        for name, p in model.named_parameters():
            if p.grad is not None:
                applied[name] += p.grad.full_tensor()
    residuals = state.state_dict()["residual"]
    for name in names:
        held = torch.as_tensor(residuals[name]).reshape(MATRIX)
        mean = hvd.allgather(held.reshape(1, *MATRIX)).mean(0)
        lost = float((given[name] - applied[name] - mean).norm())
        assert lost < 1e-4 * float(given[name].norm()), f"{name}: {lost} is lost"
