"""`sparse_allreduce` from device to device in DDP, on two processes with Gloo and interpreted kernels.

    python shares_in_ddp.py STORE

Prints for each rank the number of steps whose averages and residuals were compared with rounds through the host.
"""

from __future__ import annotations

import os
import sys
from unittest import mock

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gpu.quick_interpreter  # noqa: F401
from gradcomp import Loopback
from gradcomp_torch.gpu import device_lookup
from gradcomp_torch.gpu.peer_device import DirectDevice
from support.pipelines import configured
from torch_compressors import ddp_hook

CPU = torch.device("cpu")
RANKS = 2
SHAPES = {"a": (50, 90), "b": (64, 80), "bias": (33,)}


class Given(torch.nn.Module):
    """Parameters whose gradients are those that it is called with."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        for name, shape in SHAPES.items():
            self.register_parameter(name, torch.nn.Parameter(torch.zeros(shape, dtype=dtype)))

    def forward(self, grads: dict[str, torch.Tensor]) -> torch.Tensor:
        products = [(getattr(self, name) * grad).sum() for name, grad in grads.items()]
        return torch.stack(products).sum()


def main(store: str) -> None:
    """Start a second process, and be the first rank."""
    child = os.fork()
    rank = int(child == 0)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    steps = compare(rank, torch.float32, 3) + compare(rank, torch.bfloat16, 2)
    print(f"rank {rank}: {steps} steps compared", flush=True)
    dist.destroy_process_group()
    if child:
        _, status = os.waitpid(child, 0)
        sys.exit(os.waitstatus_to_exitcode(status))


def compare(rank: int, dtype: torch.dtype, steps: int) -> int:
    """Steps of DDP, whose averages overwrite gradients that stay where they are."""
    config = configured("residual|topk(ratio=0.05)", exchange="sparse_allreduce", device="direct")
    loopback = Loopback(config, RANKS)
    for pipeline in loopback.ranks:
        pipeline.begin_peer_messages(DirectDevice(CPU))
    model = DistributedDataParallel(Given(dtype))
    with (
        mock.patch.object(device_lookup, "device_for", return_value=DirectDevice(CPU)),
        mock.patch.object(device_lookup, "direct_device", side_effect=DirectDevice),
    ):
        state, hook = ddp_hook(config, model)
    model.register_comm_hook(state, hook)
    for step in range(steps):
        torch.manual_seed(step)
        grads = {
            name: [torch.randn(shape).to(dtype) for _ in range(RANKS)]
            for name, shape in SHAPES.items()
        }
        wanted = loopback.step(
            {name: [grad.float().numpy() for grad in grads[name]] for name in ("a", "b")}
        )
        model.zero_grad(set_to_none=False)
        model({name: of_ranks[rank] for name, of_ranks in grads.items()}).backward()
        for name, averages in wanted.items():
            found = getattr(model.module, name).grad
            assert torch.equal(found, torch.from_numpy(averages[rank]).to(dtype)), name
        ours, others = (one.state_dict()["residual"] for one in (state, loopback.ranks[rank]))
        for name, residual in others.items():
            np.testing.assert_array_equal(ours[name], residual, name)
    sent, through_host = (
        one.sent_bytes["alltoall"] for one in (state.stats, loopback.ranks[rank].stats)
    )
    assert sent != through_host, "through the host"
    return steps


if __name__ == "__main__":
    main(sys.argv[1])
