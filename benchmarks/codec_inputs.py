#!/usr/bin/env python3
"""Sizes and errors on inputs that `gradcomp bench` does not draw, for the pages of docs/codecs.

python benchmarks/codec_inputs.py
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gradcomp import EncodeItem, encode_batch, get_codec
from gradcomp.codec.frame import split_frames
from gradcomp.tools.bench import vnmse

FloatArray = npt.NDArray[np.float32]

NUMEL = 1_000_000


def measure(spec: str, tensors: Sequence[FloatArray]) -> tuple[float, float]:
    """Bits per element and vNMSE of tensors encoded together."""
    codec = get_codec(spec)
    data, sizes = encode_batch([EncodeItem(codec, tensor) for tensor in tensors])
    exact = np.concatenate(tensors)
    decoded = np.concatenate([codec.decode(frame) for frame in split_frames(data, len(sizes))])
    return 8 * data.size / exact.size, vnmse(exact, decoded)


def main() -> None:
    """Print one line per spec and input."""
    gauss = np.random.default_rng(0).standard_normal(NUMEL, np.float32)
    normal = np.random.default_rng(1).standard_normal(NUMEL, np.float32)
    heavy_tailed = (gauss * np.exp(1.5 * normal)).astype(np.float32)
    half = NUMEL // 2
    specs = {
        "two scales": [f"{name}(ratio=0.01)" for name in ("globaltopk", "topk")],
        "heavy-tailed": [
            "sketch(ratio=0.1)",
            "sketch(ratio=0.1,rows=5)",
            "sketch(ratio=0.01)",
            "sketch(ratio=0.1,unbiased=true)",
        ],
        "0.001 x": [
            "inceptionn",
            "inceptionn(error_bound=0.0001)",
            "inceptionn(error_bound=0.01)",
        ],
    }
    tensors = {
        "two scales": [gauss[:half], 2 * gauss[half:]],
        "heavy-tailed": [heavy_tailed],
        "0.001 x": [gauss * np.float32(0.001)],
    }
    print(f"{'spec':34}{'input':16}{'bits':>8}{'vNMSE':>10}")
    for name, listed in specs.items():
        for spec in listed:
            bits, error = measure(spec, tensors[name])
            print(f"{spec:34}{name:16}{bits:8.3f}{error:10.3g}")


if __name__ == "__main__":
    main()
