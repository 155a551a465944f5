"""Values between ranks as bytes: numbers, texts, containers and tensors. Reading them runs no code."""

from __future__ import annotations

import io
from typing import Any

import torch

from gradcomp.errors import ProtocolError

__all__ = ["check_length", "longest", "pack", "unpack"]

_ROOM = 2**24


def pack(value: Any) -> bytes:
    """The value as bytes."""
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def unpack(data: bytes, rank: int) -> Any:
    """The value that ``rank`` has packed.

    Raises:
        ProtocolError: the bytes are none of `pack`.
    """
    try:
        return torch.load(io.BytesIO(data), weights_only=True)
    except Exception as error:  # of many types, by the damage
        reason = str(error).partition("\n")[0]
        raise ProtocolError(
            f"rank {rank} sends a value that cannot be read ({reason}): see whether all ranks run "
            "the same script and versions"
        ) from error


def longest(own_length: int) -> int:
    """Largest size that another rank's value may have: ranks exchange values of about one size."""
    return 2 * own_length + _ROOM


def check_length(length: int, own_length: int, rank: int) -> None:
    """Refuse a length above the `longest` of this rank's ``own_length``.

    Raises:
        ProtocolError: ``length`` is out of range.
    """
    if not 0 <= length <= longest(own_length):
        raise ProtocolError(
            f"rank {rank} sends a value of {length} bytes; it must be in [0, {longest(own_length)}]: see "
            "whether all ranks run the same script and versions"
        )
