"""Step times of `fsdp_hook`, with exchanges beside the backward pass and with exchanges before it goes on.

  python benchmarks/netlab --engine torch --ranks 2 --rate 1gbit -- python benchmarks/fsdp_between.py

Each rank is a machine that holds the whole model, a chain of linear layers, each a unit of
``fully_shard``. An exchange ends at once where a gradient has a hook, so one of the two contenders has
hooks that do nothing. Contenders take turns, step by step; times are from a barrier to the end of the
backward pass, and their gradients are compared.
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from torch_compressors import init_process_group
from torch_compressors.fsdp import fsdp_hook


class Job:
    """A model, compressed."""

    def __init__(self, spec: str, layers: int, width: int, at_once: bool) -> None:
        mesh = init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("all", "one"))
        torch.manual_seed(0)
        self.model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
        for module in (*self.model, self.model):
            fully_shard(module, mesh=mesh["one"])
        if at_once:
            for parameter in self.model.parameters():
                parameter.register_post_accumulate_grad_hook(lambda _: None)
        fsdp_hook(spec, self.model, mesh.get_group("all"))
        self.seconds: list[float] = []

    def step(self, inputs: torch.Tensor) -> None:
        """One step without an optimizer."""
        self.model.zero_grad()
        dist.barrier()
        begin = time.perf_counter()
        self.model(inputs).square().mean().backward()
        self.seconds.append(time.perf_counter() - begin)


def main() -> None:
    """Print a line for each spec."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--spec", nargs="+", default=["identity", "fp16", "residual|int4"])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--warmup", type=int, default=3, help="steps before, at least 1")
    options = parser.parse_args()
    torch.set_num_threads(1)
    init_process_group()
    generator = torch.Generator().manual_seed(dist.get_rank())
    for spec in options.spec:
        beside, at_once = (
            Job(spec, options.layers, options.width, hooks) for hooks in (False, True)
        )
        for _ in range(options.warmup + options.steps):
            inputs = torch.randn(options.batch, options.width, generator=generator)
            for job in (beside, at_once):
                job.step(inputs)
            pairs = zip(beside.model.parameters(), at_once.model.parameters(), strict=True)
            assert all(
                torch.equal(left.grad.to_local(), right.grad.to_local()) for left, right in pairs
            )
        ms_beside, ms_at_once = (
            1e3 * statistics.median(job.seconds[options.warmup :]) for job in (beside, at_once)
        )
        if dist.get_rank() == 0:
            print(
                f"{spec:20} {ms_at_once:8.1f} ms at once {ms_beside:8.1f} ms beside {ms_beside / ms_at_once:6.2f}",
                flush=True,
            )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
