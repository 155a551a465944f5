"""Gradients on a pretended device, which go through late copies to the host and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any
from unittest import mock

import horovod.torch as hvd
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from workers import harness
from workers.ddp_model import Training, join
from workers.harness import Cases, refused

from gradcomp import Config
from gradcomp.errors import ConfigError, ProtocolError
from horovod_compressors.torch import Compression
from horovod_compressors.torch.encoder_thread import EncoderThread
from support.pipelines import config_of
from support.pretend_device import DEVICE, on_device, on_host, pretended
from torch_compressors import GradientAverager
from torch_compressors.ddp import compress_bucket
from torch_compressors.fsdp import fsdp_hook, fsdp_reduce_scatter
from torch_compressors.fsdp.units import units_of

cases = Cases()

SHAPES = {"a": (64, 80), "b": (30, 50), "c": (40, 30)}
NUMEL = 64 * 80 + 30 * 50 + 40 * 30

SPECS = {
    "gathered": config_of("residual|topk(ratio=0.1)", bucket_bytes=1),
    "one bucket": config_of("residual|topk(ratio=0.1)"),
    "all-reduced": config_of("residual|fp16"),
    "an algorithm": config_of("powersgd(rank=2,start_step=0)"),
}


def given(dtype: torch.dtype = torch.float32) -> tuple[dict[str, Any], dict[str, Any]]:
    """Equal parameters on the host and on the device, by names that no other call gives."""
    params = harness.parameters(SHAPES, dtype)
    there = {name: torch.nn.Parameter(on_device(p)) for name, p in params.items()}
    return params, there


def arrive(
    opt: Any, params: Mapping[str, torch.nn.Parameter], grads: Mapping[str, torch.Tensor]
) -> None:
    """Call the stock optimizer's hook of each parameter, as a backward pass does.

    Autograd has threads for each device, in which a device that is written in Python ends the process.
    """
    for name, grad in grads.items():
        p = params[name]
        p.grad = on_device(grad) if p.device == DEVICE else grad
        opt._make_hook(p)()


@cases
def gradients_on_a_device() -> None:
    """Averages are those of gradients on the host, and no copy waits in the backward pass."""
    for label, config in SPECS.items():
        for dtype in (torch.float32, torch.bfloat16):
            check_steps(label, config, dtype)


def check_steps(label: str, config: Config, dtype: torch.dtype) -> None:
    params, there = given(dtype)
    alone = harness.optimizer(params, Compression(config, params.items()))
    with pretended() as log:
        opt = harness.optimizer(there, Compression(config, there.items()))
        for step in range(3):
            log.to_host.clear()
            log.to_device.clear()
            log.waits = 0
            grads = harness.gradients(params, step)
            expected = harness.averages(alone, params, grads)
            arrive(opt, there, grads)
            # All copies are under way; the last bucket's are not waited for.
            assert sum(log.to_host) == NUMEL * dtype.itemsize, f"{label}: {log.to_host}"
            assert log.waits < len(SHAPES), f"{label}: {log.waits} waits"
            assert log.to_device == []
            opt.step()
            assert sum(log.to_device) == NUMEL * dtype.itemsize, f"{label}: {log.to_device}"
            for name, p in there.items():
                assert p.grad.device == DEVICE
                harness.check_equal(on_host(p.grad), expected[name], f"{label}, {step}: {name}")
            opt.zero_grad()


@cases
def buckets_are_one_behind() -> None:
    """The request of a bucket follows when the next one is complete."""
    _, there = given()
    config = SPECS["gathered"]
    with pretended() as log:
        opt = harness.optimizer(there, Compression(config, there.items()))
        grads = harness.gradients(there, 0)
        for arrived, (name, grad) in enumerate(grads.items()):
            arrive(opt, there, {name: grad})
            assert len(log.to_host) == arrived + 1
            assert log.waits == arrived
        opt.step()


@cases
def a_thread_waits_for_copies() -> None:
    """It encodes gradients that have arrived; averages are those of gradients on the host.

    Hooks are called outside a backward pass here, so the thread is told to take their gradients.
    """
    params, there = given()
    config = SPECS["gathered"]
    alone = harness.optimizer(params, Compression(config, params.items()))
    with pretended(), mock.patch.object(EncoderThread, "takes", return_value=True):
        opt = harness.optimizer(there, Compression(config, there.items()))
        for step in range(3):
            grads = harness.gradients(params, step)
            expected = harness.averages(alone, params, grads)
            arrive(opt, there, grads)
            opt.step()
            for name, p in there.items():
                harness.check_equal(on_host(p.grad), expected[name], f"{step}: {name}")
            opt.zero_grad()


@cases
def policy_on_a_device() -> None:
    """Steps that measure wait for copies, too; a copy that is read too soon is NaN."""
    config = config_of("topk(ratio=0.5)", policy="auto")
    _, there = given()
    with pretended():
        opt = harness.optimizer(there, Compression(config, there.items()))
        for step in range(3):
            grads = harness.gradients(there, step)
            arrive(opt, there, grads)
            opt.step()
            for name, p in there.items():
                average = on_host(p.grad)
                assert average.isfinite().all(), f"{step}: {name}"
                harness.check_same_on_all_ranks(average, name)
            opt.zero_grad()


@cases
def sums_of_a_device_without_names() -> None:
    """Payloads that Horovod all-reduces on the device, and their averages."""
    compression, alone = (Compression("fp16", process_set=hvd.global_process_set) for _ in "ab")
    grad = harness.gradients({"w": torch.zeros(harness.MATRIX)}, 0)["w"]
    mean = hvd.allreduce(grad, name="pretend.alone", compression=alone)
    with pretended() as log:
        payload, context = compression.compress(on_device(grad))
        assert payload.device == DEVICE
        total = hvd.allreduce(on_host(payload), name="pretend.payload")
        average = compression.decompress(on_device(total), context)
        assert log.to_host == [4 * grad.numel(), 2 * grad.numel()]
        assert log.to_device == [2 * grad.numel(), 4 * grad.numel()]
        harness.check_equal(on_host(average), mean)


@cases
def ranks_with_and_without_a_device_differ() -> None:
    """An error on both, before any gradient is sent."""
    params, there = given()
    mine = there if hvd.rank() == 0 else params
    opt = harness.optimizer(mine, Compression(SPECS["gathered"], mine.items()))
    grads = harness.gradients(mine, 0)
    with pretended():
        refused(lambda: arrive(opt, mine, grads), ProtocolError, "gradients on a GPU")


@cases
def shards_on_a_device() -> None:
    """The sums of a reduce-scatter on the host; both directions are copies of pinned memory."""
    join()
    model: Any = torch.nn.Linear(80, 64, bias=False)
    fully_shard(model, mesh=init_device_mesh("cpu", (hvd.size(),)))
    state = fsdp_reduce_scatter("topk(ratio=0.1)", model)
    (unit,) = units_of(model)
    given = harness.gradients({"w": torch.zeros(64, 80)}, 0)["w"].flatten()
    own = torch.empty(given.numel() // hvd.size())
    state.reduce(unit, own, given.clone(), dist.ReduceOp.SUM)  # it may change its input
    with pretended() as log:
        there = on_device(torch.empty_like(own))
        state.reduce(unit, there, on_device(given), dist.ReduceOp.SUM)
        harness.check_equal(on_host(there), own)
        assert (log.to_host, log.to_device) == ([given.nbytes], [own.nbytes])


class Bucket:
    """A bucket as DDP gives it to a hook."""

    def __init__(
        self, index: int, params: Sequence[torch.Tensor], buffer: torch.Tensor, last: bool
    ) -> None:
        self._index, self._params, self._buffer, self._last = index, params, buffer, last

    def index(self) -> int:
        return self._index

    def is_last(self) -> bool:
        return self._last

    def buffer(self) -> torch.Tensor:
        return self._buffer

    def parameters(self) -> Sequence[torch.Tensor]:
        return self._params

    def gradients(self) -> list[torch.Tensor]:
        ends = accumulate((p.numel() for p in self._params), initial=0)
        return [
            self._buffer[begin:end].view(p.shape)
            for p, (begin, end) in zip(self._params, pairwise(ends), strict=True)
        ]


@cases
def hook_on_a_device() -> None:
    """The averages of DDP on the host; a bucket is one copy in each direction, in its dtype."""
    shapes = {"w1.a": (64, 80), "w1.b": (30, 50), "w2.a": (40, 40), "w2.b": (80,)}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        config = Config.from_spec("residual|topk(ratio=0.1)")
        alone = Training(config, shapes, dtype=dtype)
        there = Training(config, shapes, dtype=dtype)
        for step in range(3):
            grads = harness.gradients(there.params, step)
            expected = alone.averages(grads)
            with pretended() as log:
                average_on_device(there, grads, log, expected)


@cases
def a_recorded_step_is_refused() -> None:
    """The first gradient of a step that the script records in a CUDA graph is an error, and nothing is sent."""
    _, there = given()
    training = Training(Config.from_spec("residual|topk(ratio=0.1)"), {"w": (64, 80)})
    buffer = on_device(torch.zeros(64 * 80))
    bucket: Any = Bucket(0, [training.params["w"]], buffer, last=True)
    with pretended(), torch.Stream(DEVICE):  # type: ignore[attr-defined]
        opt = harness.optimizer(there, Compression(SPECS["one bucket"], there.items()))
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        recorded = "cannot be recorded in a CUDA graph"
        refused(
            lambda: compress_bucket(training.state, bucket), ConfigError, f"ddp_hook {recorded}"
        )
        grads = harness.gradients(there, 0)
        refused(lambda: arrive(opt, there, grads), ConfigError, f"Compression {recorded}")
        graph.capture_end()


@cases
def other_recorded_steps_are_refused() -> None:
    """As above, by the adapters of FSDP and by `GradientAverager`, which call no hook of DDP or Horovod."""
    join()
    mesh = init_device_mesh("cpu", (hvd.size(), 1), mesh_dim_names=("replicate", "shard"))
    between, scattered = (torch.nn.Linear(80, 64, bias=False) for _ in range(2))
    fully_shard(between, mesh=mesh["shard"])
    fully_shard(scattered, mesh=init_device_mesh("cpu", (hvd.size(),)))
    hook = fsdp_hook("residual|topk(ratio=0.1)", between, mesh.get_group("replicate"))
    scatter = fsdp_reduce_scatter("topk(ratio=0.1)", scattered)
    (unit,) = units_of(scattered)
    shard = on_device(torch.zeros(64 * 80))
    parameter = torch.nn.Parameter(on_device(torch.zeros(64, 80)))
    averager = GradientAverager("residual|topk(ratio=0.1)", [("w", parameter)])
    pipelines = (hook._pipeline, scatter._pipeline, averager.pipeline)
    before = [pipeline.stats.sent_bytes for pipeline in pipelines]
    with pretended() as log, torch.Stream(DEVICE):  # type: ignore[attr-defined]
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        for name, call in (
            ("fsdp_hook", lambda: hook._average("", shard)),
            (
                "fsdp_reduce_scatter",
                lambda: scatter.reduce(unit, shard[::2], shard, dist.ReduceOp.SUM),
            ),
            ("GradientAverager.average()", averager.average),
        ):
            refused(call, ConfigError, f"{name} cannot be recorded in a CUDA graph")
        graph.capture_end()
    assert (log.to_host, log.to_device, log.waits) == ([], [], 0)
    assert [pipeline.stats.sent_bytes for pipeline in pipelines] == before


def average_on_device(
    training: Training, grads: Mapping[str, Any], log: Any, expected: Mapping[str, Any]
) -> None:
    """Give the hook two buckets, and compare the averages that it leaves in them."""
    buffers, futures, bytes_ = {}, [], []
    for index, half in enumerate(("w2", "w1")):
        names = [name for name in grads if name.startswith(half)]
        buffer = on_device(torch.cat([grads[name].reshape(-1) for name in names]))
        params = [training.params[name] for name in names]
        bucket: Any = Bucket(index, params, buffer, last=half == "w1")
        futures.append(compress_bucket(training.state, bucket))
        buffers.update(zip(names, bucket.gradients(), strict=True))
        bytes_.append(buffer.nbytes)
    assert log.to_host == bytes_, f"{log.to_host} bytes to the host, {bytes_} in buckets"
    assert log.to_device == bytes_
    for future in futures:
        future.wait()
    for name, average in buffers.items():
        harness.check_equal(on_host(average), expected[name], name)
