"""``bf8``: one byte per element, a float of 1 sign bit, 5 exponent bits and 2 bits of significand.

A plug-in of gradcomp in Python; docs/plugins.md explains it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gradcomp import CodecPlugin, PluginParam


class Bf8(CodecPlugin):
    """The upper byte of binary16, rounded to nearest or at random."""

    name = "bf8"
    id = 0x8001
    summary = "one byte per element: the upper half of a float16"
    nonfinite = "NaN stays NaN; Inf and what is too large become the largest number, 57344"
    caps = frozenset({"finite", "private_noise"})
    params = (
        PluginParam("stochastic", False, "round the float16 at random instead of to nearest"),
    )

    def max_payload_size(self, numel: int, params: Mapping[str, Any]) -> int:
        """A byte per element."""
        return numel

    def encode(self, x: npt.NDArray[np.float32], params: Mapping[str, Any], stream: int) -> Any:
        """The upper bytes of ``x`` in binary16."""
        # The largest number is 0x7B00, so that rounding never carries into the exponent of Inf.
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
        """``numel`` float32. The payload comes from a network, so its size is checked."""
        if len(payload) != numel:
            raise ValueError(f"the payload has {len(payload)} bytes for {numel} elements")
        half = np.frombuffer(payload, np.uint8).astype(np.uint16) << 8
        return half.view(np.float16).astype(np.float32)
