"""Gathers over BytePS, which has sums of tensors only: each worker fills its own row."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Any

import byteps.torch as bps
import byteps.torch.ops as ops
import torch

from gradcomp.adapter_api import read_object
from gradcomp.errors import ConfigError, ProtocolError

__all__ = ["TIMEOUT", "WORKER", "gather", "gather_values"]

WORKER = "worker"
"""BytePS' word for a rank, in messages."""

TIMEOUT = "GRADCOMP_BYTEPS_TIMEOUT"
"""Environment variable: seconds that a worker waits in a comparison for the other workers."""

DEFAULT_SECONDS = 600.0
MAX_GATHERED = 2**24
_POLL_SECONDS = 0.0005
_ROOM = 4096  # a name of BytePS keeps its size for ever, so rows are this times a power of two


def gather(data: bytes, purpose: str, most: int = MAX_GATHERED) -> list[bytes]:
    """Return the bytes of every worker, in the order of ranks. All workers must call it.

    Args:
        data: at most ``most`` bytes.
        purpose: what all workers must do at this time, for the error message.
        most: largest size of one worker's bytes.

    Raises:
        ProtocolError: the other workers did not come within the time limit, or one sends an
            impossible size.
    """
    if bps.size() == 1:
        return [data]
    # Servers answer pulls from memory that the next push of a name overwrites. That next push
    # follows a sum under another name, to which workers come only after their pull.
    lengths = torch.zeros(bps.size(), dtype=torch.int64, device="cpu")
    lengths[bps.rank()] = len(data)
    _sum(lengths, "gradcomp.gather.lengths", purpose)
    longest = int(lengths.max())
    if longest > most or int(lengths.min()) < 0:
        raise ProtocolError(
            f"workers send texts of {lengths.tolist()} bytes; each must be in [0, {most}]: "
            "see whether all workers run the same script and versions"
        )
    room = _ROOM
    while room < longest:
        room *= 2
    table = torch.zeros(bps.size(), room, dtype=torch.uint8, device="cpu")
    if data:
        table[bps.rank(), : len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    _sum(table, f"gradcomp.gather.{room}", purpose)
    return [
        row[:length].numpy().tobytes() for row, length in zip(table, lengths.tolist(), strict=True)
    ]


def gather_values(values: Mapping[str, Any], purpose: str) -> list[dict[str, Any]]:
    """Return every worker's values by name, for JSON, in the order of ranks; see `gather`."""
    texts = gather(json.dumps(values).encode(), purpose)
    return [read_object(text, rank, WORKER) for rank, text in enumerate(texts)]


def _sum(tensor: torch.Tensor, name: str, purpose: str) -> None:
    """Sum a tensor over all workers, in place."""
    limit = _seconds()
    deadline = time.monotonic() + limit
    handle = ops.push_pull_async_inplace(tensor, average=False, name=name)
    while not ops.poll(handle):
        if time.monotonic() > deadline:
            raise ProtocolError(
                f"worker {bps.rank()} waited {limit:g} s ({TIMEOUT}) for the others, and at least "
                f"one of the {bps.size()} workers did not come: all must {purpose}"
            )
        time.sleep(_POLL_SECONDS)
    ops.synchronize(handle)


def _seconds() -> float:
    text = os.environ.get(TIMEOUT, str(DEFAULT_SECONDS))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise ConfigError(f"{TIMEOUT} is '{text}'; it must be a number of seconds above 0")
    return seconds
