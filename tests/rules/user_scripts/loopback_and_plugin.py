"""A script with gradcomp alone, and a codec of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

import gradcomp
from gradcomp import CodecPlugin, Loopback, PluginParam


class Half(CodecPlugin):
    name = "half"
    id = 0x8001
    summary = "float16"
    params = (PluginParam("shift", 0, "added to every element"),)

    def max_payload_size(self, numel: int, params: Mapping[str, Any]) -> int:
        return 2 * numel

    def encode(
        self, x: npt.NDArray[np.float32], params: Mapping[str, Any], stream: int
    ) -> npt.NDArray[np.float16]:
        return x.astype(np.float16)

    def decode(
        self, payload: bytes, numel: int, params: Mapping[str, Any], stream: int
    ) -> npt.NDArray[np.float32]:
        return np.frombuffer(payload, np.float16, numel).astype(np.float32)


def main() -> None:
    gradcomp.register_codec(Half())
    loop = Loopback("residual|half", 2)
    averages = loop.step({"w": [np.ones((4, 4), np.float32)] * 2})
    print(averages, loop.stats[0].ratio)
    codec = gradcomp.get_codec("topk(ratio=0.1)")
    frame = codec.encode(np.ones(100, np.float32))
    print(codec.decode(frame).sum(), gradcomp.explain("fp16"))
