"""op=Adasum, which Horovod has on MPI only."""

from __future__ import annotations

from functools import partial

import horovod.torch as hvd
from workers.harness import (
    MATRIX,
    Cases,
    backward,
    check_equal,
    check_same_on_all_ranks,
    gradients,
    optimizer,
    parameters,
    refused,
)

from horovod_compressors.torch import Compression
from support.pipelines import configured

cases = Cases()

LAYER = {"weight": MATRIX, "bias": (64,)}


@cases
def adasum_of_summable_specs_equals_plain_horovod() -> None:
    ours = parameters(LAYER)
    plain = parameters(LAYER)
    steps = [
        (ours, optimizer(ours, Compression("identity", ours.items()), op=hvd.Adasum)),
        (plain, optimizer(plain, hvd.Compression.none, op=hvd.Adasum)),
    ]
    for step in range(3):
        for params, opt in steps:
            backward(params, gradients(params, step))
            opt.step()
            opt.zero_grad()
    for mine, theirs in zip(ours.values(), plain.values(), strict=True):
        assert mine.detach().abs().max() > 0
        check_equal(mine.detach(), theirs.detach())


@cases
def adasum_of_fp16() -> None:
    params = parameters(LAYER)
    opt = optimizer(params, Compression("fp16", params.items()), op=hvd.Adasum)
    for step in range(3):
        backward(params, gradients(params, step))
        opt.step()
    for name, p in params.items():
        assert p.detach().abs().max() > 0
        check_same_on_all_ranks(p, name)


@cases
def adasum_of_other_specs_is_refused() -> None:
    for spec in ("topk(k=100,values=fp32)", "bf16", "residual(beta=0.5,gamma=1.0)|identity"):
        params = parameters(LAYER)
        optimizer(params, Compression(spec, params.items()), op=hvd.Adasum)
        refused(
            partial(backward, params, gradients(params, 0)),
            TypeError,
            f"op=Adasum does not work with '{spec}'",
            "op=Average",
            "fp16 with exchange: auto",
        )


@cases
def adasum_of_a_policy_that_measures_is_refused() -> None:
    config = configured("fp16", policy="auto")
    params = parameters(LAYER)
    optimizer(params, Compression(config, params.items()), op=hvd.Adasum)
    refused(
        partial(backward, params, gradients(params, 0)),
        TypeError,
        "op=Adasum does not work with `compress.policy: auto`",
        "always",
    )
