"""Example plug-in in Python: the codec ``bf8``, an 8-bit float per element.

It has 1 sign bit, 5 exponent bits and 2 bits of significand. docs/plugins.md explains the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gradcomp import CodecPlugin, PluginParam


class Bf8(CodecPlugin):
    """Upper byte of binary16, rounded to nearest or stochastically."""

    name = "bf8"
    id = 0x8001
    summary = "one byte per element: the upper half of a float16"
    nonfinite = "NaN stays NaN; Inf and values beyond the range become the largest number, 57344"
    caps = frozenset({"finite", "private_noise"})
    params = (
        PluginParam("stochastic", False, "round the float16 at random instead of to nearest"),
    )

    def max_payload_size(self, numel: int, params: Mapping[str, Any]) -> int:
        """Return the size of a payload: one byte per element."""
        return numel

    def encode(self, x: npt.NDArray[np.float32], params: Mapping[str, Any], stream: int) -> Any:
        """Return the upper bytes of ``x`` in binary16, uint8 of shape (numel,)."""
        # 57344 is 0x7B00 in binary16, so rounding never carries into the exponent of Inf.
        half = np.clip(x, -57344, 57344).astype(np.float16).view(np.uint16)
        if params["stochastic"]:
            random = np.random.Generator(np.random.Philox(key=stream))
            added = random.integers(0, 256, half.size, np.uint16)
        else:
            added = 127 + (half >> 8 & 1)  # to nearest, ties to even
        return np.where(np.isnan(x), 0x7F, (half + added) >> 8).astype(np.uint8)

    def decode(
        self, payload: bytes, numel: int, params: Mapping[str, Any], stream: int
    ) -> npt.NDArray[np.float32]:
        """Return float32 of shape (numel,). The payload comes from the network: check its size."""
        if len(payload) != numel:
            raise ValueError(f"the payload has {len(payload)} bytes; it must have {numel}")
        half = np.frombuffer(payload, np.uint8).astype(np.uint16) << 8
        return half.view(np.float16).astype(np.float32)
