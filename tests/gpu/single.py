"""Codecs with single tensors on a device of interpreted kernels, as a process: python single.py

Prints the number of frames that were compared with those of the host; a difference is an error.
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import pytest
import torch

import gpu.quick_interpreter  # noqa: F401
from gradcomp import CapacityError, SpecError, WireError, get_codec
from gradcomp.codec.spec import parse
from gradcomp_torch.gpu import codecs
from gradcomp_torch.gpu.device import TorchDevice
from gradcomp_torch.gpu.encoders import tiling
from support.frames import HEAD, edited, sealed

SPECS = [
    "topk(ratio=0.1)",
    "topk(k=7,values=int8)|rice",
    "sampled_topk(ratio=0.1,sample_ratio=1)",
    "sampled_topk(ratio=0.1,values=sign)",
    "randomk(ratio=0.2)",
    "identity",
    "fp16",
    "bf16",
    "int8",
    "int4",
    "sign",
    "onebit",
    "terngrad",
    "qsgd(levels=7,bucket=64)|packed",
    "uniform(bits=8)|packed",
    "rotate|uniform(bits=4)",
]
SHAPES = [(1,), (300,), (13, 40), (4, 5, 17)]

OTHERS = [
    *("qsgd(norm=l2)", "blocktopk(k=3)"),
    *(
        "randomk(ratio=0.2,values=int8)",
        "sampled_topk(ratio=0.1,resample=false)",
        "sampled_topk(ratio=0.1,strided_sample=false)",
    ),
]


def main() -> None:
    """Compare frames, and sums with elements of any value."""
    tiling.TILE, tiling.BLOCK, tiling.UNROLL = 128, 64, 1
    device = TorchDevice(torch.device("cpu"))
    rng = np.random.default_rng(4)
    compared = 0
    for spec in SPECS:
        codec = get_codec(spec)
        for shape in SHAPES:
            grad = rng.standard_normal(shape, np.float32)
            key = {"seed": 3, "step": compared, "tensor_id": 5}
            expected = codec.encode(grad, **key)
            frame = codec.encode(device.array(torch.from_numpy(grad)), **key)
            assert frame.tobytes() == expected.tobytes(), f"{spec} of {shape}"
            total = rng.standard_normal(shape, np.float32)
            total.reshape(-1)[::3] = -0.0
            tensor = torch.from_numpy(total.copy())
            codec.decode_add(expected, total, 1 / 3)
            codec.decode_add(bytes(frame), device.array(tensor), 1 / 3)
            assert tensor.numpy().tobytes() == total.tobytes(), f"{spec} added to {shape}"
            compared += 1
    array = device.array(torch.zeros(64))
    for spec in OTHERS:
        codec = get_codec(spec)
        frame = codec.encode(np.zeros(64, np.float32))
        with pytest.raises(SpecError, match=r"no kernels for '.*\.cpu\(\)"):
            codec.encode(array)
        with pytest.raises(SpecError, match=r"no kernels for '.*\.cpu\(\)"):
            codec.decode_add(frame, array)
    topk = get_codec("topk(k=3)")
    with pytest.raises(SpecError, match=r"shape \(0,\)"):
        topk.encode(device.array(torch.zeros(0)))
    with pytest.raises(TypeError, match="whole number"):
        topk.encode(array, seed=-1)
    with pytest.raises(TypeError, match="leave it out"):
        topk.encode(array, out=np.empty(999, np.uint8))
    for spec in ("topk(k=3)", "fp16", "int8"):
        frame = get_codec(spec).encode(np.ones(64, np.float32))
        frame[-1] ^= 1
        with pytest.raises(WireError):
            get_codec(spec).decode_add(frame, array)
    assert not array.tensor.any()
    large_tensors(device)
    compared += foreign_scales(device)
    print(f"{compared} frames compared")


def large_tensors(device: TorchDevice) -> None:
    """From 2^30 elements on, indices of 32 bits would not do: refused before anything is allocated."""
    for spec, shapes in {
        "topk(k=4)": [(2**30,), (2**31 - 100,), (2**31,)],
        "powersgd(rank=1)": [(3, 2**29)],
    }.items():
        for shape in shapes:
            assert not device.takes(parse(spec), shape), f"{spec} of {shape}"
    assert device.takes(parse("topk(k=4)"), (2**30 - 1,))
    with pytest.raises(CapacityError, match="1073741824 elements; kernels take 0 to 1073741823"):
        codecs.encoder("fp16", [5, 2**30], torch.device("cpu"))


def foreign_scales(device: TorchDevice) -> int:
    """Compare sums with frames whose scales no encoder makes; a block of 256 elements has a rest of 44."""
    compared = 0
    for spec in ("rotate|uniform(bits=4)", "uniform(bits=4)"):
        codec = get_codec(spec)
        frame = codec.encode(np.ones(300, np.float32)).tobytes()
        head = HEAD + 8 * ("seeded" in codec.caps)
        for group in range(2 if head > HEAD else 1):
            for scale in (np.inf, -np.inf, np.nan, 2.0**101, -(2.0**100), -3.0, -0.0):
                body = edited(frame[:-4], head + 4 * group, "<f", scale)
                total = np.ones(300, np.float32)
                tensor = torch.from_numpy(total.copy())
                codec.decode_add(sealed(body), total, 1 / 3)
                codec.decode_add(sealed(body), device.array(tensor), 1 / 3)
                assert np.array_equal(tensor.numpy(), total, equal_nan=True), f"{spec}, {scale}"
                compared += 1
    return compared


if __name__ == "__main__":
    main()
