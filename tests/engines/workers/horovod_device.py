"""The stock optimizer with gradients on a device on some ranks; the device's kernels are the core's."""

from __future__ import annotations

from contextlib import AbstractContextManager
from unittest import mock

import horovod.torch as hvd
import numpy as np
import torch
from workers import harness
from workers.harness import Cases

from gradcomp import Config, Loopback
from gradcomp_torch.gpu import device_lookup as finding
from horovod_compressors.torch import Compression
from support.core_tensors import CoreTensors, found
from support.pipelines import config_of
from support.scope import by_scope

cases = Cases()

SHAPES = {"a": (64, 80), "b": (70, 90), "c": (33,), "d": (90, 70)}

ON_DEVICE = (
    "residual|topk(ratio=0.05)",
    "dgc(ratio=0.05,warmup_epochs=0)",
    "residual|int8",
    "powersgd(rank=2,start_step=1)",
)
DIRECT = (
    ("residual|topk(ratio=0.05)|raw32", "gather"),
    ("residual|int8", "sra"),
    ("residual|fp16", "auto"),
    ("powersgd(rank=2,start_step=1)", "auto"),
)
"""Specs with frames of one size on all ranks, with an exchange."""
ON_HOST = ("atomo(rank=1)", "residual|adaptive(rate=0.5)", "residual|fp16")


THREADS = {"always": 4, "never": by_scope(1, 4)}
"""The settings of ``encoder_thread``, with the number of specs that run with it."""


def config(spec: str, **compress: object) -> Config:
    return config_of(spec, bucket_bytes=20_000, **{"device": "auto", **compress})


def on_device(ranks: set[int], least: int = 0) -> AbstractContextManager[CoreTensors]:
    """Let these ranks find a device that takes tensors of at least ``least`` elements."""
    return found(hvd.rank() in ranks, least)


def check_steps(used: Config, steps: int = 3) -> None:
    """Compare the averages of some steps with those of the loopback."""
    params = harness.parameters(SHAPES)
    opt = harness.optimizer(params, Compression(used, params.items()))
    loopback = Loopback(used, hvd.size())
    order = np.random.default_rng(hvd.rank())
    for step in range(steps):
        for name, average in harness.check_step(opt, params, loopback, step, order).items():
            harness.check_same_on_all_ranks(average, name)


def launches(device: CoreTensors) -> int:
    """Number of launches of the device."""
    return sum(line.startswith(("launch", "multiply")) for line in device.log)


@cases
def ranks_of_horovod_with_and_without_a_device() -> None:
    """With a device on some ranks or all, for tensors of all sizes or large ones, with a thread or none."""
    for thread, count in THREADS.items():
        for ranks, least in (({0}, 0), ({1}, 6000), ({0, 1}, 6000)):
            for spec in ON_DEVICE[:count]:
                with on_device(ranks, least) as device:
                    check_steps(config(spec, encoder_thread=thread))
                assert (launches(device) > 0) == (hvd.rank() in ranks), spec


@cases
def messages_of_horovod_from_device_to_device() -> None:
    """Averages are those of the loopback, also where a rank has no device, so that none is sent."""
    for thread, count in THREADS.items():
        for spec, exchange in DIRECT[:count]:
            used = config(spec, device="direct", exchange=exchange, encoder_thread=thread)
            for ranks in ({0, 1}, {0}):
                with on_device(ranks) as device, mock.patch.object(finding, "_log") as log:
                    check_steps(used)
                sent = [line for line in device.log if line.startswith("begin")]
                assert bool(sent) is (ranks == {0, 1}), (spec, device.log)
                warned = log.warning.call_count
                assert warned == int(ranks == {0} and hvd.rank() == 0), (spec, warned)


@cases
def other_specs_stay_on_the_host() -> None:
    for spec in ON_HOST:
        with on_device({0, 1}) as device:
            check_steps(config(spec))
        assert device.log == [], spec


@cases
def a_device_of_horovod_is_turned_off() -> None:
    """Without `compress.device: auto` nothing is launched."""
    with on_device({0, 1}) as device:
        check_steps(config(ON_DEVICE[0], device="host"))
    assert device.log == []


@cases
def sums_and_other_dtypes() -> None:
    """As without a device: op=Sum, bfloat16, and gradients that are not contiguous."""
    for options, dtype in (({"op": hvd.Sum}, torch.float32), ({}, torch.bfloat16)):
        results = []
        for ranks in (set(), {0, 1}):
            with on_device(ranks):
                params = harness.parameters(SHAPES, dtype)
                for name, p in params.items():
                    if p.dim() == 2:
                        params[name] = torch.nn.Parameter(
                            torch.zeros(p.shape[::-1], dtype=dtype).t()
                        )
                used = Compression(config(ON_DEVICE[0]), params.items())
                opt = harness.optimizer(params, used, **options)
                results.append(
                    [
                        list(
                            harness.averages(opt, params, harness.gradients(params, step)).values()
                        )
                        for step in range(3)
                    ]
                )
        for step, (with_none, with_one) in enumerate(zip(*results, strict=True)):
            for none, one in zip(with_none, with_one, strict=True):
                harness.check_equal(one, none, f"{options}, {dtype}, {step}")


@cases
def residuals_go_into_checkpoints() -> None:
    """A state of a device is that of the host, and is loaded on a device again."""
    states = []
    for ranks in (set(), {0, 1}):
        with on_device(ranks):
            params = harness.parameters(SHAPES)
            used = Compression(config(ON_DEVICE[0]), params.items())
            opt = harness.optimizer(params, used)
            for step in range(2):
                harness.averages(opt, params, harness.gradients(params, step))
            saved = used.state_dict()
            states.append(list(saved["residual"].values()))
            twins = dict(zip(params, harness.parameters(SHAPES).values(), strict=True))
            again = Compression(config(ON_DEVICE[0]), twins.items())
            again.load_state_dict(saved)
            grads = harness.gradients(params, 2)
            expected = harness.averages(opt, params, grads)
            found = harness.averages(harness.optimizer(twins, again), twins, grads)
            for name, average in expected.items():
                harness.check_equal(found[name], average, name)
    for host, there in zip(*states, strict=True):
        harness.check_equal(there, host)
