"""Messages that end with a mark of their exchange.

Without it, a message shorter than its receiver's buffer would count as received, with memory of
this process behind its end.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import torch

from gradcomp.adapter_api import ByteArray
from gradcomp.errors import ProtocolError

__all__ = ["buffer_for", "opened", "tagged"]

_MARK_BYTES = 8


def tagged(data: ByteArray, exchange: str) -> torch.Tensor:
    """The message of ``data`` in an exchange; both ends know its name."""
    return torch.from_numpy(np.concatenate([data, _mark(exchange)]))


def buffer_for(nbytes: int) -> torch.Tensor:
    """Memory for a message of ``nbytes`` of data."""
    return torch.empty(nbytes + _MARK_BYTES, dtype=torch.uint8, device="cpu")


def opened(message: torch.Tensor, exchange: str, sender: int) -> ByteArray:
    """The data of a received message: a view of its memory.

    Args:
        message: the whole of `buffer_for`.
        exchange: as in `tagged`.
        sender: its rank in the job, for the error.

    Raises:
        ProtocolError: the message is shorter than its buffer, or of another exchange.
    """
    received: ByteArray = message.numpy()
    data, mark = received[:-_MARK_BYTES], received[-_MARK_BYTES:]
    if not np.array_equal(mark, _mark(exchange)):
        raise ProtocolError(
            f"{exchange}: rank {sender} sent a damaged message: it is shorter than "
            f"{data.nbytes} bytes, or belongs to another exchange: see whether all ranks run the "
            "same script and versions, and have loaded the same step"
        )
    return data


def _mark(exchange: str) -> ByteArray:
    return np.frombuffer(blake2b(exchange.encode(), digest_size=_MARK_BYTES).digest(), np.uint8)
