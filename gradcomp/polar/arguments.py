"""Types of arguments, and checks. They raise TypeError or ValueError, which name the argument."""

from __future__ import annotations

import math
import operator
from numbers import Real
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from gradcomp import _core

__all__ = [
    "BitArray",
    "Construction",
    "DoubleArray",
    "bits_of",
    "integer",
    "number",
    "power_of_two",
    "rows_of",
    "seed_of",
]

BitArray: TypeAlias = npt.NDArray[np.uint8]
DoubleArray: TypeAlias = npt.NDArray[np.float64]
Construction: TypeAlias = Literal["bec", "bhattacharyya", "ga", "mc"]


def integer(name: str, value: int) -> int:
    """``value`` as an int in [0, 2^63)."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}; it must be an integer: use int()") from None
    if not 0 <= number < 2**63:
        raise ValueError(f"{name} is {number}; it must not be negative, nor 2^63 or more")
    return number


def seed_of(value: int) -> int:
    """``value`` as an int in [0, 2^64)."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"seed is {value!r}; it must be an integer: use int()") from None
    if not 0 <= number < 2**64:
        raise ValueError(f"seed is {number}; it must be from 0 to 2^64 - 1")
    return number


def number(name: str, value: object) -> float:
    """``value``, a real number, as a float."""
    if not isinstance(value, Real):
        raise TypeError(f"{name} is {value!r}; it must be a number: use float()")
    return float(value)


def power_of_two(name: str, size: int) -> int:
    """``size``, a power of two up to the largest length of a transform."""
    if size < 1 or size & (size - 1) or size > _core.POLAR_MAX_LENGTH:
        raise ValueError(
            f"{name} is {size}; it must be a power of two from 1 to {_core.POLAR_MAX_LENGTH}: "
            "PolarCode shortens for other lengths"
        )
    return size


def bits_of(name: str, bits: npt.ArrayLike) -> BitArray:
    """``bits``, of uint8 or bool, as uint8; whether they are 0 or 1 is checked later."""
    array = np.asarray(bits)
    if array.dtype == np.bool_:
        return array.view(np.uint8)
    if array.dtype != np.uint8:
        raise TypeError(
            f"{name} has dtype {array.dtype}; bits must be uint8 or bool: use astype(numpy.uint8)"
        )
    return array


def rows_of(
    name: str, array: npt.NDArray[Any], width: int, meaning: str
) -> tuple[npt.NDArray[Any], tuple[int, ...]]:
    """``array`` as [rows, width], and its leading dimensions."""
    if array.ndim == 0 or array.shape[-1] != width:
        raise ValueError(
            f"{name} has shape {array.shape}; its last dimension must be {meaning} = {width}"
        )
    lead = array.shape[:-1]
    return np.ascontiguousarray(array).reshape(math.prod(lead), width), lead
