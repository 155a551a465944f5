"""Step time on ResNet-50's shapes under Horovod, by compress.bucket_bytes: does the exchange hide
behind the backward pass?

  horovodrun -np 2 python benchmarks/step_time.py 'powersgd(rank=4,start_step=0)' 4194304 1000000000

The backward pass is a stand-in: products of square matrices before the gradient of each tensor,
which is given. All settings run in one job, in turn.
"""

import argparse
import statistics
import time
from typing import Any

import horovod.torch as hvd
import torch

from gradcomp import Config
from gradcomp.shapes import model_shapes
from horovod_compressors.torch import Compression

SHAPES = model_shapes("resnet50")


class Layer(torch.autograd.Function):
    """Passes its input on; in the backward pass it computes, then gives its weight a gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, work: Any) -> torch.Tensor:
        """The input."""
        ctx.work = work
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *of_output: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        """The gradient that was given."""
        matrix, products, grad = ctx.work
        for _ in range(products):
            matrix @ matrix
        return of_output[0], grad, None


class Job:
    """A model with an optimizer of its own."""

    def __init__(self, label: str, spec: str, bucket_bytes: int, products: int) -> None:
        random = torch.Generator().manual_seed(hvd.rank())
        self.weights = {
            f"{label}.{name}": torch.nn.Parameter(torch.zeros(shape))
            for name, shape in SHAPES.items()
        }
        self.grads = [torch.randn(w.shape, generator=random) for w in self.weights.values()]
        self.matrix = torch.randn(256, 256, generator=random)
        self.products = products
        compress = {"default": spec, "bucket_bytes": bucket_bytes}
        config = Config.from_mapping({"version": 1, "compress": compress})
        compression = Compression(config, self.weights.items())
        sgd = torch.optim.SGD(self.weights.values(), lr=0.0)
        self.optimizer = hvd.DistributedOptimizer(
            sgd, named_parameters=self.weights.items(), compression=compression
        )
        self.seconds: list[float] = []

    def step(self) -> None:
        """One step, timed from a barrier."""
        self.optimizer.zero_grad()
        hvd.barrier()
        begin = time.perf_counter()
        x = torch.zeros(1, requires_grad=True)
        for weight, grad in zip(self.weights.values(), self.grads, strict=True):
            x = Layer.apply(x, weight, (self.matrix, self.products, grad))
        x.backward()
        self.optimizer.step()
        self.seconds.append(time.perf_counter() - begin)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("spec")
    parser.add_argument("bucket_bytes", type=int, nargs="+")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--products", type=int, default=2, help="work before each gradient")
    options = parser.parse_args()
    hvd.init()
    torch.set_num_threads(1)
    jobs = {
        size: Job(str(size), options.spec, size, options.products) for size in options.bucket_bytes
    }
    for _ in range(options.steps + 2):  # the first ones allocate
        for job in jobs.values():
            job.step()
    if hvd.rank() == 0:
        print(f"{'bucket_bytes':>14}{'median ms':>12}{'least ms':>12}")
        for size, job in jobs.items():
            seconds = job.seconds[2:]
            least, median = 1e3 * min(seconds), 1e3 * statistics.median(seconds)
            print(f"{size:14}{median:12.1f}{least:12.1f}")


if __name__ == "__main__":
    main()
