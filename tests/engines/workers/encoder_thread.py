"""Rounds that a thread begins during the backward pass, on real Horovod."""

from __future__ import annotations

from typing import Any
from unittest import mock

import horovod.torch as hvd
import numpy as np
import torch
from workers import harness
from workers.harness import Cases, refused
from workers.threads import Started, meeting

from gradcomp import Config, Loopback
from gradcomp.exchange.rounds import Request
from horovod_compressors.torch import Compression
from horovod_compressors.torch.engine import HorovodEngine
from support.pipelines import config_of

cases = Cases()

SHAPES = {"a": (64, 80), "b": (70, 90), "c": (33,), "d": (90, 70)}

SPECS = (
    "residual|topk(ratio=0.01)",
    "dgc(ratio=0.01,warmup_epochs=0)",
    "powersgd(rank=2,start_step=0)",
    "residual|polar(rate=0.25)",
    "residual|int8",
    "momentum_correction|topk(ratio=0.01)",
)


def config(spec: str, **compress: Any) -> Config:
    return config_of(spec, bucket_bytes=20_000, **{"encoder_thread": "always", **compress})


def prepared() -> tuple[dict[str, torch.nn.Parameter], Compression, torch.optim.Optimizer]:
    """Parameters, and their compression and optimizer with a thread."""
    params = harness.parameters(SHAPES)
    compression = Compression(config("residual|topk(ratio=0.01)"), params.items())
    return params, compression, harness.optimizer(params, compression)


@cases
def averages_are_those_of_the_loopback() -> None:
    for spec in SPECS:
        for exchange in ("auto", "sra") if "residual" in spec else ("auto",):
            configured = config(spec, exchange=exchange)
            params = harness.parameters(SHAPES)
            opt = harness.optimizer(params, Compression(configured, params.items()))
            loopback = Loopback(configured, hvd.size())
            order = np.random.default_rng(hvd.rank())
            started = Started(HorovodEngine)
            with started.patch():
                for step in range(3):
                    harness.check_step(opt, params, loopback, step, order)
            assert started.beside > 0, spec


@cases
def ranks_with_and_without_a_thread_agree() -> None:
    setting = "always" if hvd.rank() == 0 else "never"
    configured = config("residual|topk(ratio=0.01)", encoder_thread=setting)
    params = harness.parameters(SHAPES)
    opt = harness.optimizer(params, Compression(configured, params.items()))
    loopback = Loopback(configured, hvd.size())
    started = Started(HorovodEngine)
    with started.patch():
        for step in range(3):
            harness.check_step(opt, params, loopback, step, np.random.default_rng(hvd.rank()))
    assert (started.beside > 0) == (hvd.rank() == 0)


@cases
def the_pass_ends_with_all_first_requests() -> None:
    """Nothing is left to the thread when the script goes on; the rest is the optimizer's."""
    params, _, opt = prepared()
    for step in range(3):
        started = Started(HorovodEngine)
        with started.patch():
            harness.backward(params, harness.gradients(params, step))
            in_pass = list(started.requests)
            assert started.beside >= 2
            opt.step()
        assert [one for one in started.requests if one not in in_pass] == []
        opt.zero_grad()


@cases
def the_backward_pass_goes_on_beside_the_thread() -> None:
    """The last gradient waits for the first request, and that one's start for the last gradient."""
    params, _, opt = prepared()
    harness.averages(opt, params, harness.gradients(params, 0))  # the ranks agree
    with meeting(HorovodEngine, next(iter(params.values()))):
        harness.backward(params, harness.gradients(params, 1))
    opt.step()


@cases
def an_error_of_the_thread_ends_the_pass() -> None:
    """It is raised by backward(), and no later round of the pass begins."""
    params, _, opt = prepared()
    harness.averages(opt, params, harness.gradients(params, 0))
    begun: list[str] = []

    def fails(engine: HorovodEngine, request: Request) -> Any:
        begun.append(request.name)
        raise ValueError("this link is cut")

    with mock.patch.object(HorovodEngine, "start", fails):
        grads = harness.gradients(params, 1)
        refused(lambda: harness.backward(params, grads), ValueError, "this link is cut")
    assert len(begun) == 1, begun
    hvd.barrier()


@cases
def a_profiled_step_has_no_thread() -> None:
    params, compression, opt = prepared()
    compression.stats.start_profile()
    started = Started(HorovodEngine)
    with started.patch():
        harness.averages(opt, params, harness.gradients(params, 0))
    assert started.requests
    assert started.beside == 0
