"""Processor time that DDP's hook takes in Python in a step, without the work on elements.

  python benchmarks/host_time.py --model resnet50 --device direct host

Works without a GPU: the gradients are on the CPU, whose device is given to the hook as that of a GPU, and
kernels do nothing. The core's encoding, decoding and framing do not count either, nor do copies of elements and the
engine's calls. One rank.

The elements evict Python's objects from the caches of a CPU, but not where they are on a GPU: ``--divide 4``
divides the first two sides of each tensor by 4, and the sizes of buckets by 16.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"  # so that launches can be left out

import torch
import torch.distributed as dist
from torch.distributed import GradBucket
from torch.nn.parallel import DistributedDataParallel
from triton.runtime.interpreter import GridExecutor

import gradcomp_torch.gpu.device_lookup as device_lookup
import torch_compressors.gloo.bucket_plan as bucket_plan
import torch_compressors.gloo.device_engine as device_engine
from gradcomp import Config, _core
from gradcomp.tools.model_shapes import model_shapes
from gradcomp_torch import float_copies
from gradcomp_torch.gpu import graphs
from gradcomp_torch.gpu.arrays import OnDevice
from gradcomp_torch.gpu.device import TorchDevice
from torch_compressors import ddp_hook
from torch_compressors.ddp import DDPCompression

SIDE = 8
"""The transformer has sides that are at least this many times shorter."""


def transformer(divisor: int) -> dict[str, tuple[int, ...]]:
    """The 292 tensors of a GPT with 24 layers of width 1792 (1.02e9 elements), each side divided."""
    width, tokens = 1792 // divisor, 50257 // divisor
    shapes: dict[str, tuple[int, ...]] = {"tokens": (tokens, width), "places": (128, width)}
    for layer in range(24):
        for name, outputs, inputs in (("qkv", 3, 1), ("out", 1, 1), ("up", 4, 1), ("down", 1, 4)):
            shapes[f"{layer}.{name}.weight"] = (outputs * width, inputs * width)
            shapes[f"{layer}.{name}.bias"] = (outputs * width,)
        for name in ("norm1", "norm2"):
            shapes |= {f"{layer}.{name}.weight": (width,), f"{layer}.{name}.bias": (width,)}
    return shapes | {"norm.weight": (width,), "norm.bias": (width,)}


def shapes_of(options: argparse.Namespace) -> tuple[dict[str, tuple[int, ...]], int]:
    """The tensors, and the number by which sizes of buckets are divided."""
    divisor = options.divide
    if options.model == "transformer":
        divisor = max(divisor, SIDE)
        return transformer(divisor), divisor**2
    shapes = {
        name: tuple(max(1, side // divisor) for side in shape[:2]) + shape[2:]
        if len(shape) > 1
        else shape
        for name, shape in model_shapes(options.model).items()
    }
    return shapes, divisor**2


class Model(torch.nn.Module):
    """Parameters of these shapes."""

    def __init__(self, shapes: dict[str, tuple[int, ...]]) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.zeros(shape) for shape in shapes.values())

    def forward(self) -> torch.Tensor:
        """Their sum; gradients are 1."""
        return torch.stack([weight.sum() for weight in self.weights]).sum()


class Clock:
    """Processor time of this thread outside of the work on elements."""

    def __init__(self) -> None:
        self._left_out = 0.0
        self._inside = False

    def now(self) -> float:
        """Seconds."""
        return time.thread_time() - self._left_out

    def leave_out(self, owner: Any, name: str) -> None:
        """Do not count a function."""
        function: Callable[..., Any] = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            if self._inside:  # it is left out already
                return function(*arguments, **named)
            self._inside, begin = True, time.thread_time()
            try:
                return function(*arguments, **named)
            finally:
                self._inside = False
                self._left_out += time.thread_time() - begin

        setattr(owner, name, call)


def pretend() -> None:
    """Take the CPU for a GPU on which launches do nothing and are recorded the second time."""
    devices: dict[torch.device, TorchDevice] = {}
    device_lookup.device_for = lambda place: devices.setdefault(place, TorchDevice(place))
    device_engine._obstacle = lambda world, places: ""

    def run(self: graphs.Replayed, key: Any, launch: Callable[[], None]) -> None:
        if key != self._key:
            self._key = key
            launch()

    graphs.Replayed.run = run  # type: ignore[method-assign]
    GridExecutor.__call__ = lambda self, *arguments, **constants: None


def measure(options: argparse.Namespace, device: str, clock: Clock) -> list[float]:
    """Seconds in the hook, of each step."""
    shapes, fewer = shapes_of(options)
    model = DistributedDataParallel(
        Model(shapes), bucket_cap_mb=25 / fewer, gradient_as_bucket_view=True
    )
    compress = {
        "default": options.spec,
        "device": device,
        "encoder_thread": "never",
        "bucket_bytes": options.bucket_bytes // fewer,
    }
    state, hook = ddp_hook(Config.from_mapping({"version": 1, "compress": compress}), model)
    spent = 0.0

    def timed(state: DDPCompression, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        nonlocal spent
        begin = clock.now()
        future = hook(state, bucket)
        spent += clock.now() - begin
        return future

    model.register_comm_hook(state, timed)
    seconds = []
    for _ in range(options.steps):
        spent = 0.0
        model().backward()
        seconds.append(spent)
    return seconds


def main() -> None:
    """Print the median step of each device."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet50", help="one of gradcomp's, or transformer")
    parser.add_argument("--spec", default="residual|int8")
    parser.add_argument("--device", nargs="+", default=["direct", "auto", "host"])
    parser.add_argument("--bucket-bytes", type=int, default=25_000_000)
    parser.add_argument("--divide", type=int, default=1, help="sides by this number")
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "GRADCOMP_LOG": "quiet"}
    torch.set_num_threads(1)
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    pretend()
    clock = Clock()
    for name in ("encode_batch", "decode_batch_add", "frames_of_parts", "payload_places"):
        clock.leave_out(_core, name)
    for name in ("allreduce", "_allgather_base", "allgather", "alltoall_base", "broadcast"):
        clock.leave_out(dist.ProcessGroup, name)
    clock.leave_out(dist.Work, "wait")
    clock.leave_out(torch.Tensor, "copy_")
    clock.leave_out(OnDevice, "fill")
    for module in (device_engine, bucket_plan, float_copies):
        clock.leave_out(module, "foreach_copy_")
    for device in options.device:
        seconds = measure(options, device, clock)[10:]
        print(
            f"{options.model}, {options.spec}, {device}: {1e3 * statistics.median(seconds):.2f} ms a step, "
            f"{1e3 * min(seconds):.2f} the shortest"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
