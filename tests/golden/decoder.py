"""A second decoder for docs/wire-format.md, written from that document alone.

It shares no code with gradcomp: it needs numpy, the standard library and, for the levels of eden,
scripts/golden/lloyd_max.py. It is the second opinion for everybody who implements the format, so it is
written to be read, not to be fast.

    decode(frame: bytes, spec: str) -> numpy.ndarray

`spec` is the canonical spec without a memory stage. Whatever the document forbids raises
FormatError, before anything of the size that the frame claims is allocated.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np

# The document defines the levels of eden by their optimality and names this script for the numbers,
# so it is a part of the document, and shares no code with gradcomp. tests/codecs/test_rotated.py
# checks it against the table that Max published.
from golden.lloyd_max import centroids

MAGIC = b"GCMP"
VERSION = 1
FLAG_CRC = 1
FLAG_STREAM = 2
MAX_NUMEL = 2**30 - 1
MASK32 = 0xFFFFFFFF
MASK64 = 0xFFFFFFFFFFFFFFFF


class FormatError(ValueError):
    """The frame breaks a rule of the document."""


# CRC-32C ----------------------------------------------------------------------------------------


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


CRC_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    crc = MASK32
    for byte in data:
        crc = (crc >> 8) ^ CRC_TABLE[(crc ^ byte) & 0xFF]
    return crc ^ MASK32


# Random streams ---------------------------------------------------------------------------------


def philox4x32(counters: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    """Ten rounds of Philox4x32 on each row (c0, c1, c2, c3) of `counters`."""
    c0, c1, c2, c3 = counters.astype(np.uint64).T
    k0, k1 = key
    mask, half = np.uint64(MASK32), np.uint64(32)
    for _ in range(10):
        product0 = np.uint64(0xD2511F53) * c0
        product2 = np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (
            (product2 >> half) ^ c1 ^ np.uint64(k0),
            product2 & mask,
            (product0 >> half) ^ c3 ^ np.uint64(k1),
            product0 & mask,
        )
        k0 = (k0 + 0x9E3779B9) & MASK32
        k1 = (k1 + 0xBB67AE85) & MASK32
    return np.stack([c0, c1, c2, c3], axis=1)


def _halves(number: int) -> tuple[int, int]:
    return number & MASK32, number >> 32 & MASK32


def stream_key(seed: int, step: int, tensor_id: int) -> int:
    counter = np.array([[*_halves(step), *_halves(tensor_id)]])
    block = philox4x32(counter, _halves(seed))[0]
    return int(block[0]) + (int(block[1]) << 32)


def draws(stream: int, count: int) -> list[int]:
    """The first `count` 64-bit draws of a stream."""
    blocks = (count + 1) // 2
    counters = np.zeros((blocks, 4), np.uint64)
    counters[:, 0] = np.arange(blocks, dtype=np.uint64) & np.uint64(MASK32)
    counters[:, 1] = np.arange(blocks, dtype=np.uint64) >> np.uint64(32)
    words = philox4x32(counters, _halves(stream))
    numbers = words[:, 0::2] + (words[:, 1::2] << np.uint64(32))
    return [int(number) for number in numbers.reshape(-1)[:count]]


def random_words(stream: int, first: int, count: int) -> np.ndarray:
    """Random words `first` (a multiple of 4) to `first + count - 1`."""
    blocks = np.arange(first // 4, (first + count + 3) // 4, dtype=np.uint64)
    counters = np.zeros((blocks.size, 4), np.uint64)
    counters[:, 0] = blocks & np.uint64(MASK32)
    counters[:, 1] = blocks >> np.uint64(32)
    counters[:, 2] = 1
    return philox4x32(counters, _halves(stream)).reshape(-1)[:count]


# Specs ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spec:
    """A canonical spec, `[rotate|]codec[|coder]`, taken apart."""

    name: str
    params: dict[str, str]
    rotated: bool = False
    coder: str | None = None

    @classmethod
    def read(cls, text: str) -> Spec:
        rotated = text.startswith("rotate|")
        codec, _, coder = text.removeprefix("rotate|").partition("|")
        name, _, rest = codec.partition("(")
        if name not in PAYLOADS:
            raise ValueError(f"no codec {name!r}; known: {', '.join(PAYLOADS)}")
        pairs = rest.removesuffix(")").split(",") if rest else []
        params = dict(pair.split("=", 1) for pair in pairs)
        rotated = rotated or (
            name in ("polar_b", "polar_ec", "polar") and params["unbiased"] == "true"
        )
        return cls(name, params, rotated, coder or None)

    def kept(self, n: int) -> int:
        """The kept count k."""
        if n == 0:
            return 0
        if "k" in self.params:
            return min(int(self.params["k"]), n)
        return min(max(math.floor(float(self.params["ratio"]) * n + 0.5), 1), n)


# Streams of bits --------------------------------------------------------------------------------


class Bits:
    """A stream of bits, the least significant of each byte first."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.used = 0

    def get(self, count: int) -> int:
        end = self.used + count
        if end > 8 * len(self.data):
            raise FormatError("a stream of bits ends too early")
        number = int.from_bytes(self.data[self.used // 8 : (end + 7) // 8], "little")
        number = number >> self.used % 8 & ((1 << count) - 1)
        self.used = end
        return number

    def unary(self) -> int:
        """The number of ones before a zero."""
        ones = 0
        while self.get(1):
            ones += 1
        return ones

    def elias_delta(self) -> int:
        ones = self.unary()
        if ones > 3:
            raise FormatError("an Elias delta code beyond the largest number")
        n = (1 << ones | self.get(ones)) - 1
        return 1 << n | self.get(n)

    def pad(self) -> int:
        """Read the rest of a byte; returns the number of bytes read so far."""
        if self.get(-self.used % 8):
            raise FormatError("padding bits are not 0")
        return self.used // 8

    def finish(self) -> None:
        if self.pad() != len(self.data):
            raise FormatError("bytes follow a stream of bits")


# Index coding -----------------------------------------------------------------------------------


def read_raw32(data: bytes, count: int, units: int) -> list[int]:
    _require_length(data, 4 * count)
    return np.frombuffer(data, "<u4").tolist()


def read_bitmask(data: bytes, count: int, units: int) -> list[int]:
    _require_length(data, (units + 7) // 8)
    return np.flatnonzero(_bits(data, units)).tolist()


def read_elias_fano(data: bytes, count: int, units: int) -> list[int]:
    low = 0 if units <= count or count == 0 else (units // count).bit_length() - 1
    split = (count * low + 7) // 8
    lower, upper = Bits(data[:split]), Bits(data[split:])
    indices, high = [], 0
    for _ in range(count):
        high += upper.unary()
        indices.append(high << low | lower.get(low))
    lower.finish()
    upper.finish()
    return indices


def read_rice(data: bytes, count: int, units: int) -> list[int]:
    bits = Bits(data)
    indices, index, r = [], -1, 0
    for i in range(count):
        if i % 512 == 0:
            r = bits.get(5)
        index += (bits.unary() << r | bits.get(r)) + 1
        indices.append(index)
    bits.finish()
    return indices


INDEX_CODINGS = {
    "raw32": read_raw32,
    "bitmask": read_bitmask,
    "elias_fano": read_elias_fano,
    "rice": read_rice,
}


# Value types ------------------------------------------------------------------------------------

VALUE_TYPES = ("fp32", "fp16", "bf16", "int8", "sign", "means", "2bit")


def value_bytes(kind: str, count: int) -> int:
    head = {"int8": 4, "sign": 4, "means": 8, "2bit": 16}.get(kind, 0)
    bits = {"fp32": 32, "fp16": 16, "bf16": 16, "int8": 8, "sign": 1, "means": 1, "2bit": 2}[kind]
    return head + (count * bits + 7) // 8


def read_values(data: bytes, kind: str, count: int) -> np.ndarray:
    _require_length(data, value_bytes(kind, count))
    if kind == "fp32":
        return np.frombuffer(data, "<f4")
    if kind == "fp16":
        return from_binary16(data)
    if kind == "bf16":
        return from_bfloat16(data)
    if kind == "means":
        low, high = np.frombuffer(data, "<f4", 2)
        below = np.unpackbits(np.frombuffer(data, np.uint8, offset=8), bitorder="little")
        return np.where(below[:count], low, high)
    if kind == "2bit":
        packed = np.frombuffer(data, np.uint8, offset=16)
        bins = (packed[:, None] >> np.arange(0, 8, 2) & 3).ravel()[:count]
        return np.frombuffer(data, "<f4", 4)[bins]
    (shared,) = np.frombuffer(data, "<f4", 1)
    if kind == "int8":
        return shared * np.frombuffer(data, np.int8, count, offset=4).astype(np.float32)
    signs = np.unpackbits(np.frombuffer(data, np.uint8, offset=4), bitorder="little")
    return np.where(signs[:count], -shared, shared)


def from_binary16(data: bytes) -> np.ndarray:
    half = np.frombuffer(data, "<u2").astype(np.uint32)
    sign = (half & 0x8000) << 16
    exponent = half >> 10 & 0x1F
    fraction = half & 0x3FF
    # Zero and denormals are multiples of 2^-24, which float32 holds as normal numbers.
    small = (fraction.astype(np.float32) * np.float32(2.0**-24)).view(np.uint32)
    normal = (exponent + (127 - 15)) << 23 | fraction << 13
    special = np.uint32(0xFF) << 23 | fraction << 13
    quiet = np.where(fraction != 0, np.uint32(1 << 22), np.uint32(0))
    bits = np.where(exponent == 0, small, np.where(exponent == 31, special | quiet, normal))
    return (sign | bits).astype(np.uint32).view(np.float32)


def from_bfloat16(data: bytes) -> np.ndarray:
    return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)


# Level coding -----------------------------------------------------------------------------------

LEVEL_CHUNK = 65536


def read_levels(data: bytes, coder: str | None, width: int, n: int) -> np.ndarray:
    """n symbols below 2^width."""
    if coder is None:
        return read_packed(data, width, n)
    read = {"rans": read_rans, "elias_delta": read_elias_delta}[coder]
    parts, at = [np.empty(0, np.int64)], 0
    for begin in range(0, n, LEVEL_CHUNK):
        count = min(LEVEL_CHUNK, n - begin)
        if at + 4 > len(data):
            raise FormatError("the levels end before their last chunk")
        length, mode = int.from_bytes(data[at : at + 3], "little"), data[at + 3]
        body = data[at + 4 : at + 4 + length]
        _require_length(body, length)
        at += 4 + length
        if mode == 0:
            parts.append(read_packed(body, width, count))
        elif mode == 1 and length < (count * width + 7) // 8:
            parts.append(read(body, width, count))
        else:
            raise FormatError(f"a chunk of mode {mode}, or coded and not shorter")
    if at != len(data):
        raise FormatError("bytes follow the last chunk of levels")
    return np.concatenate(parts)


def read_packed(data: bytes, width: int, n: int) -> np.ndarray:
    _require_length(data, (n * width + 7) // 8)
    return _bits(data, n * width).reshape(n, width) @ (1 << np.arange(width))


def read_elias_delta(data: bytes, width: int, n: int) -> np.ndarray:
    bits = Bits(data)
    symbols = np.array([bits.elias_delta() - 1 for _ in range(n)], np.int64)
    bits.finish()
    if np.any(symbols >= 1 << width):
        raise FormatError("a symbol beyond the last")
    return symbols


def read_frequencies(table: Bits, width: int) -> list[int]:
    frequencies = [0] * (table.get(width) + 1)
    for z in range(len(frequencies)):
        frequencies[z] = table.elias_delta() - 1
    if sum(frequencies) != 2**14 or frequencies[-1] == 0:
        raise FormatError("frequencies with another sum than 2^14, or with a last one of 0")
    return frequencies


def read_rans(data: bytes, width: int, n: int) -> np.ndarray:
    table = Bits(data)
    frequencies = read_frequencies(table, width)
    return read_rans_states(data[table.pad() :], frequencies, n)


def read_rans_states(data: bytes, frequencies: list[int], n: int) -> np.ndarray:
    symbol_at = np.repeat(np.arange(len(frequencies)), frequencies).tolist()
    starts = np.cumsum([0, *frequencies]).tolist()
    differ = 2**28 - sum(f * f for f in frequencies)
    lanes = 4 if n * differ < 2**43 else 32
    if len(data) < 4 * lanes or len(data) % 2 != 0:
        raise FormatError("the states are cut short, or the words are")
    states = np.frombuffer(data, "<u4", lanes, len(data) - 4 * lanes).tolist()
    if not all(2**15 <= state < 2**31 for state in states):
        raise FormatError("a state out of range")
    words = np.frombuffer(data, "<u2", len(data) // 2 - 2 * lanes).tolist()
    symbols = np.zeros(n, np.int64)
    for begin in range(0, n, lanes):
        for i in reversed(range(begin, min(begin + lanes, n))):
            state = states[i % lanes]
            t = state % 2**14
            symbol = symbol_at[t]
            symbols[i] = symbol
            state = frequencies[symbol] * (state >> 14) + t - starts[symbol]
            if state < 2**15:
                if not words:
                    raise FormatError("more words are needed than there are")
                state = state << 16 | words.pop()
            states[i % lanes] = state
    if words or states != [2**15] * lanes:
        raise FormatError("words are left, or a state is not where the encoder began")
    return symbols


def read_digits(data: bytes, n: int) -> tuple[np.ndarray, bytes]:
    """A chunk of n numbers, and the bytes after it."""
    if len(data) < 4:
        raise FormatError("a chunk of digits without a header")
    header = int.from_bytes(data[:4], "little")
    size, width = header & 0xFFFFFF, header >> 24
    if width not in (2, 4, 8):
        raise FormatError(f"digits of {width} bits")
    each = 8 // width
    count = -(-n // each)
    body, rest = data[4 : 4 + size], data[4 + size :]
    if size > count or len(body) < size:
        raise FormatError(f"{count} symbols, and {size} bytes of {len(body)}")
    if size == count:
        symbols = np.frombuffer(body, np.uint8).astype(np.int64)
    else:
        table = Bits(body)
        digits = read_frequencies(table, width)
        symbols = read_rans_states(body[table.pad() :], symbol_frequencies(digits, width), count)
    numbers = symbols[:, None] >> width * np.arange(each) & (2**width - 1)
    return numbers.ravel()[:n], rest


def symbol_frequencies(digits: list[int], width: int) -> list[int]:
    each = 8 // width
    if each == 1:
        return digits
    of = digits + [0] * (2**width - len(digits))
    shift = 14 * (each - 1)
    first = []
    for symbol in range(256):
        product = math.prod(of[symbol >> width * i & (2**width - 1)] for i in range(each))
        first.append(max(1, (product + 2 ** (shift - 1)) >> shift) if product else 0)
    kinds = sum(f > 0 for f in first)
    share, whole = 2**14 - kinds, sum(first) - kinds
    frequencies = [1 + (f - 1) * share // whole if f else 0 for f in first]
    frequencies[first.index(max(first))] += 2**14 - sum(frequencies)
    return frequencies


# Rotation ---------------------------------------------------------------------------------------


def hadamard(x: np.ndarray, stride: int = 1) -> np.ndarray:
    while stride < x.size:
        pairs = x.reshape(-1, 2, stride)
        x = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).ravel()
        stride *= 2
    return x


class Rotation:
    """The borders of the blocks and groups of n elements, and the rotation of a block."""

    def __init__(self, n: int, stream: int) -> None:
        self.stream = stream
        self.k = min(12, max(n, 1).bit_length() - 1)
        self.p = 1 << self.k
        self.factor = np.float32(2.0 ** (-self.k / 2))
        self.blocks = [(begin, begin + self.p) for begin in range(0, n - self.p + 1, self.p)]
        self.groups = list(self.blocks)
        if n % self.p:
            self.blocks.append((n - self.p, n))
            self.groups[-1] = (self.groups[-1][0], n - self.p)
            self.groups.append((n - self.p, n))

    def signs(self, block: int) -> np.ndarray:
        words = random_words(self.stream, 2**40 + 128 * block, (self.p + 31) // 32)
        bits = np.unpackbits(words.astype("<u4").view(np.uint8), bitorder="little")[: self.p]
        return np.where(bits, np.float32(-1), np.float32(1))

    def forward(self, x: np.ndarray) -> np.ndarray:
        y = x.copy()
        for block, (begin, end) in enumerate(self.blocks):
            y[begin:end] = hadamard(self.factor * self.signs(block) * y[begin:end])
        return y

    def inverse(self, y: np.ndarray) -> np.ndarray:
        x = y.copy()
        for block, (begin, end) in reversed(list(enumerate(self.blocks))):
            x[begin:end] = self.factor * self.signs(block) * hadamard(x[begin:end])
        return x


# Payloads ---------------------------------------------------------------------------------------


def _require_length(payload: bytes, length: int) -> None:
    if len(payload) != length:
        raise FormatError(f"{len(payload)} bytes; there must be {length}")


def read_identity(payload: bytes, n: int, spec: Spec, stream: int) -> np.ndarray:
    _require_length(payload, 4 * n)
    return np.frombuffer(payload, "<f4")


def read_fp16(payload: bytes, n: int, spec: Spec, stream: int) -> np.ndarray:
    _require_length(payload, 2 * n)
    return from_binary16(payload)


def read_bf16(payload: bytes, n: int, spec: Spec, stream: int) -> np.ndarray:
    _require_length(payload, 2 * n)
    return from_bfloat16(payload)


def read_u16(payload: bytes, at: int) -> int:
    if at + 2 > len(payload):
        raise FormatError("a number is cut short")
    return int.from_bytes(payload[at : at + 2], "little")


def read_lossless(payload: bytes, n: int, spec: Spec, stream: int) -> np.ndarray:
    parts, at = [np.empty(0, np.float32)], 0
    for begin in range(0, n, LEVEL_CHUNK):
        count = min(LEVEL_CHUNK, n - begin)
        if at == len(payload):
            raise FormatError("a chunk is missing")
        forms, at = payload[at], at + 1
        planes = np.zeros((4, count), np.uint32)
        sent = np.ones(count, bool)  # elements with bytes in the next plane
        for p in range(4):
            form = forms >> 2 * p & 3
            if form == 3:
                if p != 0:
                    raise FormatError(f"plane {p} of form 3")
                kept, at = read_u16(payload, at), at + 2
            size = np.count_nonzero(sent)
            if form >= 2:
                length, at = read_u16(payload, at), at + 2
            else:
                length = size if form == 1 else 0
            body, at = payload[at : at + length], at + length
            _require_length(body, length)
            if form == 1:
                planes[p, sent] = np.frombuffer(body, np.uint8)
            elif form >= 2:
                planes[p, sent] = read_rans(body, 8, size)
            if form == 3:
                sent = planes[0] != 0
                if not 0 < kept < count or kept != np.count_nonzero(sent):
                    raise FormatError(f"{kept} elements are not 0")
        exponent, upper, middle, lower = planes
        bits = upper >> 7 << 31 | exponent << 23 | (upper & 127) << 16 | middle << 8 | lower
        parts.append(bits.astype(np.uint32).view(np.float32))
    _require_length(payload, at)
    return np.concatenate(parts)


def read_sparse(
    payload: bytes, n: int, spec: Spec, least: int, most: int, unit: int = 1
) -> np.ndarray:
    """A sparse payload that keeps `least` to `most` units."""
    units = -(-n // unit)
    if len(payload) < 8:
        raise FormatError("less than the header of a sparse payload")
    count, coding_number, type_number, shortfall = struct.unpack_from("<IBBH", payload)
    if not least <= count <= most:
        raise FormatError(f"count is {count}; it must be {least} to {most}")
    coding = dict(enumerate(INDEX_CODINGS)).get(coding_number)
    if coding is None or spec.coder not in (None, coding):
        raise FormatError(f"index coding {coding_number}")
    kind = spec.params.get("values", "means")  # adaq has no other
    if type_number != VALUE_TYPES.index(kind):
        raise FormatError(f"value type {type_number}; {kind} is another")
    tail = value_bytes(kind, count * unit - shortfall)
    split = len(payload) - tail
    if split < 8 or shortfall > count * unit:
        raise FormatError("the values are cut short")
    indices = np.array(INDEX_CODINGS[coding](payload[8:split], count, units), np.int64)
    if indices.size != count:
        raise FormatError(f"{indices.size} indices; count is {count}")
    if np.any(indices >= units) or np.any(np.diff(indices) <= 0):
        raise FormatError("indices not strictly ascending, or beyond the last unit")
    short = units * unit - n if count and indices[-1] == units - 1 else 0
    if shortfall != short:
        raise FormatError(f"shortfall {shortfall}; it is {short}")
    elements = (indices[:, None] * unit + np.arange(unit)).ravel()
    elements = elements[elements < n]
    return _scatter(elements, read_values(payload[split:], kind, elements.size), n)


def read_topk(payload: bytes, n: int, spec: Spec, stream: int) -> np.ndarray:
    return read_sparse(payload, n, spec, spec.kept(n), spec.kept(n))


def sampled_counts(n: int, spec: Spec) -> tuple[int, int]:
    """The smallest and the largest count of sampled_topk."""
    k = spec.kept(n)
    sample_ratio = float(spec.params["sample_ratio"])
    if k == 0 or sample_ratio == 1 or n <= -(-2 * n // k):
        return k, k
    s = max(math.ceil(n * sample_ratio), -(-2 * n // k))
    stride = 32 * -(-n // (32 * s)) + 1
    while n // stride < s:
        stride -= 8
    t = -(-(n // stride * k) // n) if spec.params.get("strided_sample") != "false" else 1
    return (min(k, t) if spec.params["resample"] == "true" else 0), k


def read_sampled_topk(payload: bytes, n: int, spec: Spec, stream: int) -> np.ndarray:
    return read_sparse(payload, n, spec, *sampled_counts(n, spec))


def read_threshold(payload: bytes, n: int, spec: Spec, stream: int) -> np.ndarray:
    return read_sparse(payload, n, spec, 0, n)


def read_chunktopk(payload: bytes, n: int, spec: Spec, stream: int) -> np.ndarray:
    chunk = int(spec.params["chunk"])
    k = spec.kept(-(-n // chunk))
    return read_sparse(payload, n, spec, k, k, chunk)


@cache
def gap_frequencies(k: int) -> list[int]:
    """Frequencies of the symbols of gaps, for k kept elements of 4096."""
    of_symbol = [0.0] * 80
    p = k / 4096
    for g in range(4096 - k + 1):
        of_symbol[gap_symbol(g)[0]] += p
        p = p * (4096 - k - g) / (4095 - g) if g < 4095 else 0.0
    return scaled_counts([1 + int(2**30 * part) for part in of_symbol])


def gap_symbol(g: int) -> tuple[int, int]:
    """The symbol of a gap, and the number of its lower bits."""
    b = max(g.bit_length() - 1 - 3, 0)
    return 8 * b + (g >> b), b


def scaled_counts(counts: list[int]) -> list[int]:
    """The rule for encoders of level coding: frequencies from counts above 0."""
    total = sum(counts)
    f = [max(1, (c * 2**14 + total // 2) // total) for c in counts]
    while sum(f) > 2**14:
        _, least = min((Fraction(c, 2 * f[z] - 1), z) for z, c in enumerate(counts) if f[z] > 1)
        f[least] -= 1
    while sum(f) < 2**14:
        _, most = min((-Fraction(c, 2 * f[z] + 1), z) for z, c in enumerate(counts))
        f[most] += 1
    return f


def read_gaps(data: bytes, count: int, k: int) -> list[int]:
    if count == 0:
        _require_length(data, 0)
        return []
    if len(data) < 4:
        raise FormatError("gaps without a length")
    length = int.from_bytes(data[:4], "little")
    if 4 + length > len(data):
        raise FormatError("symbols are cut short")
    symbols = read_rans_states(data[4 : 4 + length], gap_frequencies(k), count).tolist()
    lower = Bits(data[4 + length :])
    gaps = []
    for z in symbols:
        b = max(z // 8 - 1, 0)
        gaps.append((z - 8 * b << b) + lower.get(b))
    lower.finish()
    return gaps


def read_blocktopk(payload: bytes, n: int, spec: Spec, stream: int) -> np.ndarray:
    if len(payload) < 4:
        raise FormatError("less than the header")
    cols = int.from_bytes(payload[:4], "little")
    if n == 0:
        if cols != 0:
            raise FormatError(f"rows of {cols} elements in an empty tensor")
    elif cols == 0 or n % cols != 0:
        raise FormatError(f"rows of {cols} elements; {n} elements are no such matrix")
    k = int(spec.params["k"])
    tiles = []  # the elements of each, in tile order
    if n > 0:
        numbers = np.arange(n).reshape(-1, cols)
        rows = len(numbers)
        h = min(rows, 64)
        w = min(cols, 4096 // h)
        h = min(rows, 4096 // w)
        tiles = [
            numbers[y : y + h, x : x + w].ravel()
            for y in range(0, rows, h)
            for x in range(0, cols, w)
        ]
    counts = [max(1, (tile.size * k + 2048) // 4096) for tile in tiles]
    total = sum(counts)
    split = 4 + value_bytes(spec.params["values"], total)
    if split > len(payload):
        raise FormatError("the values are cut short")
    values = read_values(payload[4:split], spec.params["values"], total)
    places: list[np.ndarray] = []
    if spec.coder in (None, "auto"):
        gaps = np.array(read_gaps(payload[split:], total, k), np.int64)
        ends = np.cumsum(counts)
        for end, count in zip(ends, counts, strict=True):
            places.append(np.cumsum(gaps[end - count : end] + 1) - 1)
    else:
        ordered = np.array(INDEX_CODINGS[spec.coder](payload[split:], total, n), np.int64)
        if ordered.size != total or np.any(np.diff(ordered) <= 0):
            raise FormatError("places are missing, or not strictly ascending")
        begin = first = 0
        for tile, count in zip(tiles, counts, strict=True):
            places.append(ordered[first : first + count] - begin)
            begin, first = begin + tile.size, first + count
    elements = [np.empty(0, np.int64)]
    for tile, own in zip(tiles, places, strict=True):
        if np.any(own < 0) or np.any(own >= tile.size):
            raise FormatError("a kept element outside of its tile")
        elements.append(tile[own])
    return _scatter(np.concatenate(elements), values, n)


def randomk_indices(n: int, k: int, stream: int) -> np.ndarray:
    """The kept indices, ascending: one of each part of a ring."""
    if k == 0:
        return np.empty(0, np.int64)
    step = -(-(n << 32) // k)
    *of_parts, turn = draws(stream, k + 1)
    bits = 64
    if step <= 4096 << 32:
        bits = 32
        of_parts = [word for draw in of_parts for word in (draw & MASK32, draw >> 32)]
    begins = [i * step >> 32 for i in range(k + 1)]
    places = [
        begin + (draw * (end - begin) >> bits)
        for begin, end, draw in zip(begins, begins[1:], of_parts, strict=False)
    ]
    return np.sort((np.array(places) + (turn * n >> 64)) % n)


def read_randomk(payload: bytes, n: int, spec: Spec, stream: int) -> np.ndarray:
    k = spec.kept(n)
    values = read_values(payload, spec.params["values"], k)
    return _scatter(randomk_indices(n, k, stream), values, n)


def read_randomblock(payload: bytes, n: int, spec: Spec, stream: int) -> np.ndarray:
    k = spec.kept(n)
    values = read_values(payload, spec.params["values"], k)
    start = draws(stream, 1)[0] * n >> 64
    return _scatter(np.sort((start + np.arange(k)) % max(n, 1)), values, n)


def _scatter(indices: np.ndarray, values: np.ndarray, n: int) -> np.ndarray:
    dense = np.zeros(n, np.float32)
    dense[indices] = values
    return dense


def _bits(data: bytes, n: int) -> np.ndarray:
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    if bits[n:].any():
        raise FormatError("a bit beyond the last element is not 0")
    return bits[:n].astype(bool)


def read_sign(payload: bytes, n: int, spec: Spec, stream: int) -> np.ndarray:
    _require_length(payload, 4 + (n + 7) // 8)
    (scale,) = np.frombuffer(payload, "<f4", 1)
    return np.where(_bits(payload[4:], n), -scale, scale)


def read_onebit(payload: bytes, n: int, spec: Spec, stream: int) -> np.ndarray:
    _require_length(payload, 8 + (n + 7) // 8)
    low, high = np.frombuffer(payload, "<f4", 2)
    return np.where(_bits(payload[8:], n), low, high)


def read_terngrad(payload: bytes, n: int, spec: Spec, stream: int) -> np.ndarray:
    _require_length(payload, 4 + (n + 4) // 5)
    (scale,) = np.frombuffer(payload, "<f4", 1)
    data = np.frombuffer(payload, np.uint8, offset=4)
    if np.any(data > 242):
        raise FormatError("a byte above 242")
    digits = np.zeros(n, np.uint8)
    for begin in range(0, n, 1280):
        m = min(n - begin, 1280)
        block = data[begin // 5 : begin // 5 + (m + 4) // 5]
        of_block = np.concatenate([block // 3**k % 3 for k in range(5)])
        if of_block[m:].any():
            raise FormatError("a digit beyond the last element is not 0")
        digits[begin : begin + m] = of_block[:m]
    return np.array([0, 1, -1], np.float32)[digits] * scale


def read_natural(payload: bytes, n: int, spec: Spec, stream: int) -> np.ndarray:
    _require_length(payload, n)
    codes = np.frombuffer(payload, np.uint8)
    powers = np.ldexp(np.float32(1), (codes & 0x7F).astype(np.int32) - 109)
    values = np.where(codes & 0x80, -powers, powers).astype(np.float32)
    return np.where(codes & 0x7F, values, np.where(codes == 0x80, np.float32(np.nan), 0))


def _buckets(payload: bytes, n: int, bucket: int, bits: int) -> list[tuple[np.float32, np.ndarray]]:
    """The scale and the bytes of every bucket."""
    sizes = [min(n - begin, bucket) for begin in range(0, n, bucket)]
    lengths = [(size * bits + 7) // 8 for size in sizes]
    _require_length(payload, sum(lengths) + 4 * len(sizes))
    found, at = [], 0
    for length in lengths:
        (scale,) = np.frombuffer(payload, "<f4", 1, offset=at)
        found.append((scale, np.frombuffer(payload, np.uint8, length, offset=at + 4)))
        at += 4 + length
    return found


def read_int8(payload: bytes, n: int, spec: Spec, stream: int) -> np.ndarray:
    parts = [np.empty(0, np.float32)]
    for scale, data in _buckets(payload, n, int(spec.params["bucket"]), 8):
        if np.any(data == 0x80):
            raise FormatError("a level of -128")
        parts.append(scale * data.view(np.int8).astype(np.float32))
    return np.concatenate(parts)


def read_int4(payload: bytes, n: int, spec: Spec, stream: int) -> np.ndarray:
    bucket = int(spec.params["bucket"])
    parts = [np.empty(0, np.float32)]
    for index, (scale, data) in enumerate(_buckets(payload, n, bucket, 4)):
        halves = np.stack([data & 0xF, data >> 4], axis=1).ravel()
        m = min(n - index * bucket, bucket)
        if np.any(halves[:m] == 8) or halves[m:].any():
            raise FormatError("a level of -8, or one beyond the bucket's last")
        levels = halves[:m].astype(np.int8)
        parts.append(scale * np.where(levels > 7, levels - 16, levels).astype(np.float32))
    return np.concatenate(parts)


def fp8_value(code: int, exponent_bits: int) -> float:
    """The value of a byte of fp8."""
    fraction_bits = 7 - exponent_bits
    bias = 2 ** (exponent_bits - 1) - 1
    exponent = (code & 0x7F) >> fraction_bits
    fraction = (code % 2**fraction_bits) / 2**fraction_bits
    sign = -1.0 if code & 0x80 else 1.0
    if exponent == 0:
        return sign * fraction * 2.0 ** (1 - bias)
    return sign * (1 + fraction) * 2.0 ** (exponent - bias)


def read_fp8(payload: bytes, n: int, spec: Spec, stream: int) -> np.ndarray:
    exponent_bits, last = {"e4m3": (4, 0x7E), "e5m2": (5, 0x7B)}[spec.params["format"]]
    values = np.array([fp8_value(code, exponent_bits) for code in range(256)]).astype(np.float32)
    parts = [np.empty(0, np.float32)]
    for scale, data in _buckets(payload, n, int(spec.params["bucket"]), 8):
        if np.any(data & 0x7F > last):
            raise FormatError("a byte beyond the largest value")
        parts.append(scale * values[data])
    return np.concatenate(parts)


def dynamic_values() -> np.ndarray:
    """The 256 values of blockwise8."""
    values = np.zeros(256)
    values[255] = 1
    for i in range(7):
        for j in range(2**i):
            value = (2 ** (i + 1) + 9 * (2 * j + 1)) / (10 ** (7 - i) * 2 ** (i + 1))
            values[127 + 2**i + j], values[127 - 2**i - j] = value, -value
    return values.astype(np.float32)


def read_blockwise8(payload: bytes, n: int, spec: Spec, stream: int) -> np.ndarray:
    values = dynamic_values()
    parts = [np.empty(0, np.float32)]
    parts += [values[data] * scale for scale, data in _buckets(payload, n, 4096, 8)]
    return np.concatenate(parts)


def unzigzag(symbols: np.ndarray) -> np.ndarray:
    return np.where(symbols % 2 == 1, -(symbols + 1) // 2, symbols // 2)


def read_wide_levels(data: bytes, coder: str | None, width: int, n: int) -> np.ndarray:
    """Symbols of up to 17 bits."""
    if width <= 8:
        return read_levels(data, coder, width, n)
    lower = width - 8
    split = len(data) - (n * lower + 7) // 8
    if split < 0:
        raise FormatError("the lower bits are cut short")
    upper = read_levels(data[:split], coder, 8, n).astype(np.int64)
    return upper << lower | read_packed(data[split:], lower, n)


def read_norms_and_levels(
    payload: bytes, n: int, spec: Spec, values: Callable[[np.ndarray, np.ndarray, int], np.ndarray]
) -> np.ndarray:
    """Decode levels of a bucket's norm; `values(norms, v, s)` are the elements."""
    bucket, s = int(spec.params["bucket"]), int(spec.params["levels"])
    head = 4 * -(-n // bucket)
    norms = np.frombuffer(payload[:head], "<f4") if len(payload) >= head else None
    if norms is None:
        raise FormatError("the norms are cut short")
    bits = norms.view(np.uint32)
    if np.any((bits > 0x7F7FFFF8) & (bits != 0x7FC00000)):
        raise FormatError("a norm that is negative, beyond the largest, or another NaN")
    symbols = read_wide_levels(payload[head:], spec.coder, (2 * s).bit_length(), n)
    if np.any(symbols > 2 * s):
        raise FormatError("a symbol beyond the last level")
    return values(norms[np.arange(n) // bucket], unzigzag(symbols), s)


def linear_values(norms: np.ndarray, v: np.ndarray, s: int) -> np.ndarray:
    return norms / np.float32(s) * v.astype(np.float32)


def natural_values(norms: np.ndarray, v: np.ndarray, s: int) -> np.ndarray:
    return norms * (np.sign(v) * 2.0 ** (np.abs(v) - float(s))).astype(np.float32)


def read_qsgd(payload: bytes, n: int, spec: Spec, stream: int) -> np.ndarray:
    return read_norms_and_levels(payload, n, spec, linear_values)


def read_dither(payload: bytes, n: int, spec: Spec, stream: int) -> np.ndarray:
    natural = spec.params["partition"] == "natural"
    return read_norms_and_levels(payload, n, spec, natural_values if natural else linear_values)


def read_scales_and_levels(
    payload: bytes, n: int, spec: Spec, v: np.ndarray, groups: list[tuple[int, int]]
) -> tuple[np.ndarray, np.ndarray]:
    """The scale of every group, and all elements before they are rotated back."""
    head = 4 * len(groups)
    if len(payload) < head:
        raise FormatError("the scales are cut short")
    scales = np.frombuffer(payload[:head], "<f4")
    symbols = read_levels(payload[head:], spec.coder, len(v).bit_length() - 1, n)
    sizes = [end - begin for begin, end in groups]
    return scales, np.repeat(scales, sizes) * v[symbols]


def read_rotated(payload: bytes, n: int, spec: Spec, stream: int, v: np.ndarray) -> np.ndarray:
    rotation = Rotation(n, stream)
    scales, rotated = read_scales_and_levels(payload, n, spec, v, rotation.groups)
    return rotated_back(rotation, rotated, ~(np.abs(scales) <= 2.0**100))


def rotated_back(rotation: Rotation, rotated: np.ndarray, unusable: np.ndarray) -> np.ndarray:
    """The decoded elements; NaN where a group that reaches them has an unusable scale."""
    n = rotated.size
    decoded = rotation.inverse(rotated)
    if n % rotation.p and unusable[-2:].any():
        unusable[-2:] = True
    for group in np.flatnonzero(unusable):
        decoded[slice(*rotation.groups[group])] = np.uint32(0x7FC00000).view(np.float32)
    return decoded


def read_uniform(payload: bytes, n: int, spec: Spec, stream: int) -> np.ndarray:
    t = 2 ** int(spec.params["bits"]) - 1
    v = (2 * np.arange(t + 1) - t).astype(np.float32)
    if spec.rotated:
        return read_rotated(payload, n, spec, stream, v)
    groups = [(begin, min(begin + 512, n)) for begin in range(0, n, 512)]
    return read_scales_and_levels(payload, n, spec, v, groups)[1]


@cache
def eden_values(bits: int) -> np.ndarray:
    q = np.array(centroids(bits), np.float32)
    return np.concatenate([-q[::-1], q])


def read_eden(payload: bytes, n: int, spec: Spec, stream: int) -> np.ndarray:
    if n < 64:
        return read_identity(payload, n, spec, stream)
    bits = float(spec.params["bits"])
    if bits != int(bits):
        return read_mixed_eden(payload, n, spec, stream, bits)
    return read_rotated(payload, n, spec, stream, eden_values(int(bits)))


def chosen_of_group(share: float, begin: int, size: int, stream: int) -> np.ndarray:
    """Whether each element of a group is chosen."""
    m = max(1, math.floor(share * size + 0.5))
    words = random_words(stream, 2**42 + 4 * begin, m + 1)
    step = -(-(size << 32) // m)
    chosen = np.zeros(size, bool)
    for j in range(m):
        start, end = j * step >> 32, (j + 1) * step >> 32
        place = start + (int(words[j]) * (end - start) >> 32)
        chosen[(place + (int(words[m]) * size >> 32)) % size] = True
    return chosen


def read_mixed_eden(payload: bytes, n: int, spec: Spec, stream: int, bits: float) -> np.ndarray:
    w = int(bits)
    rotation = Rotation(n, stream)
    head = 4 * len(rotation.groups)
    if len(payload) < head:
        raise FormatError("the scales are cut short")
    scales, code = np.frombuffer(payload[:head], "<f4"), payload[head:]
    chosen = np.concatenate(
        [chosen_of_group(bits - w, begin, end - begin, stream) for begin, end in rotation.groups]
    )
    sizes = [end - begin for begin, end in rotation.groups]
    rotated = np.repeat(scales, sizes)
    if w == 0:
        rotated[~chosen] = 0
    else:
        size = int.from_bytes(code[:4], "little")
        if len(code) < 4 or size > len(code) - 4:
            raise FormatError("the code of the elements with fewer bits is cut short")
        others = read_levels(code[4 : 4 + size], spec.coder, w, int((~chosen).sum()))
        rotated[~chosen] *= eden_values(w)[others]
        code = code[4 + size :]
    rotated[chosen] *= eden_values(w + 1)[read_levels(code, spec.coder, w + 1, int(chosen.sum()))]
    return rotated_back(rotation, rotated, ~(np.abs(scales) <= 2.0**100))


def read_drive(payload: bytes, n: int, spec: Spec, stream: int) -> np.ndarray:
    if n < 64:
        return read_identity(payload, n, spec, stream)
    if spec.params.get("two_means") != "true":
        return read_rotated(payload, n, spec, stream, np.array([-1, 1], np.float32))
    rotation = Rotation(n, stream)
    head = 8 * len(rotation.groups)
    if len(payload) < head:
        raise FormatError("the scales are cut short")
    means = np.frombuffer(payload[:head], "<f4").reshape(-1, 2)
    symbols = read_levels(payload[head:], spec.coder, 1, n)
    sizes = [end - begin for begin, end in rotation.groups]
    rotated = means[np.repeat(np.arange(len(sizes)), sizes), symbols]
    return rotated_back(rotation, rotated, (~(np.abs(means) <= 2.0**100)).any(axis=1))


def read_adaq(payload: bytes, n: int, spec: Spec, stream: int) -> np.ndarray:
    return read_sparse(payload, n, spec, 0, min(n, spec.kept(n) + 1))


def read_inceptionn(payload: bytes, n: int, spec: Spec, stream: int) -> np.ndarray:
    if len(payload) < 2 * ((n + 7) // 8):
        raise FormatError("the tags are cut short")
    unit = np.float32(2.0 ** math.frexp(float(spec.params["error_bound"]))[1])
    parts, at = [np.empty(0, np.uint32)], 0
    for begin in range(0, n, 1024):
        m = min(n - begin, 1024)
        plane = (m + 7) // 8
        if len(payload) < at + 2 * plane:
            raise FormatError("the payload ends before the tags of a block")
        low = _bits(payload[at : at + plane], m)
        high = _bits(payload[at + plane : at + 2 * plane], m)
        at += 2 * plane
        block = np.zeros(m, np.uint32)
        for where, dtype, step in (
            (low & ~high, np.uint8, unit),
            (high & ~low, np.dtype("<u2"), np.float32(2.0**-15)),
            (low & high, np.dtype("<u4"), None),
        ):
            size = int(where.sum()) * np.dtype(dtype).itemsize
            if len(payload) < at + size:
                raise FormatError("the payload ends within a block")
            numbers = np.frombuffer(payload[at : at + size], dtype).astype(np.uint32)
            at += size
            if step is not None:
                top = 8 * np.dtype(dtype).itemsize - 1
                fixed = step * (numbers & ((1 << top) - 1)).astype(np.float32)
                numbers = fixed.view(np.uint32) | numbers >> top << 31
            block[where] = numbers
        parts.append(block)
    _require_length(payload, at)
    return np.concatenate(parts).view(np.float32)


def read_sketch(payload: bytes, n: int, spec: Spec, stream: int) -> np.ndarray:
    rows = int(spec.params["rows"])
    cols = max(32, math.floor(float(spec.params["ratio"]) * n / rows + 0.5))
    if n <= rows * cols:
        return read_identity(payload, n, spec, stream)
    _require_length(payload, 4 * rows * cols)
    cells = np.frombuffer(payload, "<f4")
    i, runs = np.arange(n), (n + 31) // 32
    estimates = []
    for row in range(rows):
        words = random_words(stream, row * 2**28, 2 * runs).reshape(-1, 2).astype(np.uint64)
        start = (words[:, 0] * np.uint64(cols) >> np.uint64(32)).astype(np.int64)
        cell = cells[row * cols + (start[i // 32] + i % 32) % cols]
        estimates.append(np.where(words[i // 32, 1] >> (i % 32).astype(np.uint64) & 1, -cell, cell))
    number = median(np.array(estimates))
    if spec.params["unbiased"] == "true":
        return number
    m = rows * cols
    partial = [0.0] * 16
    for j, cell in enumerate(cells.astype(np.float64).tolist()):
        partial[j % 16] += cell * cell
    for width in (8, 4, 2, 1):
        partial = [partial[j] + partial[j + width] for j in range(width)]
    t = math.nan
    if partial[0] == partial[0]:
        t = np.float32(min(3 * math.sqrt(partial[0] / m), float(np.finfo(np.float32).max)))
    of_rows = np.where(np.isnan(estimates), np.inf, estimates)
    heavy = ((of_rows >= t).all(axis=0) | (of_rows <= -t).all(axis=0)) & (rows > 1)
    return np.where(heavy, number, np.float32(m / (m + 1.5 * n)) * number)


def median(rows: np.ndarray) -> np.ndarray:
    """The middle of each column; -0 is below +0, and NaN above all numbers whatever its sign."""
    bits = rows.view(np.int32)
    keys = np.where(bits < 0, ~(bits & 0x7FFFFFFF), bits)
    keys = np.where(np.isnan(rows), 0x7FC00000, keys)
    middle = np.sort(keys, axis=0)[rows.shape[0] // 2].astype(np.int32)
    return np.where(middle < 0, ~middle | -0x80000000, middle).astype(np.int32).view(np.float32)


# Polar codes ------------------------------------------------------------------------------------


@cache
def free_inputs(m: int, erasure: int, length: int, count: int) -> np.ndarray:
    """A mask of the free inputs of a code's 2^m: the `count` ones with the least Z."""
    z = [erasure] * length + [2**31] * (2**m - length)
    half = len(z) // 2
    while half:
        for i in range(len(z)):
            if not i & half:
                both = z[i] * z[i + half] >> 31
                z[i], z[i + half] = z[i] + z[i + half] - both, both
        half //= 2
    order = sorted(range(len(z)), key=lambda i: (z[i], -i))
    free = np.zeros(len(z), bool)
    free[order[:count]] = True
    return free


def read_codeword(words: np.ndarray, free: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The codeword, and the remaining words."""
    m, count = len(free), int(free.sum())
    if count == 0:
        return np.zeros(m, np.uint64), words
    if count == m:
        return words[:m], words[m:]
    if count == 1 and free[-1] and m <= 256:
        return np.repeat(words[:1], m), words[1:]
    if count == m - 1 and not free[0] and m <= 64:
        return np.append(np.bitwise_xor.reduce(words[: m - 1]), words[: m - 1]), words[m - 1 :]
    left, words = read_codeword(words, free[: m // 2])
    right, words = read_codeword(words, free[m // 2 :])
    return np.append(left ^ right, right), words


def falling_powers(count: int) -> list[int]:
    return [1 << bit for bit in reversed(range(count.bit_length())) if count >> bit & 1]


def polar_code_rows(n: int, code: str) -> int:
    """The rows of a full block."""
    if code == "auto":
        return 16384 if n >= 2**20 else 4096 if n >= 2**18 else 1024
    return int(code)


def polar_blocks(n: int, code: str) -> list[int]:
    """The rows of all blocks, without the block of the elements beyond the last whole rotation block."""
    size = polar_code_rows(n, code)
    tiles = n // 4096 * 64
    return [size] * (tiles // size) + falling_powers(tiles % size)


def polar_cut(n: int, spec: Spec) -> list[int]:
    """The rows of all blocks."""
    blocks = polar_blocks(n, spec.params["n"])
    rest = -(-n // 64) - sum(blocks)
    return blocks + ([rest] if rest else [])


def polar_rotated_back(
    y: np.ndarray, blocks: list[int], scales: np.ndarray, n: int, spec: Spec, stream: int
) -> np.ndarray:
    """Undoes the rotations of the elements of all rows, of which there may be more than n."""
    if not spec.rotated:
        return y[:n]
    whole = sum(blocks) * 64 <= n - n % 4096
    unusable = []
    row = 0
    for index, (length, scale) in enumerate(zip(blocks, scales, strict=True)):
        part = slice(64 * row, 64 * (row + length))
        if spec.params.get("unbiased") == "true" and part.stop <= n - n % 4096:
            draws = random_words(stream, 2**41 + 2 * row, 2 * length).astype("<u4")
            flipped = np.unpackbits(draws.view(np.uint8), bitorder="little")
            factors = np.where(flipped, np.float32(-1 / 64), np.float32(1 / 64))
            tiles = [hadamard(tile) for tile in y[part].reshape(-1, 4096)]
            y[part] = hadamard(factors * np.concatenate(tiles), 4096)
        if not np.abs(scale) <= 2.0**100:
            unusable.append(part)
            # The rotation's last block covers both of the last two blocks.
            if not whole and index >= len(blocks) - 2:
                unusable.append(slice(64 * sum(blocks[: max(len(blocks) - 2, 0)]), None))
        row += length
    for part in unusable:
        y[part] = 0
    y = Rotation(n, stream).inverse(y[:n])
    for part in unusable:
        y[part] = np.uint32(0x7FC00000).view(np.float32)
    return y


def read_polar_b(payload: bytes, n: int, spec: Spec, stream: int) -> np.ndarray:
    if n < 64:
        return read_identity(payload, n, spec, stream)
    rate = float(spec.params["rate"])
    blocks = polar_cut(n, spec)
    rows = sum(blocks)
    head = 4 * len(blocks)
    total = max(len(blocks), math.floor((math.floor(rate * n / 8) - 36 - head) / 8))
    _require_length(payload, head + 8 * total)
    scales = np.frombuffer(payload, "<f4", len(blocks))
    words = np.frombuffer(payload, "<u8", total, head)
    erasure = math.floor((1 - rate) * 2**31 + 0.5)
    y = np.zeros(64 * rows, np.float32)
    row = before = 0
    for index, (length, scale) in enumerate(zip(blocks, scales, strict=True)):
        # Each block after this one needs a word.
        after = min(total * (row + length) // rows, total - (len(blocks) - index - 1))
        count, before = after - before, after
        free = free_inputs((length - 1).bit_length(), erasure, length, count)
        block = read_codeword(words, free)[0][:length]
        words = words[count:]
        block = block ^ random_words(stream, 2 * row, 2 * length).astype("<u4").view("<u8")
        negative = np.unpackbits(block.view(np.uint8), bitorder="little")
        y[64 * row : 64 * (row + length)] = np.where(negative, -scale, scale)
        row += length
    return polar_rotated_back(y, blocks, scales, n, spec, stream)


def read_polar_ec(payload: bytes, n: int, spec: Spec, stream: int) -> np.ndarray:
    if n < 64:
        return read_identity(payload, n, spec, stream)
    blocks = polar_cut(n, spec)
    rows = sum(blocks)
    head = 4 * len(blocks)
    total = 29 * rows // 64
    if len(payload) < head + 8 * total:
        raise FormatError(f"a payload of {len(payload)} bytes ends before the indices")
    scales = np.frombuffer(payload, "<f4", len(blocks))
    words = np.frombuffer(payload, "<u8", total, head)
    rest = payload[head + 8 * total :]
    chunks = []
    size = max(2**18, 64 * polar_code_rows(n, spec.params["n"]))
    for begin in range(0, n, size):
        numbers, rest = read_digits(rest, min(size, n - begin))
        chunks.append(numbers)
    if len(rest) % 8:
        raise FormatError(f"{len(rest)} bytes after the indices")
    outliers = np.frombuffer(rest, [("at", "<u4"), ("value", "<f4")])
    if np.any(np.diff(outliers["at"].astype(np.int64)) <= 0) or np.any(outliers["at"] >= n):
        raise FormatError("outliers out of order")
    indices = np.zeros(64 * rows, np.int64)
    indices[:n] = np.concatenate(chunks)
    y = np.zeros(64 * rows, np.float32)
    row = 0
    for length, scale in zip(blocks, scales, strict=True):
        count = 29 * (row + length) // 64 - 29 * row // 64
        free = free_inputs((length - 1).bit_length(), 35 * 2**25, length, count)
        block = read_codeword(words, free)[0][:length]
        words = words[count:]
        block = block ^ random_words(stream, 2 * row, 2 * length).astype("<u4").view("<u8")
        part = slice(64 * row, 64 * (row + length))
        negative = (np.unpackbits(block.view(np.uint8), bitorder="little") + indices[part]) % 2 == 1
        points = scale * (indices[part].astype(np.float32) + np.float32(0.5))
        y[part] = np.where(negative, -points, points)
        row += length
    y[outliers["at"]] = outliers["value"]
    return polar_rotated_back(y, blocks, scales, n, spec, stream)


def read_polar(payload: bytes, n: int, spec: Spec, stream: int) -> np.ndarray:
    read = read_polar_b if float(spec.params["rate"]) < 0.5 else read_polar_ec
    return read(payload, n, spec, stream)


ADAPTIVE_ZEROS = (
    *(1820, 2356, 3016, 3810, 4740, 5792, 6938, 8138, 9338, 10492, 11554, 12494, 13302, 13974),
    *(14520, 14954, 15296, 15560, 15762, 15916, 16034, 16122, 16188, 16238, 16274, 16302, 16324),
    *(16338, 16350, 16358, 16366, 16370),
)
ADAPTIVE_STOPS = (236, 212, 189, 166, 143, 120, 97, 74)
ADAPTIVE_LEVELS = (31, 29, 24, 20, 18, 16, 15, 14, 13, 11, 10, 8, 6, 4, 3, 2)
ADAPTIVE_TAILS = (1, 1, 1, 1, 1, 2, 2, 2, 3, 3, 4, 4, 5, 6, 6, 7)


POINT_LEVELS = (31, 29, 26, 24, 22, 19, 16, 14, 12, 11, 9, 7, 6, 4, 2, 1)
POINT_TAILS = (0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 5, 6, 7, 7, 7)
POINT_CENTRES = (
    *(34, 34, 34, 34, 34, 34, 34, 34, 34, 34, 33, 32, 31, 30, 28, 27),
    *(26, 25, 24, 23, 22, 22, 21, 21, 20, 20, 20, 20, 20, 19, 19, 19),
)
FLAG_LEVELS = (31, 31, 29, 25, 21, 15, 13, 10, 8, 4, 1, 0, 0, 0, 0, 0)
GROUPS_OF_POINTS = (40, 200, 900, 3300, 8192, 13084, 15484, 16184, 16344)


def adaptive_frequencies(level: int, tail: int, signs: int = 2) -> list[int]:
    """Frequencies of the symbols 0, 1, -1, 2, -2, ..., 7, -7; without signs, of 0, 1, ..., 7."""
    frequencies = [ADAPTIVE_ZEROS[level]]
    left = (2**14 - ADAPTIVE_ZEROS[level]) // signs
    for m in range(1, 8):
        part = min(max(left * ADAPTIVE_STOPS[tail] >> 8, 1), left - (7 - m)) if m < 7 else left
        frequencies += [part] * signs
        left -= part
    return frequencies


def adaptive_class(means: int) -> int:
    """The class of an element, from the sum of the means of its column and row."""
    v = means + 164
    e = v.bit_length() - 1
    return min(max(2 * e - 14 + (2 * v >= 3 << e), 0), 15)


def adaptive_shapes(
    data: bytes, usual: tuple[tuple[int, ...], tuple[int, ...]]
) -> tuple[list[tuple[int, int]], bytes]:
    """The (level, tail) of each class, and the remaining bytes."""
    if len(data) < 2:
        raise FormatError("the payload ends before its tables")
    described = int.from_bytes(data[:2], "little")
    end = 2 + described.bit_count()
    if len(data) < end:
        raise FormatError("the payload ends before its tables")
    given = iter(data[2:end])
    shapes = list(zip(*usual, strict=True))
    for c in range(16):
        if described >> c & 1:
            shape = next(given)
            shapes[c] = shape % 32, shape // 32
    return shapes, data[end:]


def adaptive_flags(data: bytes) -> tuple[int, list[int], bytes]:
    """The number of states, the frequency of zero groups in each class, and the remaining bytes."""
    if not data:
        raise FormatError("the payload ends before its flags")
    shapes, rest = adaptive_shapes(data[1:], (FLAG_LEVELS, (0,) * 16))
    if any(tail for _, tail in shapes):
        raise FormatError("a frequency of flags that does not exist")
    return 1 << data[0], [ADAPTIVE_ZEROS[level] for level, _ in shapes], rest


@dataclass(frozen=True)
class GroupForm:
    """The form of a tensor's groups of points."""

    start: int
    offsets: int
    shapes: list[tuple[int, int]]

    def frequency(self, of_class: int) -> int:
        """The frequency of groups of points, out of 2^14."""
        return GROUPS_OF_POINTS[min(max(of_class - self.start, -8), 0) + 8]

    def values(self, indices: np.ndarray, classes: np.ndarray, step: np.float32) -> np.ndarray:
        """The magnitudes of points."""
        centres = np.array([POINT_CENTRES[level] for level, _ in self.shapes])[classes]
        first = centres + (self.offsets & 15) - 8
        others = 64 * indices + 32 + (self.offsets >> 4) - 8
        parts = np.where(indices == 0, first, others).astype(np.float32)
        distance = np.float32(0.78125) * step
        return np.minimum(parts / np.float32(64) * distance, np.finfo(np.float32).max)


def read_halves(data: bytes) -> tuple[list[bool], bytes]:
    """For each point of a band, whether it belongs to the half with -1/2; and the remaining bytes."""
    if len(data) < 4:
        raise FormatError("a band ends before its points")
    n = int.from_bytes(data[:4], "little")
    if n > MAX_NUMEL:
        raise FormatError(f"{n} points in a band")
    lanes = 64
    while lanes > 1 and n < 1024 * lanes:
        lanes //= 2
    rows = -(-n // lanes)
    count = -(-rows // 4096)
    blocks = [rows * (b + 1) // count - rows * b // count for b in range(count)]
    size = (sum(29 * block // 64 for block in blocks) * lanes + 7) // 8
    if len(data) < 4 + size:
        raise FormatError("a band ends before its codewords")
    bits = Bits(data[4 : 4 + size])
    halves = []
    for block in blocks:
        words = np.array([bits.get(lanes) for _ in range(29 * block // 64)], np.uint64)
        free = free_inputs((block - 1).bit_length(), 35 * 2**25, block, len(words))
        for word in read_codeword(words, free)[0][:block].tolist():
            halves += [bool(word >> lane & 1) for lane in range(lanes)]
    bits.finish()
    return halves[:n], data[4 + size :]


class AdaptiveStream:
    """Matrices in one run of rANS; the last of them may have groups of points, or zero groups."""

    def __init__(
        self,
        data: bytes,
        shapes: list[tuple[int, int]],
        lanes: int,
        form: GroupForm | None = None,
        of_flags: list[int] | None = None,
    ) -> None:
        self.form = form
        self.of_flags = of_flags
        if form is not None:
            self.halves, data = read_halves(data)
            self.of_points = [adaptive_frequencies(*shape, 1) for shape in form.shapes]
        if len(data) < 4 * lanes:
            raise FormatError("the states are cut short")
        self.data = data
        self.end = len(data) - 4 * lanes
        self.states = np.frombuffer(data, "<u4", lanes, self.end).tolist()
        if not all(2**15 <= state < 2**31 for state in self.states):
            raise FormatError("a state out of range")
        self.frequencies = [adaptive_frequencies(*shape) for shape in shapes]

    def symbol(self, lane: int, frequencies: list[int]) -> int:
        state = self.states[lane]
        t = state % 2**14
        start = symbol = 0
        while t >= start + frequencies[symbol]:
            start += frequencies[symbol]
            symbol += 1
        state = frequencies[symbol] * (state >> 14) + t - start
        if state < 2**15:
            if self.end < 2:
                raise FormatError("more words are needed than there are")
            self.end -= 2
            state = state << 16 | int.from_bytes(self.data[self.end : self.end + 2], "little")
        self.states[lane] = state
        return symbol

    def flags(self, rows: int, cols: int) -> np.ndarray:
        """Whether each group of a band has symbols."""
        groups, lanes = -(-cols // 32), len(self.states)
        flags = np.ones((rows, groups), bool)
        if self.of_flags is None:
            return flags
        means = [410] * groups
        for block in range(0, rows, 32):
            of_rows = dict.fromkeys(range(block, min(block + 32, rows)), 410)
            for g in range(groups):
                classes = {i: adaptive_class(means[g] + of_rows[i]) for i in of_rows}
                for begin in range(block, block + len(of_rows), lanes):
                    for i in reversed(range(begin, min(begin + lanes, block + len(of_rows)))):
                        zeros = self.of_flags[classes[i]]
                        flags[i, g] = self.symbol(i - begin, [zeros, 2**14 - zeros]) == 1
                for i in of_rows:
                    of_rows[i] += 4096 * int(flags[i, g]) - of_rows[i] >> 2
                ones = int(flags[block : block + 32, g].sum())
                means[g] += 128 * ones - means[g] >> (1 if block == 0 else 2)
        return flags

    def matrix(self, rows: int, cols: int, points: np.ndarray | None = None) -> np.ndarray:
        """Its levels, magnitudes beyond 7 as 7. Of points, the level is the index, and ``points``
        becomes 1 + class, or less than 0 for the half with -1/2. ``points`` is None for factors."""
        lanes = len(self.states)
        flags = None if points is None else self.flags(rows, cols)
        means, of_row = [410] * cols, 410
        levels = np.zeros((rows, cols), np.int64)
        for i in range(rows):
            s = min((i + 1).bit_length(), 5)
            for first in range(0, cols, 32):
                group = range(first, min(first + 32, cols))
                tables, of_points = self.frequencies, False
                if points is not None and self.form is not None:
                    mean = sum(means[j] for j in group) // len(group)
                    ones = self.form.frequency(adaptive_class(mean + of_row))
                    if self.symbol(0, [2**14 - ones, ones]) == 1:
                        tables, of_points = self.of_points, True
                classes = {j: adaptive_class(means[j] + of_row) for j in group}
                coded = flags is None or flags[i, first // 32]
                for begin in range(first, group.stop if coded else first, lanes):
                    for j in reversed(range(begin, min(begin + lanes, group.stop))):
                        symbol = self.symbol(j % lanes, tables[classes[j]])
                        m = (symbol + 1) // 2
                        levels[i, j] = symbol if of_points else m if symbol % 2 else -m
                sizes = {j: 4096 * int(abs(levels[i, j])) for j in group}
                if of_points:
                    if len(self.halves) < len(group):
                        raise FormatError("there are fewer points than the groups say")
                    indices = {j: int(levels[i, j]) for j in group}
                    sizes = {j: 3200 * k + 800 if k else 200 for j, k in indices.items()}
                    for j in group:
                        points[i, j] = -1 - classes[j] if self.halves.pop(0) else 1 + classes[j]
                for j in group:
                    means[j] += sizes[j] - means[j] >> s
                of_row += sum(sizes.values()) // len(group) - of_row >> 2
        return levels

    def finish(self, matrices: list[np.ndarray]) -> None:
        """Puts the larger magnitudes in place."""
        if any(state != 2**15 for state in self.states):
            raise FormatError("a state is not where the encoder began")
        if self.form is not None and self.halves:
            raise FormatError("there are more points than the groups say")
        bits = Bits(self.data[: self.end])
        for levels in matrices:
            for at in np.argwhere(np.abs(levels) == 7):
                magnitude = 6 + bits.elias_delta()
                levels[tuple(at)] = magnitude if levels[tuple(at)] > 0 else -magnitude
        bits.finish()


@dataclass(frozen=True)
class Reflection:
    """One side of a basis: y, float32 [R, size], and t, float32 [R, R]."""

    y: np.ndarray
    t: np.ndarray

    def sums(self, matrix: np.ndarray) -> np.ndarray:
        """T y m for a matrix with this side as rows: float32 [R, columns of m]."""
        found = np.zeros((len(self.y), matrix.shape[1]), np.float32)
        for one, row in zip(self.y.T, matrix, strict=True):
            found += one[:, None] * row
        return rank_by_rank(self.t.T, found)

    def sums_of_columns(self, matrix: np.ndarray) -> np.ndarray:
        """The same for a matrix with this side as columns: float32 [R, rows of m]."""
        pad = -matrix.shape[1] % 16
        wide, y = np.pad(matrix, ((0, 0), (0, pad))), np.pad(self.y, ((0, 0), (0, pad)))
        found = np.zeros((len(y), len(wide), 16), np.float32)
        for at in range(0, wide.shape[1], 16):
            found += y[:, None, at : at + 16] * wide[None, :, at : at + 16]
        for width in (8, 4, 2, 1):
            found = found[..., :width] + found[..., width : 2 * width]
        return rank_by_rank(self.t.T, found[..., 0])


def rank_by_rank(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """The sum of p[k][i] * q[k][j], k ascending: float32."""
    total = p[0][:, None] * q[0]
    for one, other in zip(p[1:], q[1:], strict=True):
        total = total + one[:, None] * other
    return total


def adaptive_basis(basis: bytes, rows: int, cols: int) -> tuple[Reflection, Reflection]:
    """The reflection of the columns, and that of the rows."""
    numbers = np.frombuffer(basis, "<f4")
    count = 0 if max(rows, cols) > 65536 else min(32, rows // 2, cols // 2)
    if count < 4 or numbers.size != count * (rows + cols + 2 * count + 2):
        raise FormatError("no basis of this tensor")
    if not ((np.abs(numbers) <= 64).all() and numbers[-count] > 0):
        raise FormatError("nothing was learned yet")
    sides = []
    for size in (cols, rows):
        y, numbers = numbers[: count * size], numbers[count * size :]
        t, numbers = numbers[: count * count], numbers[count * (count + 1) :]
        sides.append(Reflection(y.reshape(count, size), t.reshape(count, count)))
    return sides[0], sides[1]


def read_adaptive(
    payload: bytes, n: int, spec: Spec, stream: int, basis: bytes = b""
) -> np.ndarray:
    if n < 64:
        return read_identity(payload, n, spec, stream)
    if len(payload) == 1 and payload[0] < 2:
        return np.full(n, np.nan if payload[0] else 0, np.float32)
    if len(payload) < 10:
        raise FormatError("the payload ends before its tables")
    head, offsets_of_levels, cols, step = struct.unpack_from("<BBIf", payload)
    lanes, rank = 1 << (head & 7), head >> 3
    if not (cols > 0 and n % cols == 0 and np.isfinite(step) and step > 0):
        raise FormatError(f"rows of {cols} elements, or a step of {step}")
    rows = n // cols
    turned = rank == 17 and spec.params.get("preset") == "basis"
    shapes, rest = adaptive_shapes(payload[10:], (ADAPTIVE_LEVELS, ADAPTIVE_TAILS))
    form = of_flags = None
    if lanes == 64 and spec.params.get("coder") != "polar":
        lanes, of_flags, rest = adaptive_flags(rest)
    if lanes > 32:
        raise FormatError(f"{lanes} states")
    if spec.params.get("coder") == "polar":
        if not rest or rest[0] > 24:
            raise FormatError("no form of groups")
        start, rest = rest[0], rest[1:]
        if start < 24:
            offsets = int.from_bytes(rest[:1], "little")
            of_points, rest = adaptive_shapes(rest[1:], (POINT_LEVELS, POINT_TAILS))
            form = GroupForm(start, offsets, of_points)
    steps, lows = [], []
    if turned:
        of_cols, of_rows = adaptive_basis(basis, rows, cols)
        if len(rest) < 5:
            raise FormatError("the payload ends before its factors")
        rank, check = struct.unpack_from("<BI", rest)
        if check != crc32c(basis):
            raise FormatError("another basis")
        rest = rest[5:]
    if rank > min(16, rows, cols):
        raise FormatError(f"a rank of {rank}")
    if rank:
        if len(rest) < 2 + 3 * rank:
            raise FormatError("the payload ends before its factors")
        p_step = int.from_bytes(rest[:2], "little")
        v_steps, shifts = [], []
        for k in range(rank):
            both = rest[4 + 3 * k]
            v_steps.append(int.from_bytes(rest[2 + 3 * k : 4 + 3 * k], "little"))
            shifts.append((both & 15, both >> 4))
        numbers = np.array([v_steps, [p_step] * rank], np.uint32) << 16
        steps = numbers.view(np.float32)
        if not np.isfinite(steps).all():
            raise FormatError("a factor's step is not finite")
        total = sum(cols * of_v + rows * of_p for of_v, of_p in shifts)
        rest = rest[2 + 3 * rank :]
        if len(rest) < (total + 7) // 8:
            raise FormatError("the payload ends before its factors")
        bits = Bits(rest[: (total + 7) // 8])
        for side, size in enumerate((cols, rows)):
            lows.append([[bits.get(pair[side]) for _ in range(size)] for pair in shifts])
        bits.finish()
        rest = rest[(total + 7) // 8 :]
    band = max(1, 2**20 // cols)
    count = -(-rows // band)
    if len(rest) < 4 * (count - 1):
        raise FormatError("the payload ends before its streams")
    sizes = np.frombuffer(rest, "<u4", count - 1).tolist()
    rest = rest[4 * (count - 1) :]
    if sum(sizes) > len(rest):
        raise FormatError("the streams are longer than the payload")
    sizes.append(len(rest) - sum(sizes))
    parts, factors = [], []
    points = np.zeros((rows, cols), np.int64)
    for b, size in enumerate(sizes):
        one = AdaptiveStream(rest[:size], shapes, lanes, form, of_flags)
        rest = rest[size:]
        if b == 0 and rank:
            factors = [one.matrix(rank, size) for size in (cols, rows)]
        of_band = points[b * band : (b + 1) * band]
        parts.append(one.matrix(len(of_band), cols, of_band))
        one.finish([*(factors if b == 0 else []), parts[-1]])
    levels = np.concatenate(parts)
    sizes_of = np.abs(levels).astype(np.float32)
    off = np.where(sizes_of == 1, (offsets_of_levels & 15) - 8, (offsets_of_levels >> 4) - 8)
    off = off.astype(np.float32)
    values = np.minimum(
        (sizes_of + off / np.float32(32)) * np.float32(step), np.finfo(np.float32).max
    )
    y = np.where(levels == 0, np.float32(0), np.where(levels < 0, -values, values))
    if form is not None:
        of_points = form.values(np.abs(levels), np.abs(points) - 1, np.float32(step))
        negative = (points < 0) != (levels % 2 == 1)
        y = np.where(points == 0, y, np.where(negative, -of_points, of_points))
    if rank:
        v, p = (
            np.array(
                [
                    (
                        high[k] * 2 ** shift[side]
                        + np.array(lows[side][k])
                        - (2 ** shift[side] >> 1)
                    ).astype(np.float32)
                    * steps[side][k]
                    for k, shift in enumerate(shifts)
                ]
            )
            for side, high in enumerate(factors)
        )
        y = y + rank_by_rank(p, v)
    if turned:
        y = y - rank_by_rank(of_rows.y, of_rows.sums(y))
        y = y - rank_by_rank(of_cols.sums_of_columns(y), of_cols.y)
    return y.ravel()


@dataclass(frozen=True)
class Payload:
    codec_id: int
    seeded: bool  # even without rotate
    read: Callable[[bytes, int, Spec, int], np.ndarray]


PAYLOADS = {
    "identity": Payload(1, False, read_identity),
    "fp16": Payload(2, False, read_fp16),
    "bf16": Payload(3, False, read_bf16),
    "lossless": Payload(31, False, read_lossless),
    "topk": Payload(4, False, read_topk),
    "randomk": Payload(5, True, read_randomk),
    "sign": Payload(10, False, read_sign),
    "onebit": Payload(11, False, read_onebit),
    "terngrad": Payload(12, False, read_terngrad),
    "natural": Payload(13, False, read_natural),
    "int8": Payload(16, False, read_int8),
    "int4": Payload(17, False, read_int4),
    "fp8": Payload(30, False, read_fp8),
    "blockwise8": Payload(18, False, read_blockwise8),
    "qsgd": Payload(14, False, read_qsgd),
    "dither": Payload(15, False, read_dither),
    "uniform": Payload(19, False, read_uniform),
    "eden": Payload(20, True, read_eden),
    "drive": Payload(21, True, read_drive),
    "sampled_topk": Payload(6, False, read_sampled_topk),
    "threshold": Payload(7, False, read_threshold),
    "randomblock": Payload(8, True, read_randomblock),
    "chunktopk": Payload(9, False, read_chunktopk),
    "blocktopk": Payload(32, False, read_blocktopk),
    "globaltopk": Payload(25, False, read_threshold),
    "adaq": Payload(22, False, read_adaq),
    "inceptionn": Payload(23, False, read_inceptionn),
    "sketch": Payload(24, True, read_sketch),
    "polar_b": Payload(33, True, read_polar_b),
    "polar_ec": Payload(27, True, read_polar_ec),
    "polar": Payload(34, True, read_polar),
    "adaptive": Payload(29, False, read_adaptive),
}


# Frames -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Frame:
    """The fields of a frame that keeps its own rules: magic to CRC, without regard to a spec."""

    flags: int
    codec_id: int
    spec_hash: int
    numel: int
    stream: int | None
    payload: bytes
    crc: int | None

    @classmethod
    def read(cls, frame: bytes) -> Frame:
        if len(frame) < 24:
            raise FormatError(f"{len(frame)} bytes are less than the header")
        magic, version, flags, codec_id, spec_hash, payload_length, numel = struct.unpack_from(
            "<4sBBHIIQ", frame
        )
        if magic != MAGIC:
            raise FormatError(f"magic is {magic!r}")
        if version != VERSION:
            raise FormatError(f"version is {version}")
        if flags & ~(FLAG_CRC | FLAG_STREAM):
            raise FormatError(f"unknown flags in {flags:#04x}")
        if codec_id == 0:
            raise FormatError("codec id is 0")
        if numel > MAX_NUMEL:
            raise FormatError(f"numel {numel} is above {MAX_NUMEL}")
        start = 32 if flags & FLAG_STREAM else 24
        end = start + payload_length
        total = end + (4 if flags & FLAG_CRC else 0)
        if len(frame) != total:
            raise FormatError(f"the frame has {len(frame)} bytes; its fields say {total}")
        crc = None
        if flags & FLAG_CRC:
            (crc,) = struct.unpack_from("<I", frame, end)
            if crc != crc32c(frame[:end]):
                raise FormatError("the CRC does not match")
        stream = struct.unpack_from("<Q", frame, 24)[0] if flags & FLAG_STREAM else None
        return cls(flags, codec_id, spec_hash, numel, stream, frame[start:end], crc)


def decode(frame: bytes, spec: str, basis: bytes = b"") -> np.ndarray:
    """Returns the flat float32 tensor; raises FormatError for a frame the document forbids.

    ``basis`` is what ranks keep of the tensor with ``preset=basis``.
    """
    read_spec = Spec.read(spec)
    rules = PAYLOADS[read_spec.name]
    fields = Frame.read(frame)
    if fields.codec_id != rules.codec_id:
        raise FormatError(f"codec id {fields.codec_id}; {read_spec.name} is {rules.codec_id}")
    if fields.spec_hash != crc32c(spec.encode("ascii")):
        raise FormatError(f"spec hash {fields.spec_hash:#010x} is not that of {spec}")
    seeded = rules.seeded or read_spec.rotated
    if (fields.stream is not None) != seeded:
        raise FormatError("flag bit 1 (stream present) does not fit the codec")
    # Hostile scales overflow, and signalling NaN become quiet: neither is an error.
    with np.errstate(over="ignore", invalid="ignore"):
        if read_spec.name == "adaptive":
            return read_adaptive(fields.payload, fields.numel, read_spec, 0, basis)
        return rules.read(fields.payload, fields.numel, read_spec, fields.stream or 0)
