"""The hook for DDP with a thread that encodes during the backward pass."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
from workers import harness
from workers.ddp import MIXED, mixed
from workers.ddp_device import on_device
from workers.ddp_model import Training
from workers.harness import Cases, refused
from workers.ranks import hvd
from workers.threads import Started, meeting, on_thread

from gradcomp import Loopback
from gradcomp.errors import ProtocolError
from gradcomp.exchange.rounds import Request
from torch_compressors.gloo.engine import GlooEngine

cases = Cases()


@cases
def a_thread_encodes_for_ddp() -> None:
    """With a thread on all ranks and on one, for every kind of exchange and any buckets of DDP."""
    for setting in ("always", "always" if hvd.rank() == 0 else "never"):
        for bucket_mb in (0.005, 0.05, 25):
            config = mixed(encoder_thread=setting)
            started = Started(GlooEngine)
            with started.patch():
                training = Training(config, MIXED, bucket_mb=bucket_mb)
                training.check_steps(Loopback(config, hvd.size()), range(4))
                training.check_replicas()
            assert (started.beside > 0) == (setting == "always"), f"{setting}: {started.beside}"


@cases
def a_device_and_a_thread() -> None:
    """The thread launches a device's kernels; the other rank has neither."""
    with on_device({1}, 5000) as device:
        config = mixed(device="auto", encoder_thread="always" if hvd.rank() == 1 else "never")
        training = Training(config, MIXED)
        training.check_steps(Loopback(config, hvd.size()), range(3))
        training.check_replicas()
    assert any(line.startswith("launch") for line in device.log) == (hvd.rank() == 1)


@cases
def other_dtypes_and_clipping_with_a_thread() -> None:
    """As without a thread; gradients that are clipped together have none."""
    for options in ({"dtype": torch.bfloat16}, {"dtype": torch.float64}, {"clip_norm": 0.5}):
        results = []
        for setting in ("never", "always"):
            started = Started(GlooEngine)
            with started.patch():
                training = Training(mixed(encoder_thread=setting), MIXED, **options)
                results.append(
                    [
                        training.averages(harness.gradients(training.params, step))
                        for step in range(3)
                    ]
                )
            assert (started.beside > 0) == (setting == "always" and "clip_norm" not in options)
        for without, beside in zip(*results, strict=True):
            for name, average in without.items():
                harness.check_equal(beside[name], average, f"{options}: {name}")


@cases
def the_backward_pass_of_ddp_goes_on() -> None:
    """The thread's first request waits for the last gradient, which waits for that request's start."""
    training = Training(mixed(encoder_thread="always"), MIXED)
    for step in range(2):  # DDP makes its buckets again after the first step
        training.averages(harness.gradients(training.params, step))
    with meeting(GlooEngine, next(iter(training.params.values()))):
        training.averages(harness.gradients(training.params, 2))


@cases
def errors_of_the_thread_of_ddp() -> None:
    training = Training(mixed(encoder_thread="always"), MIXED)
    grads = harness.gradients(training.params, 0)
    training.averages(grads)

    def fails(engine: GlooEngine, request: Request) -> Any:
        if on_thread():
            raise ProtocolError("the thread has failed")
        return start(engine, request)

    start = GlooEngine.start
    with mock.patch.object(GlooEngine, "start", fails):
        refused(lambda: training.averages(grads), ProtocolError, "the thread has failed")
