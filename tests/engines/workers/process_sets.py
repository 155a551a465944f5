"""Process sets, with ranks outside; needs three ranks."""

from __future__ import annotations

from functools import cache
from typing import Any

import horovod.torch as hvd
from workers.harness import (
    MATRIX,
    Cases,
    TopK,
    averages,
    check_equal,
    gradients,
    optimizer,
    parameters,
    refused,
)

from gradcomp.errors import ConfigError
from horovod_compressors.torch import Compression

cases = Cases()

MEMBERS = [0, 2]


@cache
def process_set() -> Any:
    return hvd.add_process_set(MEMBERS)


def _average(members: list[int], **options: Any) -> None:
    params = parameters({"weight": MATRIX, "bias": (64,)})
    (weight, bias) = params
    spec = "residual|topk(k=100)"
    compression = Compression(spec, params.items(), **options)
    opt = optimizer(params, compression, **options)
    model = TopK(100, len(members), memory=True)
    for step in range(3):
        result = averages(opt, params, gradients(params, step))
        of_members = [gradients(params, step, rank) for rank in members]
        wanted = model.average([grads[weight] for grads in of_members])
        if hvd.rank() not in members:
            check_equal(result[weight], gradients(params, step)[weight])
            continue
        check_equal(result[weight], wanted, f"step {step}")
        if len(members) == 2:
            check_equal(result[bias], sum(grads[bias] for grads in of_members) / 2)
    if hvd.rank() in members:
        state = compression.state_dict()
        assert (state["rank"], state["world_size"]) == (members.index(hvd.rank()), len(members))


@cases
def members_average_among_themselves() -> None:
    _average(MEMBERS, process_set=process_set())


@cases
def all_ranks_average_afterwards() -> None:
    """All ranks, after the rank outside the set has used fewer compressors."""
    _average([0, 1, 2])
    _average(MEMBERS, process_set=process_set())
    _average([0, 1, 2])


@cases
def op_sum_in_a_process_set() -> None:
    if hvd.rank() in MEMBERS:
        params = parameters({"weight": MATRIX})
        (weight,) = params
        compression = Compression("topk(k=100)", process_set=process_set())
        opt = optimizer(params, compression, op=hvd.Sum, process_set=process_set())
        result = averages(opt, params, gradients(params, 0))
        model = TopK(100, 2, memory=False)
        wanted = 2 * model.average([gradients(params, 0, rank)[weight] for rank in MEMBERS])
        check_equal(result[weight], wanted)
    else:
        parameters({})  # names count on


@cases
def process_sets_that_differ_are_refused() -> None:
    params = parameters({"weight": MATRIX})
    opt = optimizer(params, Compression("topk(k=100)", process_set=process_set()))
    refused(
        lambda: averages(opt, params, gradients(params, 0)),
        ConfigError,
        f"the optimizer averages over process set 0 and Compression over "
        f"{process_set().process_set_id}",
        "pass the same process_set to both",
    )
    params = parameters({"weight": MATRIX})
    opt = optimizer(params, Compression("fp16"), process_set=process_set())
    if hvd.rank() in MEMBERS:
        refused(
            lambda: averages(opt, params, gradients(params, 0)),
            ConfigError,
            f"process set {process_set().process_set_id} and Compression over 0",
        )
