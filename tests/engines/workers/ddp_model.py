"""Models with given gradients, in DistributedDataParallel with our hook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from workers import harness
from workers.ranks import hvd

from gradcomp import Config, Loopback
from torch_compressors import ddp_hook


@cache
def join() -> None:
    """Make a process group of Horovod's ranks, unless torchrun has made one."""
    if dist.is_initialized():
        return
    store = harness.shared / f"process-group-{hvd.size()}"
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=hvd.rank(), world_size=hvd.size()
    )


class Given(torch.nn.Module):
    """A model of given parameters, by name, and with any gradients."""

    def __init__(self, params: Mapping[str, torch.nn.Parameter]) -> None:
        super().__init__()
        for path, parameter in params.items():
            *above, name = path.split(".")
            module: torch.nn.Module = self
            for part in above:
                if not hasattr(module, part):
                    module.add_module(part, torch.nn.Module())
                module = getattr(module, part)
            module.register_parameter(name, parameter)

    def forward(self, grads: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """A number with these gradients; parameters without one take no part."""
        params = dict(self.named_parameters())
        return torch.stack([(params[n] * grad).sum().double() for n, grad in grads.items()]).sum()


class Training:
    """A model in DDP; its steps leave averages.

    Args:
        bucket_mb: of DDP; the default gives small models many buckets.
        options: of DDP.
    """

    def __init__(
        self,
        config: str | Config,
        shapes: Mapping[str, Sequence[int]],
        *,
        bucket_mb: float = 0.005,
        dtype: torch.dtype = torch.float32,
        optimizer: Any = None,
        clip_norm: float | None = None,
        **options: Any,
    ) -> None:
        join()
        self.params = {
            n: torch.nn.Parameter(torch.zeros(s, dtype=dtype)) for n, s in shapes.items()
        }
        self.model = DistributedDataParallel(Given(self.params), bucket_cap_mb=bucket_mb, **options)
        made = None if optimizer is None else optimizer(self.params.values())
        self.state, hook = ddp_hook(config, self.model, made, clip_norm=clip_norm)
        self.model.register_comm_hook(self.state, hook)

    def averages(self, grads: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The averages of one step."""
        self.model.zero_grad()
        self.model(grads).backward()
        return {n: p.grad.clone() for n, p in self.params.items() if p.grad is not None}

    def check_steps(self, loopback: Loopback, steps: range) -> None:
        """Check that averages equal the loopback's."""
        for step in steps:
            of_ranks = [harness.gradients(self.params, step, rank) for rank in range(hvd.size())]
            found = self.averages(of_ranks[hvd.rank()])
            named = {name: [grads[name] for grads in of_ranks] for name in self.params}
            for name, averages in loopback.step(named).items():
                check_sum(found[name], averages[hvd.rank()], f"{step}: {name}")

    def check_replicas(self) -> None:
        """Check that all ranks have the same parameters and averages."""
        everything = [p.detach().reshape(-1) for p in self.params.values()]
        everything += [p.grad.reshape(-1) for p in self.params.values()]
        harness.check_same_on_all_ranks(torch.cat(everything))


def check_sum(actual: torch.Tensor, expected: Any, label: str = "") -> None:
    """Check for equality to the last bit. With three or more ranks the order of Gloo's sums depends
    on DDP's buckets."""
    if hvd.size() == 2:
        harness.check_equal(actual, expected, label)
    else:
        wanted = torch.as_tensor(expected)
        torch.testing.assert_close(
            actual, wanted, rtol=1e-2, atol=1e-2, msg=f"{label}: {{}}".format
        )
