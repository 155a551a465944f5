"""The part of ``horovod.torch`` that cases of DDP and FSDP use, on torch.distributed: for jobs of torchrun without
Horovod."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

__all__ = ["allgather", "barrier", "init", "local_size", "rank", "size"]


def init() -> None:
    """Make the default process group."""
    dist.init_process_group("gloo")


def rank() -> int:
    """This rank."""
    return dist.get_rank()


def size() -> int:
    """Number of ranks."""
    return dist.get_world_size()


def local_size() -> int:
    """Number of ranks on this host."""
    return int(os.environ["LOCAL_WORLD_SIZE"])


def barrier() -> None:
    """Wait for all ranks."""
    dist.barrier()


def allgather(tensor: torch.Tensor, name: str | None = None) -> torch.Tensor:
    """All ranks' rows; the ranks have equal numbers of them."""
    del name
    of_ranks = [torch.empty_like(tensor) for _ in range(size())]
    dist.all_gather(of_ranks, tensor)
    return torch.cat(of_ranks)
