"""A state as bytes, without pickle: JSON, then arrays of float32, then a checksum over both.

::

    magic (16 bytes) | length of the JSON (8 bytes, little-endian) | JSON | float32 ... | BLAKE2b-256
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import numpy as np

from gradcomp.codec.arrays import FloatArray
from gradcomp.errors import StateError

__all__ = ["pack_state", "unpack_state"]

_MAGIC = b"gradcomp state 1"
_HEAD = len(_MAGIC) + 8
_CHECKSUM = 32


def pack_state(state: Mapping[str, Any]) -> bytes:
    """A state of plain data and mappings of float32 arrays as bytes; see `unpack_state`."""
    plain: dict[str, Any] = {}
    arrays: dict[str, dict[str, int]] = {}
    parts: list[bytes] = []
    for key, value in state.items():
        if isinstance(value, Mapping) and any(
            isinstance(one, np.ndarray) for one in value.values()
        ):
            arrays[key] = {name: array.size for name, array in value.items()}
            parts += [array.astype("<f4", copy=False).tobytes() for array in value.values()]
        else:
            plain[key] = value
    text = json.dumps({"order": list(state), "plain": plain, "arrays": arrays}).encode()
    body = b"".join([_MAGIC, len(text).to_bytes(8, "little"), text, *parts])
    return body + blake2b(body, digest_size=_CHECKSUM).digest()


def unpack_state(data: bytes) -> dict[str, Any]:
    """The inverse of `pack_state`.

    Raises:
        StateError: the bytes are damaged or no result of `pack_state`.
    """
    body, checksum = data[:-_CHECKSUM], data[-_CHECKSUM:]
    if not body.startswith(_MAGIC) or len(body) < _HEAD:
        raise StateError(
            f"{len(data)} bytes that begin with {data[: len(_MAGIC)]!r} are no compressor state; one "
            f"begins with {_MAGIC!r}: load a file that gradcomp has saved"
        )
    if blake2b(body, digest_size=_CHECKSUM).digest() != checksum:
        raise StateError(
            f"a compressor state of {len(data)} bytes is damaged, as its checksum differs: load an "
            "earlier checkpoint"
        )
    end = _HEAD + int.from_bytes(body[len(_MAGIC) : _HEAD], "little")
    try:
        return _unpacked(json.loads(body[_HEAD:end]), np.frombuffer(body[end:], "<f4"))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StateError(
            f"{len(data)} bytes are no compressor state ({error}): load a file that gradcomp has saved"
        ) from error


def _unpacked(head: Any, values: FloatArray) -> dict[str, Any]:
    at = 0
    found: dict[str, Any] = head["plain"]
    for key, sizes in head["arrays"].items():
        found[key] = {}
        for name, size in sizes.items():
            found[key][name] = values[at : at + size].astype(np.float32)
            at += size
    return {key: found[key] for key in head["order"]}
