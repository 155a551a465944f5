"""Parameters of codecs as kernels take them."""

from __future__ import annotations

from collections.abc import Mapping

from gradcomp_torch.gpu.kernels import value_types

__all__ = ["FLOAT_TYPES", "VALUE_TYPES", "Params", "bucket_size", "level_bits", "number"]

Params = Mapping[str, float | int | bool | str | list[float]]

VALUE_TYPES = {
    "fp32": value_types.FP32.value,
    "fp16": value_types.FP16.value,
    "bf16": value_types.BF16.value,
    "int8": value_types.INT8.value,
    "sign": value_types.SIGN.value,
    "means": value_types.MEANS.value,
    "2bit": value_types.BINS.value,
}

FLOAT_TYPES = {"identity": VALUE_TYPES["fp32"]} | {
    name: VALUE_TYPES[name] for name in ("fp16", "bf16")
}
"""Value types of codecs that send all elements as floats."""


def number(params: Params, name: str) -> float:
    """A parameter that is a number."""
    return float(params[name])  # type: ignore[arg-type]


def bucket_size(params: Params) -> int:
    """Elements that share a scale; `uniform` has no parameter for it."""
    return int(params.get("bucket", 512))  # type: ignore[arg-type]


def level_bits(params: Params) -> int:
    """Bits of a packed level: of `qsgd`, which has levels of both signs, or of `uniform`."""
    if "levels" in params:
        return (2 * int(number(params, "levels"))).bit_length()
    return int(number(params, "bits"))
