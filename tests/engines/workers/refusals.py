"""Refusals, with a message on every rank and without a hang."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any
from unittest import mock

import horovod.torch as hvd
import torch
from workers.harness import (
    MATRIX,
    Cases,
    averages,
    backward,
    gradients,
    optimizer,
    parameters,
    refused,
)

from gradcomp.errors import ConfigError, ProtocolError
from horovod_compressors.torch import Compression, OuterStep
from support.pipelines import configured

cases = Cases()

# The beginning of the text that ranks compare.
COMPRESS = '{"compress":{"bucket_bytes":4194304,'


def one_step(compression: Any, **options: Any) -> Callable[[], Any]:
    params = parameters({"weight": MATRIX, "bias": (64,)})
    if callable(compression):
        compression = compression(params)
    opt = optimizer(params, compression, **options)
    return lambda: averages(opt, params, gradients(params, 0))


@cases
def specs_that_differ() -> None:
    spec = "topk(k=100,values=fp32)" if hvd.rank() == 0 else "fp16(overflow=saturate)"
    refused(
        one_step(Compression(spec)),
        ProtocolError,
        "the ranks run different compression",
        f'rank 0: {COMPRESS}"default":"topk(k=100,values=fp32)"',
        f'rank 1: {COMPRESS}"default":"fp16(overflow=saturate)"',
    )


@cases
def models_that_differ() -> None:
    names = ["first", "second"] if hvd.rank() == 0 else ["second", "first"]
    params = parameters(dict.fromkeys(names, MATRIX))
    opt = optimizer(params, Compression("topk(k=100)", params.items()))
    refused(
        lambda: averages(opt, params, gradients(params, 0)),
        ProtocolError,
        "the ranks' parameters differ in names, shapes, dtypes, layouts or order",
    )


@cases
def dtypes_that_differ() -> None:
    dtype = torch.float64 if hvd.rank() else torch.float32
    for spec in ("identity", "topk(k=100)"):
        params = parameters({"weight": MATRIX}, dtype)
        opt = optimizer(params, Compression(spec, params.items()))
        refused(
            lambda opt=opt, params=params: averages(opt, params, gradients(params, 0)),
            ProtocolError,
            "dtypes",
            "1 of float32, digest",
            "1 of float64, digest",
            "convert it to the same dtype",
        )


@cases
def memories_that_differ() -> None:
    memory = "residual|" if hvd.rank() == 0 else ""
    refused(
        one_step(lambda params: Compression(f"{memory}topk(k=100,values=fp32)", params.items())),
        ProtocolError,
        f'rank 0: {COMPRESS}"default":"residual(beta=1.0,gamma=1.0)|topk(k=100,values=fp32)"',
        f'rank 1: {COMPRESS}"default":"topk(k=100,values=fp32)"',
    )


@cases
def rules_that_differ() -> None:
    rules = [{"match": {"name": "*.bias"}, "use": "identity" if hvd.rank() else "bf16"}]
    config = configured("topk(k=100,values=fp32)", rules=rules)
    default = f'{COMPRESS}"default":"topk(k=100,values=fp32)"'
    known = (
        default + ',"exchange":"auto","policy":"always","rules":'
        '[{"exchange":"auto","match":{"name":"*.bias"},"use":'
    )
    refused(
        one_step(Compression(config)),
        ProtocolError,
        f'rank 0: {known}"bf16"',
        f'rank 1: {known}"identity"',
    )


@cases
def seeds_that_differ() -> None:
    config = configured("randomk(k=100)", seed=hvd.rank())
    refused(one_step(Compression(config)), ProtocolError, '"seed":0', '"seed":1')


@cases
def sparse_gradients() -> None:
    """Sparse gradients without sparse_as_dense; Horovod gathers them without a call of compress."""
    layer = torch.nn.Embedding(60, 80, sparse=True)
    for spec in ("topk(k=100,values=fp32)", "residual|bf16"):
        params = {f"refused.sparse.{spec}": layer.weight}
        opt = optimizer(params, Compression(spec, params.items()))
        layer(torch.tensor([hvd.rank()])).sum().backward()
        refused(opt.synchronize, TypeError, spec.split("|")[-1], "sparse_as_dense=True")
        layer.weight.grad = None


@cases
def sparse_gradients_in_groups() -> None:
    layer = torch.nn.Embedding(60, 80, sparse=True)
    params = {"refused.sparse.grouped": layer.weight}
    optimizer(params, Compression("topk(k=100,values=fp32)"), groups=1, sparse_as_dense=True)
    refused(
        layer(torch.tensor([hvd.rank()])).sum().backward,
        TypeError,
        "without groups",
        "sparse=False",
    )


@cases
def two_backward_passes_in_a_step() -> None:
    params = parameters({"weight": MATRIX})
    optimizer(params, Compression("topk(k=100,values=fp32)"))
    backward(params, gradients(params, 0))
    refused(
        lambda: backward(params, gradients(params, 1)), AssertionError, "backward_passes_per_step"
    )


@cases
def elastic_jobs() -> None:
    """All that depends on fixed ranks."""
    two_level = configured("int8", exchange="two_level", ranks_per_node=1)
    model = torch.nn.Linear(64, 80)
    with mock.patch.dict(os.environ, HOROVOD_ELASTIC="1"):
        refused(lambda: Compression(two_level).pipeline, ConfigError, "the job is elastic")
        refused(lambda: OuterStep("int8", model), ConfigError, "in elastic jobs of Horovod")


@cases
def a_step_after_all_that() -> None:
    """After refusals other compressions still work."""
    assert one_step(Compression("topk(k=100,values=fp32)"))()
