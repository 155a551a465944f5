"""Polar codes for study: channel codes, and the lossy compression of bits by Korada and Urbanke.

With lossy compression the roles are swapped: the channel decoder compresses, and the channel
encoder decompresses. docs/polar.md explains how, and why it works.

Indices are natural: of the transform's input and output. Decisions are made in bit-reversed order.
Arrays may have any leading dimensions; each row of the last dimension is a block, and blocks are
shared among the threads of the core. The same arguments give the same results at any number of
threads; a machine whose ``exp`` rounds differently may decide a tie differently.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from numbers import Real
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from gradcomp import _core
from gradcomp.errors import WireError

__all__ = [
    "PolarCode",
    "PolarLossy",
    "PolarLossyArray",
    "bit_reversal",
    "distortion_rate",
    "polar_transform",
    "rate_distortion",
]

BitArray: TypeAlias = npt.NDArray[np.uint8]
DoubleArray: TypeAlias = npt.NDArray[np.float64]
Construction: TypeAlias = Literal["bec", "bhattacharyya", "ga", "mc"]

_ARRAY_TYPES = ("int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "float32")


def polar_transform(bits: npt.ArrayLike) -> BitArray:
    """The polar transform of each row of ``bits``: x = u G over GF(2), its own inverse.

    G is the n-th Kronecker power of [[1, 0], [1, 1]] (Arikan, "Channel Polarization", IEEE Trans.
    Inf. Theory 55(7), 2009, section VII, without the permutation B_N).

    Args:
        bits: [..., N] of 0 and 1, uint8 or bool; N is a power of two up to 1048576.
    """
    array = _bits("bits", bits)
    size = _power_of_two("the last dimension", array.shape[-1] if array.ndim else 0)
    rows = np.array(array, order="C")
    _core.polar_transform(rows, size.bit_length() - 1)
    return rows


def bit_reversal(N: int) -> npt.NDArray[np.int64]:
    """The bit-reversal permutation of N indices, a power of two: the order of decisions."""
    size = _power_of_two("N", _integer("N", N))
    reversal = np.zeros(1, np.int64)
    while reversal.size < size:
        reversal = np.concatenate([2 * reversal, 2 * reversal + 1])
    return reversal


def rate_distortion(distortion: float) -> float:
    """Bits per bit that any compressor of fair coin flips needs: 1 - h(D) for D in [0, 0.5].

    D is the Hamming distortion, the fraction of bits that come back wrong, and h the binary
    entropy (Cover, Thomas, "Elements of Information Theory", theorem 10.3.1).
    """
    if not 0 <= distortion <= 0.5:
        raise ValueError(
            f"distortion is {distortion}; it must be from 0 to 0.5, as wrong bits can be flipped"
        )
    return 1 + sum(p * math.log2(p) for p in (distortion, 1 - distortion) if p > 0)


def distortion_rate(rate: float) -> float:
    """The least Hamming distortion at ``rate`` in [0, 1]: the inverse of rate_distortion."""
    if not 0 <= rate <= 1:
        raise ValueError(f"rate is {rate}; it must be from 0 to 1, in bits per source bit")
    if rate in (0, 1):
        return 0.5 * (1 - rate)
    low, high = 0.0, 0.5
    while low < (middle := (low + high) / 2) < high:
        if rate_distortion(middle) > rate:
            low = middle
        else:
            high = middle
    return high


class PolarCode:
    """A polar code of N code bits and K message bits.

    Other lengths than powers of two shorten the code of the next power of two by bit reversal
    (BRS): the positions decided last are frozen, so they are 0 in every codeword and left out.

    Args:
        N: length, from 1 to 1048576.
        K: message bits, from 0 to N. The rate is K/N.
        construction: rule that chooses the K positions:
            ``"bec"``: erasure probabilities z -> 2z - z^2, z^2 from 1 - K/N on, in 63-bit fixed
            point, so alike on every machine. Ties: the later decision is better.
            ``"bhattacharyya"``: the same recursion as a bound for the AWGN channel, on ln z from
            -Es/N0 on. Ties: the lower index is better.
            ``"ga"``: Gaussian approximation (Chung, Richardson, Urbanke 2001; Trifonov 2012).
            ``"mc"``: Monte Carlo, the mean error probability of each decision given the ones
            before it (Arikan 2009, section IX).
        design_snr_db: Eb/N0 in dB, from -50 to 50; Es/N0 is K/N of it. ``"bec"`` ignores it.
        seed: seed of ``"mc"``, from 0 to 2^64 - 1.
        trials: words transmitted by ``"mc"``, from 1 to 1000000. Time is proportional to it.

    Deviation: ``"bhattacharyya"`` treats shortened positions as transmitted, as in the public code
    whose sets it reproduces; the others treat them as known.

    Attributes:
        N, K, construction, design_snr_db, rate: as above.
        mother_N: length of the code before shortening, a power of two.
        information: K indices below mother_N, ascending: message bit i is input information[i].
        frozen: the other indices; the most reliable first, shortened ones last.
        kept: N indices below mother_N, ascending: code bit i is output kept[i].
        info_mask: [mother_N], 1 at information positions.
        reliability: [mother_N], for each input: the erasure probability, ln z, the mean LLR
            (certainty is 1e30) or the error probability.

    Raises:
        ValueError: an argument is out of its range.
        TypeError: an argument has another type.
        MemoryError: memory runs out.
    """

    def __init__(
        self,
        N: int,
        K: int,
        construction: Construction = "bec",
        design_snr_db: float = 5.0,
        *,
        seed: int = 0,
        trials: int = 1000,
    ) -> None:
        self.N = _integer("N", N)
        self.K = _integer("K", K)
        self.construction = construction
        self.design_snr_db = _number("design_snr_db", design_snr_db)
        if not isinstance(construction, str):
            raise TypeError(
                f"construction is {construction!r}; it must be 'bec', 'bhattacharyya', 'ga' or 'mc'"
            )
        self._core = _core.PolarCode(
            self.N,
            self.K,
            construction,
            self.design_snr_db,
            _seed(seed),
            min(_integer("trials", trials), 2**32 - 1),
        )
        self.mother_N = self._core.mother
        self.rate = self.K / self.N
        self.information = self._core.information.astype(np.int64)
        self.frozen = self._core.frozen.astype(np.int64)
        self.kept = self._core.kept.astype(np.int64)
        self.reliability = self._core.reliability
        self.info_mask = np.zeros(self.mother_N, np.uint8)
        self.info_mask[self.information] = 1

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.N}, {self.K}, {self.construction!r}, "
            f"{self.design_snr_db})"
        )

    def encode(self, message: npt.ArrayLike, *, systematic: bool = False) -> BitArray:
        """Codewords [..., N] of messages [..., K], both of 0 and 1.

        Args:
            message: uint8 or bool.
            systematic: the codeword holds the message itself, as the outputs at ``information``
                (Arikan, "Systematic Polar Coding", IEEE Commun. Lett. 15(8), 2011).
        """
        array = _bits("message", message)
        rows, lead = _rows("message", array, self.K, "K")
        return self._core.encode(rows, systematic).reshape(*lead, self.N)

    def decode(
        self,
        llr: npt.ArrayLike,
        *,
        list_size: int = 1,
        systematic: bool = False,
        min_sum: bool = False,
    ) -> BitArray:
        """Messages [..., K] for the log-likelihood ratios [..., N] of received code bits.

        Args:
            llr: ln P(0)/P(1) of each code bit, float32 or float64: positive for a probable 0, 0 for
                an unknown bit; not NaN. Values beyond +-1e30, infinity included, are clipped.
            list_size: 1: successive cancellation (SC); 2 to 64: the most probable path of a list
                decoder with as many paths (SCL).
            systematic: the encoder was systematic.
            min_sum: approximate the check-node rule by signs and the smaller magnitude; faster.
        """
        rows, lead = self._llr_rows(llr)
        if _integer("list_size", list_size) == 1:
            messages, _ = self._core.decode(rows, systematic, min_sum)
        else:
            found, _ = self._core.list_decode(rows, list_size, systematic, min_sum)
            messages = found[:, 0]
        return messages.reshape(*lead, self.K)

    def decode_list(
        self,
        llr: npt.ArrayLike,
        list_size: int,
        *,
        systematic: bool = False,
        min_sum: bool = False,
    ) -> tuple[BitArray, DoubleArray]:
        """All messages of the list, best first, and their path metrics.

        Returns:
            Messages [..., L, K] and metrics [..., L], ascending, with L = min(list_size, 2^K). A
            metric is -ln of the probability of the decisions, given ``llr``.
        """
        rows, lead = self._llr_rows(llr)
        found, metrics = self._core.list_decode(
            rows, _integer("list_size", list_size), systematic, min_sum
        )
        return found.reshape(*lead, *found.shape[1:]), metrics.reshape(*lead, metrics.shape[1])

    def _llr_rows(self, llr: npt.ArrayLike) -> tuple[DoubleArray, tuple[int, ...]]:
        array = np.asarray(llr)
        if array.dtype not in (np.float32, np.float64):
            raise TypeError(
                f"llr has dtype {array.dtype}; it must be float32 or float64: use astype"
            )
        rows, lead = _rows("llr", array.astype(np.float64, copy=False), self.N, "N")
        return rows, lead


class PolarLossy:
    """Lossy compression of N bits to K: Korada and Urbanke (2010).

    ``compress`` decodes the source by successive cancellation, as a codeword received over a noisy
    channel, and keeps the K information bits; ``decompress`` encodes them. Frozen bits are 0
    instead of random bits known to both ends: equivalent for fair coin flips.

    Args:
        N: source bits in a block, from 1 to 1048576; longer blocks lose less.
        K: compressed bits, from 0 to N.
        construction, design_snr_db, seed, trials: as for PolarCode.
        channel: the channel that the decoder assumes.
            ``"bsc"``: the output of a binary symmetric channel that flips bits with probability D,
            where 1 - h(D) = K/N: the test channel of rate-distortion theory.
            ``"snr"``: LLRs of +-2 Es/N0 of the design SNR, for the known shortened positions, too;
            as Kamu1403/Polarcode-Gradient-Compression does.
        min_sum: approximate the check-node rule; faster, with slightly more distortion.

    Attributes:
        code: the PolarCode. N, K, rate and channel: as above.
        llr: magnitude of the LLR of a source bit.

    Raises: as PolarCode.
    """

    def __init__(
        self,
        N: int,
        K: int,
        construction: Construction = "bec",
        design_snr_db: float = 5.0,
        *,
        channel: Literal["bsc", "snr"] = "bsc",
        min_sum: bool = False,
        seed: int = 0,
        trials: int = 1000,
    ) -> None:
        self.code = PolarCode(N, K, construction, design_snr_db, seed=seed, trials=trials)
        self.N, self.K, self.rate = self.code.N, self.code.K, self.code.rate
        self.channel = channel
        self.min_sum = bool(min_sum)
        if channel == "bsc":
            flipped = distortion_rate(self.rate)
            self.llr = math.log1p(-flipped) - math.log(flipped) if flipped > 0 else math.inf
            shortened = math.inf
        elif channel == "snr":
            self.llr = 2 * 10 ** (self.code.design_snr_db / 10) * self.rate
            shortened = self.llr
        else:
            raise ValueError(f"channel is {channel!r}; it must be 'bsc' or 'snr'")
        self._llrs = min(self.llr, 1e30), min(shortened, 1e30)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.N}, {self.K}, {self.code.construction!r}, "
            f"{self.code.design_snr_db}, channel={self.channel!r}, min_sum={self.min_sum})"
        )

    def compress(
        self,
        bits: npt.ArrayLike,
        *,
        rounding: Literal["deterministic", "random"] = "deterministic",
        list_size: int = 1,
        seed: int = 0,
        uniforms: npt.ArrayLike | None = None,
    ) -> BitArray:
        """The compressed bits [..., K] of source bits [..., N], both of 0 and 1.

        Args:
            bits: uint8 or bool.
            rounding: ``"deterministic"``: a bit is 1 if its LLR L is negative. ``"random"``: with
                probability 1/(1 + e^L), as in the proof of Korada and Urbanke; at practical lengths
                its distortion is larger.
            list_size: number of paths, up to 64; the path with the fewest wrong bits is kept.
                More than 1 needs deterministic rounding and channel ``"bsc"``.
            seed: seed of random rounding, from 0 to 2^64 - 1; rows draw different numbers.
            uniforms: [..., K] numbers in [0, 1] in order of decision, in place of drawn ones, to
                replay an experiment.
        """
        rows, lead = _rows("bits", _bits("bits", bits), self.N, "N")
        if rounding not in ("deterministic", "random"):
            raise ValueError(f"rounding is {rounding!r}; it must be 'deterministic' or 'random'")
        if _integer("list_size", list_size) != 1:
            return self._compress_with_list(rows, list_size, rounding).reshape(*lead, self.K)
        draws: DoubleArray | None = None
        if uniforms is not None:
            if rounding != "random":
                raise ValueError("uniforms are given; rounding must then be 'random'")
            draws = np.ascontiguousarray(uniforms, np.float64)
            if draws.shape != (*lead, self.K):
                raise ValueError(
                    f"uniforms have shape {draws.shape}; it must be {(*lead, self.K)}, one for "
                    "each compressed bit"
                )
            if not ((draws >= 0) & (draws <= 1)).all():
                raise ValueError("uniforms hold a number outside of [0, 1], or NaN")
        messages, _ = self.code._core.compress(
            rows,
            *self._llrs,
            self.min_sum,
            _seed(seed) if rounding == "random" else None,
            draws,
        )
        return messages.reshape(*lead, self.K)

    def _compress_with_list(self, rows: BitArray, list_size: int, rounding: str) -> BitArray:
        if rounding != "deterministic" or self.channel != "bsc":
            raise ValueError(
                f"list_size is {list_size}; with rounding {rounding!r} and channel "
                f"{self.channel!r} it must be 1: use 'deterministic' and 'bsc' for lists"
            )
        if rows.size and rows.max() > 1:
            raise ValueError(f"bits holds {rows.max()}; bits must be 0 or 1, one to a byte")
        # A path's metric grows with the number of wrong bits, so the first path has the fewest.
        llr = np.where(rows == 0, self._llrs[0], -self._llrs[0])
        found, _ = self.code._core.list_decode(llr, list_size, False, self.min_sum)
        return found[:, 0]

    def decompress(self, message: npt.ArrayLike) -> BitArray:
        """The reconstruction [..., N] of compressed bits [..., K]: exact integer arithmetic."""
        return self.code.encode(message)

    def distortion(self, bits: npt.ArrayLike, **options: Any) -> float:
        """The fraction of bits that come back wrong; ``options`` go to compress."""
        source = _bits("bits", bits)
        if source.size == 0:
            raise ValueError("bits is empty; give at least one block")
        return float(np.mean(self.decompress(self.compress(source, **options)) != source))


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
        self.numel = _integer("numel", numel)
        if self.numel < 1:
            raise ValueError("numel is 0; it must be at least 1")
        self.dtype = np.dtype(dtype)
        if self.dtype.name not in _ARRAY_TYPES:
            raise TypeError(f"dtype is {self.dtype}; it must be one of {', '.join(_ARRAY_TYPES)}")
        self.rates = tuple(_number("a rate", rate) for rate in rates)
        width = 8 * self.dtype.itemsize
        if not self.rates or width % len(self.rates):
            raise ValueError(
                f"there are {len(self.rates)} rates; their number must divide the {width} bits of "
                f"{self.dtype}: use 1, 2, 4, ... or {width}"
            )
        for rate in self.rates:
            if not 0 <= rate <= 1:
                raise ValueError(f"a rate is {rate}; it must be from 0 to 1, in bits per bit")
        self.scale = scale if scale is None else _number("scale", scale)
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
                seed=_core.derive_stream(_seed(seed), 0, index),
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


def _integer(name: str, value: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}; it must be an integer: use int()") from None
    if not 0 <= number < 2**63:
        raise ValueError(f"{name} is {number}; it must not be negative, nor 2^63 or more")
    return number


def _seed(value: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"seed is {value!r}; it must be an integer: use int()") from None
    if not 0 <= number < 2**64:
        raise ValueError(f"seed is {number}; it must be from 0 to 2^64 - 1")
    return number


def _number(name: str, value: object) -> float:
    if not isinstance(value, Real):
        raise TypeError(f"{name} is {value!r}; it must be a number: use float()")
    return float(value)


def _power_of_two(name: str, size: int) -> int:
    if size < 1 or size & (size - 1) or size > _core.POLAR_MAX_LENGTH:
        raise ValueError(
            f"{name} is {size}; it must be a power of two from 1 to {_core.POLAR_MAX_LENGTH}: "
            "PolarCode shortens for other lengths"
        )
    return size


def _bits(name: str, bits: npt.ArrayLike) -> BitArray:
    array = np.asarray(bits)
    if array.dtype == np.bool_:
        return array.view(np.uint8)
    if array.dtype != np.uint8:
        raise TypeError(
            f"{name} has dtype {array.dtype}; bits must be uint8 or bool: use astype(numpy.uint8)"
        )
    return array


def _rows(
    name: str, array: npt.NDArray[Any], width: int, meaning: str
) -> tuple[npt.NDArray[Any], tuple[int, ...]]:
    """``array`` as [rows, width], and its leading dimensions."""
    if array.ndim == 0 or array.shape[-1] != width:
        raise ValueError(
            f"{name} has shape {array.shape}; its last dimension must be {meaning} = {width}"
        )
    lead = array.shape[:-1]
    return np.ascontiguousarray(array).reshape(math.prod(lead), width), lead
