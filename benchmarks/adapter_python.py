"""Processor time of the thread that trains, in an engine and its adapter, without a network.

  python benchmarks/adapter_python.py torch
  python benchmarks/adapter_python.py horovod

One process is the only rank. Its steps have 200 small gradients, which travel uncompressed or in
top-k's frames. Printed are microseconds for each gradient, besides the work of its round, which
`gradcomp advise` measures itself.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ["HOROVOD_ELASTIC"] = "1"  # else its optimizer leaves the gradients of one rank alone

import torch
from torch.distributed import GradBucket  # type: ignore[attr-defined]

from gradcomp import load_config
from gradcomp.runtime.measure.profile import Profile
from stand_in_layer import Layer

COUNT, STEPS, WARM_UP = 200, 15, 4
SETTINGS = ("compress.default=residual|topk(ratio=0.01)", "compress.exchange=gather")
SHAPES = {"uncompressed": (64,), "compressed": (64, 64)}


class Model(torch.nn.Module):
    """Parameters with fixed gradients."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.zeros(shape) for _ in range(COUNT))
        self.grad, self.matrix = torch.randn(shape), torch.zeros(1, 1)

    def forward(self) -> torch.Tensor:
        """A number with those gradients."""
        x = torch.zeros(1, requires_grad=True)
        for weight in self.weights:
            x = Layer.apply(x, weight, (self.matrix, 0, self.grad))
        return x


Step = Callable[[], Any]


def torch_steps(shape: tuple[int, ...]) -> tuple[Step, Step, Any]:
    """A step of DDP that exchanges nothing, one with our hook, and the hook's statistics."""
    from torch.nn.parallel import DistributedDataParallel

    from torch_compressors import ddp_hook

    def kept(_: None, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        future = torch.futures.Future[torch.Tensor]()
        future.set_result(bucket.buffer())
        return future

    alone, ours = (DistributedDataParallel(Model(shape), init_sync=False) for _ in range(2))
    alone.register_comm_hook(None, kept)
    state, hook = ddp_hook(load_config([], ["version=1", *SETTINGS]), ours)
    ours.register_comm_hook(state, hook)
    return lambda: alone().backward(), lambda: ours().backward(), state.stats


def horovod_steps(shape: tuple[int, ...]) -> tuple[Step, Step, Any]:
    """The same for the stock optimizer of Horovod."""
    import horovod.torch as hvd

    from horovod_compressors.torch import Compression

    class Idle(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            pass

    alone, ours = Model(shape), Model(shape)
    named = [(f"{shape} {name}", weight) for name, weight in ours.named_parameters()]
    compression = Compression(load_config([], ["version=1", *SETTINGS]), named)
    idle = Idle(ours.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(idle, named_parameters=named, compression=compression)

    def step() -> None:
        ours().backward()
        optimizer.step()

    return lambda: alone().backward(), step, compression.stats


def seconds(step: Step) -> float:
    """Processor time of this thread in a step: the median."""
    found = []
    for _ in range(WARM_UP + STEPS):
        began = time.thread_time()
        step()
        found.append(time.thread_time() - began)
    return statistics.median(found[WARM_UP:])


def of_gradients(kind: str, steps: Callable[[tuple[int, ...]], tuple[Step, Step, Any]]) -> None:
    """Print the time for each gradient."""
    alone, ours, stats = steps(SHAPES[kind])
    without = seconds(alone)
    profile = stats.profile = Profile(stats, clock=time.thread_time)
    whole = seconds(ours) - without
    rounds = sum(profile.total.phases.values()) / (WARM_UP + STEPS)
    overhead, round_ = (1e6 * part / COUNT for part in (whole - rounds, rounds))
    print(f"{overhead:.0f} us for each {kind} gradient, besides {round_:.0f} us of its round")


def main() -> None:
    """Print the times of an engine."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("engine", choices=("torch", "horovod"))
    torch.set_num_threads(1)
    if parser.parse_args().engine == "horovod":
        import horovod.torch as hvd

        hvd.init()
        steps = horovod_steps
    else:
        import torch.distributed as dist

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        steps = torch_steps
    for kind in SHAPES:
        of_gradients(kind, steps)


if __name__ == "__main__":
    main()
