"""A state as bytes, without pickle: JSON, then arrays, then a checksum over both.

::

    magic (16 bytes) | length of the JSON (8 bytes, little-endian) | JSON | arrays ... | BLAKE2b-256

The JSON is ``{"plain": the state with null for arrays, "arrays": [[keys, dtype, shape], ...]}``.
Arrays are little-endian, in C order.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

import numpy as np

from gradcomp.errors import StateError

__all__ = ["pack_state", "unpack_state"]

_MAGIC = b"gradcomp state 2"
_HEAD = len(_MAGIC) + 8
_CHECKSUM = 32

_DTYPES = {
    np.dtype(name).newbyteorder("<").str
    for name in ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
}


def pack_state(state: Mapping[str, Any]) -> bytes:
    """A state as bytes; see `unpack_state`.

    Args:
        state: plain data, and mappings, at any level, with arrays of numbers or of bool.

    Raises:
        StateError: an array has another dtype, or other data are not plain.
    """
    found = list(_arrays_of(state, ()))
    for keys, array in found:
        if _dtype_of(array) not in _DTYPES:
            raise StateError(
                f"the array '{'/'.join(keys)}' is of {array.dtype}; it must be of bool, or of "
                "integer, floating or complex numbers"
            )
    arrays = [[keys, _dtype_of(array), array.shape] for keys, array in found]
    try:
        text = json.dumps({"plain": _plain(state), "arrays": arrays}).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise StateError(
            f"the state cannot be written ({error}); it must have texts, numbers, lists, mappings and "
            "arrays only"
        ) from error
    parts = [array.astype(_dtype_of(array), copy=False).tobytes() for _, array in found]
    body = b"".join([_MAGIC, len(text).to_bytes(8, "little"), text, *parts])
    return body + blake2b(body, digest_size=_CHECKSUM).digest()


def unpack_state(data: bytes) -> dict[str, Any]:
    """The inverse of `pack_state`.

    Raises:
        StateError: the bytes are damaged, or not a result of `pack_state`.
    """
    body, checksum = data[:-_CHECKSUM], data[-_CHECKSUM:]
    if not body.startswith(_MAGIC) or len(body) < _HEAD:
        raise StateError(
            f"{len(data)} bytes that begin with {data[: len(_MAGIC)]!r} are not a state of gradcomp; "
            f"one begins with {_MAGIC!r}: load a file that gradcomp has saved"
        )
    if blake2b(body, digest_size=_CHECKSUM).digest() != checksum:
        raise StateError(
            f"a state of {len(data)} bytes is damaged, as its checksum differs: load an earlier "
            "checkpoint"
        )
    end = _HEAD + int.from_bytes(body[len(_MAGIC) : _HEAD], "little")
    try:
        return _unpacked(json.loads(body[_HEAD:end]), body, end)
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
        RecursionError,
    ) as error:
        raise StateError(
            f"{len(data)} bytes are not a state of gradcomp ({error}): load a file that gradcomp has "
            "saved"
        ) from error


def _arrays_of(
    value: Mapping[str, Any], keys: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], np.ndarray[Any, Any]]]:
    for key, item in value.items():
        if isinstance(item, np.ndarray):
            yield (*keys, str(key)), item
        elif isinstance(item, Mapping):
            yield from _arrays_of(item, (*keys, str(key)))


def _plain(value: Any) -> Any:
    """A state with None instead of arrays."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return None if isinstance(value, np.ndarray) else value


def _dtype_of(array: np.ndarray[Any, Any]) -> str:
    name: str = array.dtype.newbyteorder("<").str
    return name


def _unpacked(head: Any, body: bytes, at: int) -> dict[str, Any]:
    state: dict[str, Any] = head["plain"]
    if not isinstance(state, dict):
        raise ValueError(f"the state is a {type(state).__name__}, not an object")
    for keys, dtype, shape in head["arrays"]:
        if dtype not in _DTYPES or not all(isinstance(n, int) and n >= 0 for n in shape):
            raise ValueError(f"an array is of dtype {dtype!r} and shape {shape!r}")
        *path, name = keys
        holder = state
        for key in path:
            holder = holder[key]
        if holder[name] is not None:
            raise ValueError(f"'{name}' is not an array")
        array = np.frombuffer(body, dtype, math.prod(shape), at)
        at += array.nbytes
        native = array.dtype.newbyteorder("=")
        holder[name] = array.astype(native).reshape(shape)
    if at != len(body):
        raise ValueError(f"{len(body) - at} bytes follow the last array")
    return state
