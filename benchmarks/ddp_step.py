"""Step time of DDP with torch's own powerSGD_hook and with ours, on the same model and ranks.

  torchrun --nproc_per_node=2 benchmarks/ddp_step.py

torch's hook works with a single bucket only: on Gloo it aborts with several. The backward pass is a
stand-in: products of square matrices before the fixed gradient of each tensor.
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as torch_powersgd
from torch.nn.parallel import DistributedDataParallel

from gradcomp.tools.model_shapes import MODELS, model_shapes
from stand_in_layer import Layer
from torch_compressors import ddp_hook

ONE_BUCKET = 10**4  # MiB


class Model(torch.nn.Module):
    """Parameters with fixed gradients."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], products: int) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(dist.get_rank())
        self.weights = torch.nn.ParameterList(torch.zeros(shape) for shape in shapes.values())
        self.grads = [torch.randn(shape, generator=random) for shape in shapes.values()]
        self.matrix = torch.randn(256, 256, generator=random)
        self.products = products

    def forward(self) -> torch.Tensor:
        """A number with those gradients."""
        x = torch.zeros(1, requires_grad=True)
        for weight, grad in zip(self.weights, self.grads, strict=True):
            x = Layer.apply(x, weight, (self.matrix, self.products, grad))
        return x


class Job:
    """A model in DDP, with an optimizer and a hook."""

    def __init__(self, model: Model, spec: str | None, rank: int, bucket_mb: float) -> None:
        self.model = DistributedDataParallel(
            model, bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True
        )
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        self.seconds: list[float] = []
        if spec is None:
            state = torch_powersgd.PowerSGDState(
                process_group=None, matrix_approximation_rank=rank, start_powerSGD_iter=2
            )
            self.model.register_comm_hook(state, torch_powersgd.powerSGD_hook)
        else:
            self.model.register_comm_hook(*ddp_hook(spec, self.model))

    def step(self) -> None:
        """One step, timed from a barrier."""
        dist.barrier()
        begin = time.perf_counter()
        self.model().backward()
        self.optimizer.step()
        self.seconds.append(time.perf_counter() - begin)
        self.optimizer.zero_grad(set_to_none=False)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="resnet50")
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--warmup", type=int, default=4, help="steps before, the first ones dense")
    parser.add_argument("--products", type=int, default=2, help="work before each gradient")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    shapes = dict(model_shapes(options.model))
    spec = f"powersgd(rank={options.rank},start_step=2,variant=library)"
    jobs = {
        name: Job(Model(shapes, options.products), text, options.rank, bucket_mb)
        for name, text, bucket_mb in (
            ("torch powerSGD_hook, one bucket", None, ONE_BUCKET),
            (f"{spec}, one bucket", spec, ONE_BUCKET),
            (f"{spec}, buckets of 25 MiB", spec, 25),
            ("identity, buckets of 25 MiB", "identity", 25),
        )
    }
    for _ in range(options.warmup + options.steps):
        for job in jobs.values():
            job.step()
    if dist.get_rank() == 0:
        medians, least = (
            {name: 1e3 * pick(job.seconds[options.warmup :]) for name, job in jobs.items()}
            for pick in (statistics.median, min)
        )
        first = next(iter(jobs))
        print(f"{options.model}, {dist.get_world_size()} ranks on Gloo, ms a step")
        print(f"{'median':>8}{'ratio':>7}{'least':>8}{'ratio':>7}")
        for name in jobs:
            print(
                f"{medians[name]:8.1f}{medians[name] / medians[first]:7.2f}"
                f"{least[name]:8.1f}{least[name] / least[first]:7.2f}  {name}"
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
