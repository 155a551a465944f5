"""Damaged messages from device to device, with interpreted kernels, as a process: python damaged.py

Prints the number of damaged messages that were noticed; anything else is an error.
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import pytest
import torch

import gpu.quick_interpreter  # noqa: F401
from gradcomp import ProtocolError, ToEncode, get_codec
from gradcomp.codec.items import ToAddShared
from torch_compressors.gpu import codecs
from torch_compressors.gpu.direct import HEADER, DirectDevice
from torch_compressors.shared.direct import DeviceMessage

NUMEL, KEPT = 300, 30
GUARD = 64
"""Elements around the average that nobody may write."""

DAMAGED = {
    "another bucket": (0, np.uint8(1).tobytes()),
    "an index beyond the tensor": (HEADER + 4 * (KEPT - 1), np.int32(NUMEL).tobytes()),
    "an index far beyond the tensor": (HEADER + 4 * 3, np.int32(2**31 - 1).tobytes()),
    "an index below 0": (HEADER, np.int32(-1).tobytes()),
    "an index like the next": (HEADER + 4 * 4, None),
}
"""Places of a message, and what is there instead."""


def main() -> None:
    """Damage the message of each rank of three, in turn, in every way."""
    codecs.TILE, codecs.BLOCK, codecs.SLOTS = 128, 64, 64
    codec = get_codec("topk(k=30)")
    rng = np.random.default_rng(6)
    noticed = 0
    for place, value in DAMAGED.values():
        for damaged in range(3):
            device = DirectDevice(torch.device("cpu"))
            grads = [rng.standard_normal(NUMEL, np.float32) for _ in range(3)]
            messages = [
                device.share("w", [[ToEncode(codec, device.from_host(grad))]]) for grad in grads
            ]
            own = messages[-1]
            sent = bytearray(messages[damaged].data.numpy().tobytes())
            there = sent[place + 4 : place + 8] if value is None else value
            sent[place : place + len(there)] = there
            data = torch.frombuffer(sent, dtype=torch.uint8)
            messages[damaged] = DeviceMessage(data, messages[damaged].staging)
            memory = torch.full((NUMEL + 2 * GUARD,), 7.0)
            average = memory[GUARD : GUARD + NUMEL].zero_()
            out = device.array(average)
            device.add_shared(own, 0, [ToAddShared(codec, out, [0] * 3)], messages, 1 / 3)
            assert (memory[:GUARD] == 7).all()
            assert (memory[GUARD + NUMEL :] == 7).all()
            with pytest.raises(ProtocolError, match=rf"damaged message of rank {damaged} is in"):
                device.share("w", [[ToEncode(codec, device.from_host(grads[0]))]])
            noticed += 1
    print(f"{noticed} damaged messages noticed")


if __name__ == "__main__":
    main()
