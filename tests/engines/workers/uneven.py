"""Ranks with different numbers of steps, and parameters that come later, on real Horovod."""

from __future__ import annotations

from typing import Any

import horovod.torch as hvd
import torch
from workers.harness import (
    MATRIX,
    Cases,
    check_equal,
    check_same_on_all_ranks,
    gradients,
    parameters,
    refused,
)

from gradcomp.errors import ConfigError, ProtocolError
from horovod_compressors.torch import Compression
from support.pipelines import configured, rules_of

cases = Cases()

SPECS = {
    "dense": "identity",
    "sum": "fp16",
    "feedback": "residual|topk(ratio=0.02)",
    "low_rank": "powersgd(rank=2,start_step=0,variant=paper)",
    "random": "residual|randomk(ratio=0.1)",
    "momentum": "dgc(ratio=0.01,warmup_epochs=0)",
    "votes": "signsgd_mv",
}
STEPS = 2  # and one more for each higher rank


def mixed() -> Any:
    specs = {name: spec for name, spec in SPECS.items() if name != "momentum"}
    return configured("identity", rules=rules_of(specs, "*.{}"))


def distributed(
    params: dict[str, torch.nn.Parameter], compression: Any, momentum: float = 0.9, **options: Any
) -> torch.optim.Optimizer:
    made: torch.optim.Optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(params.values(), lr=0.5, momentum=momentum),
        named_parameters=params.items(),
        compression=compression,
        **options,
    )
    return made


def step(opt: Any, params: dict[str, torch.nn.Parameter], grads: dict[str, torch.Tensor]) -> None:
    opt.zero_grad()
    loss = sum((params[name] * grad).sum() for name, grad in grads.items())
    loss.backward()
    opt.step()


def trained(config: Any, *, joins: bool, first: int = STEPS, **options: Any) -> list[torch.Tensor]:
    """Parameters after ``first`` steps of rank 0 and one more of each higher rank.

    Without ``joins`` the ranks that have ended give gradients of zeros themselves.
    """
    # The same names in every run: random choices follow them.
    params = {f"uneven.{name}": torch.nn.Parameter(torch.zeros(MATRIX)) for name in SPECS}
    compression = Compression(config, params.items(), uneven=joins)
    opt = distributed(params, compression, **options)
    last = first + hvd.size() - 1
    for number in range(last):
        rate = 0.5 / (1 + number)
        if number < first + hvd.rank():
            opt.param_groups[0]["lr"] = rate
            step(opt, params, gradients(params, number))
        elif not joins:
            opt.param_groups[0]["lr"] = rate
            step(opt, params, {name: torch.zeros_like(p) for name, p in params.items()})
    if joins:
        assert compression.join(opt) == hvd.size() - 1 - hvd.rank()
    for name, p in params.items():
        check_same_on_all_ranks(p.detach(), name)
    return [p.detach() for p in params.values()]


def check_join(config: Any, **options: Any) -> None:
    for one, other in zip(
        trained(config, joins=True, **options), trained(config, joins=False, **options), strict=True
    ):
        check_equal(one, other)


@cases
def join_of_every_spec() -> None:
    """As if the ranks without data had given zeros: equal replicas, and residuals that drain."""
    check_join(mixed())


@cases
def join_of_momentum_correction() -> None:
    check_join(configured(SPECS["momentum"]), momentum=0.0)


@cases
def join_with_sums() -> None:
    check_join(configured("residual|topk(ratio=0.02)"), op=hvd.Sum)


@cases
def join_of_a_rank_without_any_data() -> None:
    check_join(configured("residual|int8"), first=0)


@cases
def training_goes_on_after_join() -> None:
    params = parameters({"weight": MATRIX})
    compression = Compression("residual|topk(ratio=0.02)", params.items(), uneven=True)
    opt = distributed(params, compression)
    for epoch in range(2):
        for number in range(1 + hvd.rank()):
            step(opt, params, gradients(params, 10 * epoch + number))
        compression.join(opt)
    check_same_on_all_ranks(next(iter(params.values())).detach(), "weight")


@cases
def join_must_be_asked_for() -> None:
    params = parameters({"weight": MATRIX})
    compression = Compression("int8", params.items())
    refused(lambda: compression.join(distributed(params, compression)), ConfigError, "uneven=True")
    grouped = parameters({"weight": MATRIX})
    compression = Compression("int8", grouped.items(), uneven=True)
    opt = distributed(grouped, compression, groups=1)
    refused(lambda: compression.join(opt), ConfigError, "leave out groups")


@cases
def all_ranks_must_ask() -> None:
    params = parameters({"weight": MATRIX})
    compression = Compression("int8", params.items(), uneven=hvd.rank() == 0)
    opt = distributed(params, compression)
    refused(lambda: step(opt, params, gradients(params, 0)), ProtocolError, "with uneven=True")
    if hvd.rank() == 1:  # takes the mark that rank 0 has sent, for the cases that follow
        mark = torch.tensor([0.0, 0.0], dtype=torch.float64)
        hvd.allreduce(mark, name="gradcomp.attendance.0", op=hvd.Max)


@cases
def join_of_horovod_itself_is_an_error() -> None:
    """Horovod would halve these sums; it must not be silent."""
    params = parameters({"weight": MATRIX})
    compression = Compression("powersgd(rank=2,start_step=0,variant=paper)", params.items())
    opt = distributed(params, compression, op=hvd.Sum)
    step(opt, params, gradients(params, 0))
    if hvd.rank() == 0:
        refused(lambda: step(opt, params, gradients(params, 1)), ProtocolError, "uneven=True")
    hvd.join()


@cases
def parameters_that_come_later() -> None:
    """Stock Horovod would never average them; a frozen parameter stays equal on all ranks."""
    params = parameters({"first": MATRIX, "second": MATRIX, "third": MATRIX})
    first, second, third = params
    params[second].requires_grad_(False)
    opt = distributed(params, Compression("residual|topk(ratio=0.02)", params.items()))
    grads = gradients(params, 0)
    step(opt, params, {first: grads[first], third: grads[third]})
    params[third].requires_grad_(hvd.rank() == 0)  # frozen on the other ranks
    step(opt, params, {first: grads[first], **({third: grads[third]} if hvd.rank() == 0 else {})})
    for name in (first, third):
        check_same_on_all_ranks(params[name].detach(), name)
    params[second].requires_grad_(True)
    refused(lambda: step(opt, params, {first: grads[first]}), ConfigError, f"'{second}' of shape")
    params = parameters({"first": MATRIX})
    opt = distributed(params, Compression("residual|topk(ratio=0.02)", params.items()))
    step(opt, params, gradients(params, 0))
    opt.add_param_group({"params": [torch.nn.Parameter(torch.zeros(MATRIX))]})
    refused(
        lambda: step(opt, params, gradients(params, 1)), ConfigError, "'parameter 0 of group 1'"
    )
