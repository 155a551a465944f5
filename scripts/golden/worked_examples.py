"""Worked examples of docs/wire-format.md: one small frame of each codec, taken apart by field."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

import gradcomp
from gradcomp.codec.frame import inspect
from gradcomp.codec.spec import stages

__all__ = ["EXAMPLE_CALL", "EXAMPLE_INPUT", "examples"]

FloatArray = npt.NDArray[np.float32]

# Specs of worked examples, where the registry's example keeps too few elements of EXAMPLE_INPUT.
EXAMPLE_SPECS = {
    "topk": "topk(k=2)",
    "randomk": "randomk(k=2)",
    "qsgd": "qsgd(levels=7,norm=l2)",
    "sampled_topk": "sampled_topk(k=2)",
    "threshold": "threshold(tau=0.2,values=int8)|bitmask",
    "randomblock": "randomblock(k=2)",
    "chunktopk": "chunktopk(ratio=0.5,chunk=3)",
    "blocktopk": "blocktopk(k=2048)",
    "globaltopk": "globaltopk(k=2)",
    "uniform": "rotate|uniform(bits=4)",
    "adaq": "adaq(ratio=0.5)",
}
EXAMPLE_INPUT = np.array([0.1, -3.0, 0.25, 2.0], np.float32)
EXAMPLE_CALL = {"seed": 1, "step": 2, "tensor_id": 3}

Row = tuple[int, str]
"""Size of a field in bytes, and its meaning."""

Fields = Callable[[bytes, FloatArray], list[Row]]
"""The fields of a payload, given also its decoded elements."""


def number(payload: bytes, offset: int) -> str:
    """The float32 at an offset."""
    return str(np.frombuffer(payload, "<f4", 1, offset)[0])


def halves(data: bytes) -> list[int]:
    """Symbols of 4 bits."""
    return [half for byte in data for half in (byte & 15, byte >> 4)]


def dense_fields(size: int, dtype: str) -> Fields:
    """The fields of a payload that holds every element."""
    return lambda _, decoded: [(size, f"{value!s} as {dtype}") for value in decoded]


def scaled_fields(*names: str, rest: Callable[[bytes], str]) -> Fields:
    """The fields of a payload of float32 ``names`` and a last field that ``rest`` describes."""

    def fields(payload: bytes, decoded: FloatArray) -> list[Row]:
        del decoded
        head = 4 * len(names)
        rows = [(4, f"{name} {number(payload, 4 * i)}") for i, name in enumerate(names)]
        return [*rows, (len(payload) - head, rest(payload[head:]))]

    return fields


def bits_text(data: bytes) -> str:
    """One bit per element of the example."""
    return "bits " + " ".join(str(data[0] >> i & 1) for i in range(EXAMPLE_INPUT.size))


def digits_text(data: bytes) -> str:
    """Base-3 digits of the example's elements."""
    return "digits " + " ".join(str(data[0] // 3**i % 3) for i in range(EXAMPLE_INPUT.size))


def signed_text(bits: int) -> Callable[[bytes], str]:
    """Levels in two's complement."""

    def text(data: bytes) -> str:
        levels = list(data) if bits == 8 else halves(data)
        return "levels " + " ".join(str((z ^ 1 << bits - 1) - (1 << bits - 1)) for z in levels)

    return text


def zigzag_text(data: bytes) -> str:
    """Symbols of 4 bits, and the signed levels that they encode."""
    levels = [-(z + 1) // 2 if z % 2 else z // 2 for z in halves(data)]
    return f"symbols {' '.join(map(str, halves(data)))}: levels {' '.join(map(str, levels))}"


def natural_fields(payload: bytes, decoded: FloatArray) -> list[Row]:
    """The fields of one byte per element."""
    return [
        (1, f"code {byte & 127}{', negative' if byte & 128 else ''}: {value!s}")
        for byte, value in zip(payload, decoded, strict=True)
    ]


def sparse_fields(payload: bytes, decoded: FloatArray) -> list[Row]:
    """The fields of a sparse payload."""
    del decoded
    count, coding, kind = payload[0], payload[4], payload[5]
    coder = ("raw32", "bitmask", "elias_fano", "rice")[coding]
    shortfall = int.from_bytes(payload[6:8], "little")
    rows = [
        (4, f"count {count}"),
        (1, f"index coding: {coder}"),
        (1, f"value type: {('fp32', 'fp16', 'bf16', 'int8', 'sign', 'means')[kind]}"),
        (2, f"shortfall {shortfall}"),
        (1, f"indices, {payload[8]:08b} in binary"),
    ]
    if kind == 5:
        low, high = number(payload, 9), number(payload, 13)
        return [*rows, (4, f"low {low}"), (4, f"high {high}"), (1, f"bits, {payload[17]:08b}")]
    if kind == 3:
        steps = np.frombuffer(payload[13:], np.int8)
        return [*rows, (4, f"step {number(payload, 9)}"), *[(1, f"{q} steps") for q in steps]]
    return [*rows, *[(4, f"value {value!s}") for value in np.frombuffer(payload[9:], "<f4")]]


def fixed_fields(payload: bytes, decoded: FloatArray) -> list[Row]:
    """The fields of one block of fixed point with fewer than 8 elements."""
    low, high = payload[0], payload[1]
    rows = [(1, f"lower tag bits, {low:08b} in binary"), (1, f"upper tag bits, {high:08b}")]
    for tag, size, form in ((1, 1, "8 bits"), (2, 2, "16 bits"), (3, 4, "float32")):
        where = [i for i in range(decoded.size) if (low >> i & 1) + 2 * (high >> i & 1) == tag]
        rows += [(size, f"{decoded[i]!s} of index {i} as {form}") for i in where]
    return rows


def plane_fields(payload: bytes, decoded: FloatArray) -> list[Row]:
    """The fields of one chunk without coded planes."""
    names = ("exponents", "signs and upper significands", "middle bytes", "lower bytes")
    rows = [(1, f"forms, {payload[0]:08b} in binary")]
    for p, name in enumerate(names):
        if payload[0] >> 2 * p & 3:
            begin = sum(size for size, _ in rows)
            data = payload[begin : begin + decoded.size]
            rows.append((decoded.size, f"{name} {' '.join(map(str, data))}"))
    return rows


def tiled_fields(payload: bytes, decoded: FloatArray) -> list[Row]:
    """The fields of a payload of one tile, with coded gaps."""
    kept = np.flatnonzero(decoded)
    values = [(4, f"value {decoded[index]!s} of index {index}") for index in kept]
    begin = 4 + 4 * len(kept)
    (length,) = np.frombuffer(payload, "<u4", 1, begin)
    gaps = " ".join(map(str, np.diff(kept, prepend=-1) - 1))
    rest = len(payload) - begin - 4 - int(length)
    return [
        (4, f"cols {np.frombuffer(payload, '<u4', 1)[0]}"),
        *values,
        (4, f"length {length}"),
        (int(length), f"symbols of the gaps {gaps}: states of rANS"),
        *([(rest, "lower bits")] if rest else []),
    ]


def drawn_fields(payload: bytes, decoded: FloatArray) -> list[Row]:
    """The fields of a payload of values other than 0, without indices."""
    del payload
    return [(4, f"value {decoded[index]!s} of index {index}") for index in np.flatnonzero(decoded)]


PAYLOAD_FIELDS: dict[str, Fields] = {
    "identity": dense_fields(4, "float32"),
    "fp16": dense_fields(2, "binary16"),
    "bf16": dense_fields(2, "bfloat16"),
    "lossless": plane_fields,
    "topk": sparse_fields,
    "randomk": drawn_fields,
    "sign": scaled_fields("scale", rest=bits_text),
    "onebit": scaled_fields("low", "high", rest=bits_text),
    "terngrad": scaled_fields("scale", rest=digits_text),
    "natural": natural_fields,
    "int8": scaled_fields("scale", rest=signed_text(8)),
    "int4": scaled_fields("scale", rest=signed_text(4)),
    "fp8": scaled_fields("scale", rest=lambda data: f"codes {data.hex(' ')} in hexadecimal"),
    "blockwise8": scaled_fields("scale", rest=lambda data: f"codes {' '.join(map(str, data))}"),
    "qsgd": scaled_fields("norm", rest=zigzag_text),
    "dither": scaled_fields("norm", rest=zigzag_text),
    "uniform": scaled_fields(
        "scale", rest=lambda data: f"symbols {' '.join(map(str, halves(data)))}, rotated"
    ),
    "eden": dense_fields(4, "float32, as all tensors of n < 64"),
    "drive": dense_fields(4, "float32, as all tensors of n < 64"),
    "sampled_topk": sparse_fields,
    "threshold": sparse_fields,
    "randomblock": drawn_fields,
    "chunktopk": sparse_fields,
    "blocktopk": tiled_fields,
    "globaltopk": sparse_fields,
    "adaq": sparse_fields,
    "inceptionn": fixed_fields,
    "sketch": dense_fields(4, "float32, as all tensors that are not larger than their sketch"),
    "polar_b": dense_fields(4, "float32, as all tensors of n < 64"),
    "polar_ec": dense_fields(4, "float32, as all tensors of n < 64"),
    "polar": dense_fields(4, "float32, as all tensors of n < 64"),
    "adaptive": dense_fields(4, "float32, as all tensors of n < 64"),
}


def call_text(call: dict[str, int]) -> str:
    """The numbers of a call, in the format of the examples."""
    return ", ".join(f"{key} {value}" for key, value in call.items())


def example(codec_name: str) -> str:
    """One codec's worked example: a heading and a code block with every field of a frame."""
    (stage,) = (row for row in stages() if row.kind == "codec" and row.name == codec_name)
    codec = gradcomp.get_codec(EXAMPLE_SPECS.get(codec_name, stage.example))
    frame = codec.encode(
        EXAMPLE_INPUT,
        seed=EXAMPLE_CALL["seed"],
        step=EXAMPLE_CALL["step"],
        tensor_id=EXAMPLE_CALL["tensor_id"],
    ).tobytes()
    decoded = codec.decode(frame)
    info = inspect(frame)
    flags = ["CRC"] + (["stream"] if info.stream is not None else [])
    rows: list[Row] = [
        (4, "magic"),
        (1, f"version {info.version}"),
        (1, f"flags: {', '.join(flags)}"),
        (2, f"codec id {info.codec_id}"),
        (4, "spec hash"),
        (4, f"payload length {info.payload_bytes}"),
        (8, f"numel {info.numel}"),
    ]
    if info.stream is not None:
        rows.append((8, f"stream {info.stream:#018x}"))
    fields = PAYLOAD_FIELDS.get(codec_name)
    payload = frame[-4 - info.payload_bytes : -4]
    rows += [(len(payload), "payload")] if fields is None else fields(payload, decoded)
    rows.append((4, "CRC"))
    lines = [
        f"### Frame of {codec_name}",
        "",
        "```",
        f"spec    {codec.spec}",
        f"call    {call_text(EXAMPLE_CALL)}",
        f"input   {' '.join(str(value) for value in EXAMPLE_INPUT)}",
        f"output  {' '.join(str(value) for value in decoded)}",
        "",
    ]
    offset = 0
    for size, meaning in rows:
        for begin in range(0, size, 8):
            part = frame[offset : offset + min(8, size - begin)]
            text = f"{offset:3}  {part.hex(' ').upper():23}  {meaning if begin == 0 else ''}"
            lines.append(text.rstrip())
            offset += len(part)
    if offset != len(frame):
        raise ValueError(f"the fields of {codec_name} cover {offset} of {len(frame)} bytes")
    return "\n".join([*lines, "```"])


def examples(codec_names: Iterable[str]) -> str:
    """The section "Worked examples" of docs/wire-format.md, below its heading."""
    intro = (
        "Whole frames, with offset, bytes and meaning of every field, printed by "
        "`scripts/golden/make_golden.py --examples`."
    )
    return "\n\n".join([intro, *(example(name) for name in codec_names)])
