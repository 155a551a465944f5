"""Lossy compression of the bits of numbers with polar codes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gradcomp import _core
from gradcomp.errors import WireError
from gradcomp.polar.arguments import BitArray, Construction, integer, number, seed_of
from gradcomp.polar.lossy import PolarLossy

__all__ = ["PolarLossyArray"]

_ARRAY_TYPES = ("int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "float32")


class PolarLossyArray:
    """Lossy compression of the bits of numbers, with a rate for each part of a number.

    The bits of every element are split into ``len(rates)`` parts of equal width, lowest bits first;
    one PolarLossy block holds one part of all elements. One rate is the pipeline of
    Kamu1403/Polarcode-Gradient-Compression, two are its unequal rates for low and high bits, and
    one per bit are bit planes. The error of a wrong bit is its weight, so high bits need a rate of
    1; quantizing numbers as numbers is better.

    Args:
        numel: elements, at least 1; with the bits of a part, at most 1048576 bits to a block.
        dtype: type of the compressed numbers: int8, int16, int32, uint8, uint16, uint32, float16
            or float32. Integers in two's complement, floats by their IEEE 754 bits.
        rates: compressed bits per bit in [0, 1] for each part, lowest bits first. Their number
            divides the bits of ``dtype``. A block of n bits is compressed to round(rate n).
        scale: with an integer ``dtype``, arrays of floats are compressed as trunc(scale x),
            saturated, and come back divided by it, as float32. None: arrays have the dtype itself.
        construction, design_snr_db, channel, min_sum: as for PolarLossy.

    Attributes:
        parts: the PolarLossy of each part, lowest bits first.
        payload_bytes: size of the result of compress.

    Raises: as PolarCode.
    """

    def __init__(
        self,
        numel: int,
        dtype: npt.DTypeLike = "int16",
        rates: Sequence[float] = (0.25, 0.75),
        *,
        scale: float | None = None,
        construction: Construction = "bec",
        design_snr_db: float = 5.0,
        channel: Literal["bsc", "snr"] = "bsc",
        min_sum: bool = False,
    ) -> None:
        self.numel = integer("numel", numel)
        if self.numel < 1:
            raise ValueError("numel is 0; it must be at least 1")
        self.dtype = np.dtype(dtype)
        if self.dtype.name not in _ARRAY_TYPES:
            raise TypeError(f"dtype is {self.dtype}; it must be one of {', '.join(_ARRAY_TYPES)}")
        self.rates = tuple(number("a rate", rate) for rate in rates)
        width = 8 * self.dtype.itemsize
        if not self.rates or width % len(self.rates):
            raise ValueError(
                f"there are {len(self.rates)} rates; their number must divide the {width} bits of "
                f"{self.dtype}: use 1, 2, 4, ... or {width}"
            )
        for rate in self.rates:
            if not 0 <= rate <= 1:
                raise ValueError(f"a rate is {rate}; it must be from 0 to 1, in bits per bit")
        self.scale = scale if scale is None else number("scale", scale)
        if self.scale is not None:
            if self.dtype.kind == "f":
                raise ValueError(f"scale is given for {self.dtype}; it needs an integer dtype")
            if not 0 < self.scale < math.inf:
                raise ValueError(f"scale is {scale}; it must be positive and finite, such as 1e5")
        block = self.numel * width // len(self.rates)
        self.parts = [
            PolarLossy(
                block,
                round(rate * block),
                construction,
                design_snr_db,
                channel=channel,
                min_sum=min_sum,
            )
            for rate in self.rates
        ]
        self.payload_bytes = (sum(part.K for part in self.parts) + 7) // 8

    def compress(
        self,
        x: npt.ArrayLike,
        *,
        rounding: Literal["deterministic", "random"] = "deterministic",
        seed: int = 0,
        uniforms: Sequence[npt.ArrayLike] | None = None,
    ) -> BitArray:
        """The payload of ``numel`` numbers: all compressed bits, lowest part and bit first.

        Args:
            x: an array of ``dtype``, or of floats with ``scale``; NaN cannot be scaled.
            rounding, seed: as for PolarLossy; parts draw different numbers.
            uniforms: for each part, as for PolarLossy.
        """
        array = np.asarray(x)
        if array.size != self.numel:
            raise ValueError(f"x has {array.size} elements; it must have numel = {self.numel}")
        draws = [None] * len(self.parts) if uniforms is None else uniforms
        if len(draws) != len(self.parts):
            raise ValueError(f"uniforms are for {len(draws)} parts; there are {len(self.parts)}")
        numbers = self._quantize(array.reshape(-1))
        bits = np.unpackbits(numbers.view(np.uint8), bitorder="little")
        parts = np.split(bits.reshape(self.numel, -1), len(self.parts), axis=1)
        messages = [
            part.compress(
                source.reshape(-1),
                rounding=rounding,
                seed=_core.derive_stream(seed_of(seed), 0, index),
                uniforms=draw,
            )
            for index, (part, source, draw) in enumerate(zip(self.parts, parts, draws, strict=True))
        ]
        return np.packbits(np.concatenate(messages), bitorder="little")

    def decompress(self, payload: npt.ArrayLike) -> npt.NDArray[Any]:
        """The numbers of a payload: flat, of ``dtype``, or float32 with ``scale``.

        Raises:
            WireError: the payload does not have ``payload_bytes`` bytes.
        """
        data = np.asarray(payload)
        if data.dtype != np.uint8 or data.ndim != 1:
            raise TypeError(
                f"the payload is an array of {data.ndim} dimensions of {data.dtype}; it must be "
                "flat uint8: see numpy.frombuffer"
            )
        if data.size != self.payload_bytes:
            raise WireError(
                f"the payload has {data.size} bytes; it must have {self.payload_bytes}, for "
                f"{self.numel} elements at rates {self.rates}"
            )
        bits = np.unpackbits(data, bitorder="little")
        columns, begin = [], 0
        for part in self.parts:
            columns.append(part.decompress(bits[begin : begin + part.K]).reshape(self.numel, -1))
            begin += part.K
        numbers = np.packbits(np.concatenate(columns, axis=1), axis=1, bitorder="little")
        found = numbers.reshape(-1).view(self.dtype)
        return found if self.scale is None else found.astype(np.float32) / np.float32(self.scale)

    def _quantize(self, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if self.scale is None:
            if x.dtype != self.dtype:
                raise TypeError(
                    f"x has dtype {x.dtype}; it must be {self.dtype}: use astype, or a scale"
                )
            return np.ascontiguousarray(x)
        if x.dtype.kind != "f":
            raise TypeError(f"x has dtype {x.dtype}; it must hold floats, as scale is given")
        if np.isnan(x).any():
            raise ValueError("x holds NaN, which has no integer; replace it, as with nan_to_num")
        limits = np.iinfo(self.dtype)
        with np.errstate(over="ignore"):  # Inf saturates
            scaled = np.trunc(x.astype(np.float32) * np.float32(self.scale)).astype(np.float64)
        clipped: npt.NDArray[Any] = scaled.clip(limits.min, limits.max)
        return clipped.astype(self.dtype)
