"""Gathers of bytes over a process group, without pickle."""

from __future__ import annotations

import re

import numpy as np
import torch
import torch.distributed as dist

from gradcomp.errors import ProtocolError
from torch_compressors.gloo.keep_alive import keep

__all__ = ["MAX_GATHERED", "bytes_on_first", "gather_bytes", "gather_numbers", "gather_texts"]

MAX_GATHERED = 2**24
"""Longest text of one rank, in bytes; a larger size comes from a rank that runs something else."""


def gather_bytes(data: bytes, group: dist.ProcessGroup | None = None) -> list[bytes]:
    """The bytes of every rank of a group, in rank order. Every rank of the group must call it.

    Unlike ``all_gather_object`` it never runs code that a rank sends.

    Args:
        data: at most `MAX_GATHERED` bytes.

    Raises:
        ProtocolError: a rank sends a size outside [0, MAX_GATHERED].
    """
    size = dist.get_world_size(group)
    on_gpu = dist.get_backend(group) == "nccl"
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    lengths = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(size)]
    _gather(lengths, torch.tensor([len(data)], dtype=torch.int64, device=device), group)
    sizes = [int(length) for length in lengths]
    for rank, length in enumerate(sizes):
        if not 0 <= length <= MAX_GATHERED:
            raise ProtocolError(
                f"rank {rank} of the group sends a text of {length} bytes; it must be in [0, "
                f"{MAX_GATHERED}]: see whether all ranks run the same script and versions"
            )
    longest = max(sizes)
    if longest == 0:
        return [b""] * size
    padded = torch.zeros(longest, dtype=torch.uint8, device="cpu")
    padded[: len(data)] = _tensor_of(data)
    texts = [torch.empty(longest, dtype=torch.uint8, device=device) for _ in range(size)]
    _gather(texts, padded.to(device), group)
    return [
        text[:length].cpu().numpy().tobytes() for text, length in zip(texts, sizes, strict=True)
    ]


def _tensor_of(data: bytes) -> torch.Tensor:
    """The bytes as a tensor, also if there are none, which `torch.frombuffer` refuses."""
    return torch.from_numpy(np.frombuffer(bytearray(data), np.uint8))


def _gather(out: list[torch.Tensor], mine: torch.Tensor, group: dist.ProcessGroup | None) -> None:
    work = dist.all_gather(out, mine, group=group, async_op=True)
    if work is not None:  # this rank is in the group
        keep(work).wait()


def gather_texts(text: str, group: dist.ProcessGroup | None = None) -> list[str]:
    """The text of every rank of a group, in rank order; see `gather_bytes`.

    Raises:
        ProtocolError: also for a text that is not UTF-8.
    """
    texts = []
    for rank, data in enumerate(gather_bytes(text.encode(), group)):
        try:
            texts.append(data.decode())
        except UnicodeDecodeError as error:
            raise ProtocolError(
                f"rank {rank} of the group sends a text that is not UTF-8 ({error}): see whether "
                "all ranks run the same script and versions"
            ) from error
    return texts


def gather_numbers(number: int, group: dist.ProcessGroup | None = None) -> list[int]:
    """The whole number of every rank of a group, in rank order; see `gather_texts`."""
    numbers = []
    for rank, text in enumerate(gather_texts(str(number), group)):
        if not re.fullmatch(r"-?[0-9]{1,18}", text):
            raise ProtocolError(
                f"rank {rank} of the group sends {text[:40]!r}; it must be a whole number: see "
                "whether all ranks run the same script and versions"
            )
        numbers.append(int(text))
    return numbers


def bytes_on_first(data: bytes, group: dist.ProcessGroup) -> list[torch.Tensor]:
    """The bytes of every rank of a group on its first rank, in rank order; every rank calls it.

    Args:
        data: of about the same size on all ranks; at most 16 times the first rank's, plus
            `MAX_GATHERED` bytes.
        group: of Gloo.

    Returns:
        A tensor of uint8 for each rank on the first rank; nothing on others.

    Raises:
        ProtocolError: a rank has more bytes; on all ranks.
    """
    sizes = gather_numbers(len(data), group)
    bound = 16 * sizes[0] + MAX_GATHERED
    for rank, size in enumerate(sizes):
        if not 0 <= size <= bound:
            raise ProtocolError(
                f"rank {rank} of the group sends {size} bytes; it must be in [0, {bound}]: see whether "
                "all ranks run the same script and versions"
            )
    mine = _tensor_of(data)
    if group.rank() > 0:
        dist.send(mine, group=group, group_dst=0)
        return []
    of_ranks = [mine, *(torch.empty(size, dtype=torch.uint8, device="cpu") for size in sizes[1:])]
    for rank, received in enumerate(of_ranks[1:], 1):
        dist.recv(received, group=group, group_src=rank)
    return of_ranks
