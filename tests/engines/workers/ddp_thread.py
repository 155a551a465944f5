"""The hook for DDP with a thread that encodes beside the backward pass."""

from __future__ import annotations

import threading
from typing import Any
from unittest import mock

import horovod.torch as hvd
import torch
from workers import harness
from workers.ddp import MIXED, mixed
from workers.ddp_device import on_device
from workers.ddp_model import Training
from workers.harness import Cases, refused

from gradcomp import Loopback
from gradcomp.errors import ProtocolError
from gradcomp.exchange.rounds import Request
from torch_compressors.gloo import GlooEngine

cases = Cases()

THREAD = "gradcomp-encoder"


class Started:
    """The names of the threads that start requests."""

    def __init__(self) -> None:
        self.threads: list[str] = []

    def patch(self) -> Any:
        start = GlooEngine.start

        def noted(engine: GlooEngine, request: Request) -> Any:
            self.threads.append(threading.current_thread().name)
            return start(engine, request)

        return mock.patch.object(GlooEngine, "start", noted)

    @property
    def beside(self) -> int:
        """Number of requests from the thread."""
        return sum(name.startswith(THREAD) for name in self.threads)


@cases
def a_thread_encodes_for_ddp() -> None:
    """With a thread on all ranks and on one, for every kind of exchange and any buckets of DDP."""
    for setting in ("always", "always" if hvd.rank() == 0 else "never"):
        for bucket_mb in (0.005, 0.05, 25):
            config = mixed(encoder_thread=setting)
            started = Started()
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
            started = Started()
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
    for step in range(2):  # DDP makes its buckets anew after the first step
        training.averages(harness.gradients(training.params, step))
    begun, last = threading.Event(), threading.Event()
    met: list[bool] = []
    start = GlooEngine.start

    def waits(engine: GlooEngine, request: Request) -> Any:
        if threading.current_thread().name.startswith(THREAD):
            begun.set()
            met.append(last.wait(60))
        return start(engine, request)

    def comes_last(gradient: torch.Tensor) -> None:
        met.append(begun.wait(60))
        last.set()

    # Autograd begins with the newest term.
    next(iter(training.params.values())).register_hook(comes_last)
    with mock.patch.object(GlooEngine, "start", waits):
        training.averages(harness.gradients(training.params, 2))
    assert len(met) >= 3
    assert all(met)


@cases
def errors_of_the_thread_of_ddp() -> None:
    training = Training(mixed(encoder_thread="always"), MIXED)
    grads = harness.gradients(training.params, 0)
    training.averages(grads)

    def fails(engine: GlooEngine, request: Request) -> Any:
        if threading.current_thread().name.startswith(THREAD):
            raise ProtocolError("the thread has failed")
        return start(engine, request)

    start = GlooEngine.start
    with mock.patch.object(GlooEngine, "start", fails):
        refused(lambda: training.averages(grads), ProtocolError, "the thread has failed")
