"""Step time on a model's shapes under Horovod, of several configurations in turn.

  horovodrun -np 2 python benchmarks/step_time.py compress.default=identity \\
      'compress.default=residual|topk(ratio=0.01) compress.policy=auto'

Each argument is a configuration: overrides separated by blanks. The backward pass is a stand-in:
products of square matrices before the fixed gradient of each tensor.
"""

import argparse
import statistics
import time

import horovod.torch as hvd
import torch

from gradcomp import load_config
from gradcomp.tools.model_shapes import MODELS, model_shapes
from horovod_compressors.torch import Compression
from stand_in_layer import Layer


class Job:
    """A model with an optimizer of its own."""

    def __init__(self, setting: str, shapes: dict[str, tuple[int, ...]], products: int) -> None:
        random = torch.Generator().manual_seed(hvd.rank())
        self.weights = {
            f"{name} of {setting}": torch.nn.Parameter(torch.zeros(shape))
            for name, shape in shapes.items()
        }
        self.grads = [torch.randn(w.shape, generator=random) for w in self.weights.values()]
        self.matrix = torch.randn(256, 256, generator=random)
        self.products = products
        config = load_config([], ["version=1", *setting.split()])
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
    parser.add_argument("settings", nargs="+")
    parser.add_argument("--model", choices=MODELS, default="resnet50")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--warmup", type=int, default=2, help="steps before; 56 for a policy")
    parser.add_argument("--products", type=int, default=2, help="work before each gradient")
    options = parser.parse_args()
    hvd.init()
    torch.set_num_threads(1)
    shapes = dict(model_shapes(options.model))
    jobs = {setting: Job(setting, shapes, options.products) for setting in options.settings}
    for _ in range(options.warmup + options.steps):
        for job in jobs.values():
            job.step()
    if hvd.rank() == 0:
        print(f"{'median ms':>9}{'least ms':>9}  setting")
        for setting, job in jobs.items():
            seconds = job.seconds[options.warmup :]
            least, median = 1e3 * min(seconds), 1e3 * statistics.median(seconds)
            print(f"{median:9.1f}{least:9.1f}  {setting}")


if __name__ == "__main__":
    main()
