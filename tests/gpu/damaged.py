"""Damaged messages from device to device, with interpreted kernels, as a process: python damaged.py

Prints the number of damaged messages that were noticed; anything else is an error.
"""

from __future__ import annotations

import os
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import numpy.typing as npt
import pytest
import torch

import gpu.quick_interpreter  # noqa: F401
from gradcomp import EncodeItem, ProtocolError, get_codec
from gradcomp.codec.batch_items import PeerItem
from gradcomp_torch.device_messages import DeviceMessage
from gradcomp_torch.gpu import peer_sums
from gradcomp_torch.gpu.encoders import tiling
from gradcomp_torch.gpu.peer_device import DirectDevice
from gradcomp_torch.gpu.peer_send import HEADER
from support.scope import FULL

NUMEL, KEPT = 300, 30
GUARD = 64
"""Elements around the average that nobody may write."""

SAMPLED = "sampled_topk(k=30,sample_ratio=0.1)"
RAW, PACKED = "topk(k=30)|raw32", "topk(k=30)"
UPPER = 4 * 3
"""Bytes of the upper bits of packed indices: 3 lower bits of each, and 30 + 300 / 8 + 1 bits."""

DAMAGED: dict[str, tuple[str, int, bytes | None]] = {
    "another bucket": (RAW, 0, b"\1"),
    "an index beyond the tensor": (
        *(RAW, HEADER + 4 * (KEPT - 1)),
        np.int32(NUMEL).tobytes(),
    ),
    "an index far beyond the tensor": (RAW, HEADER + 4 * 3, np.int32(2**31 - 1).tobytes()),
    "an index below 0": (RAW, HEADER, np.int32(-1).tobytes()),
    "an index like the next": (RAW, HEADER + 4 * 4, None),
    "no index": (PACKED, HEADER, b"\0" * UPPER),
    "one index less": (PACKED, HEADER, b"\0"),
    "all upper bits": (PACKED, HEADER, b"\xff" * UPPER),
    "more elements than are kept": (SAMPLED, HEADER, np.int32(KEPT + 1).tobytes()),
    "no element": (SAMPLED + "|raw32", HEADER, bytes(4)),
    "fewer elements than were packed": (SAMPLED, HEADER, np.int32(1).tobytes()),
    "fewer elements than none": (SAMPLED + "|raw32", HEADER, np.int32(-1).tobytes()),
    "no index of a sample": (SAMPLED, HEADER + 4, b"\0" * UPPER),
    "all late": (PACKED, HEADER, b"\0" * 8 + b"\xff" * 4),
}
"""The codec, a place of a message, and what is there instead; None: the four bytes after them."""


def main() -> None:
    """Damage the message of each rank of three, in every way; also where another's does not count.

    By default the ranks take turns with the ways.
    """
    tiling.TILE, tiling.BLOCK, tiling.SLOTS = 128, 64, 64
    peer_sums.RANGE, peer_sums.BLOCK, peer_sums.SEARCHES = 64, 8, 4
    rng = np.random.default_rng(6)
    noticed = 0
    for number, (spec, place, value) in enumerate(DAMAGED.values()):
        codec = get_codec(spec)
        ranks = range(3) if FULL else [number % 3]
        for damaged, exact in ((rank, other) for rank in ranks for other in (None, (rank + 1) % 3)):
            device = DirectDevice(torch.device("cpu"))
            grads = [_gradient(rng) for _ in range(3)]
            messages: list[Any] = []
            for grad in grads:
                own = device.begin_messages("w", [[EncodeItem(codec, device.from_host(grad))]])
                messages.append(DeviceMessage(own.data.clone(), own.staging))
            sent = bytearray(messages[damaged].data.numpy().tobytes())
            there = sent[place + 4 : place + 8] if value is None else value
            sent[place : place + len(there)] = there
            data = torch.frombuffer(sent, dtype=torch.uint8)
            messages[damaged] = DeviceMessage(data, messages[damaged].staging)
            memory = torch.full((NUMEL + 2 * GUARD,), 7.0)
            average = memory[GUARD : GUARD + NUMEL].zero_()
            out = device.array(average)
            to_add = [PeerItem(codec, out, [0] * 3)]
            device.add_messages(own, 0, to_add, messages, 1 / 3, exact)
            assert (memory[:GUARD] == 7).all()
            assert (memory[GUARD + NUMEL :] == 7).all()
            with pytest.raises(ProtocolError, match=rf"damaged message of rank {damaged} is in"):
                device.begin_messages("w", [[EncodeItem(codec, device.from_host(grads[0]))]])
            noticed += 1
    noticed += forgotten(rng)
    print(f"{noticed} damaged messages noticed")


def forgotten(rng: np.random.Generator) -> int:
    """Damage the message of an exchange that later steps no longer have."""
    codec = get_codec(RAW)
    device = DirectDevice(torch.device("cpu"))

    def begin(name: str) -> Any:
        return device.begin_messages(name, [[EncodeItem(codec, device.from_host(_gradient(rng)))]])

    begin("kept")
    own = begin("w")
    data = own.data.clone()
    data[0] ^= 1
    messages: list[Any] = [
        DeviceMessage(own.data.clone(), own.staging),
        DeviceMessage(data, own.staging),
    ]
    device.add_messages(own, 0, [PeerItem(codec, device.zeros(NUMEL), [0] * 2)], messages, 0.5)
    begin("kept")
    with pytest.raises(ProtocolError, match=r"damaged message of rank 1 is in .* exchange 'w'"):
        begin("kept")
    return 1


def _gradient(rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """Its first elements are kept, so that the first upper bits are set."""
    gradient = rng.standard_normal(NUMEL, np.float32)
    gradient[:8] *= 100
    return gradient


if __name__ == "__main__":
    main()
