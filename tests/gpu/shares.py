"""`sparse_allreduce` from device to device next to ranks on the host, with interpreted kernels: python shares.py

Prints the number of steps that were compared, and of damaged messages that were noticed; anything else is an error.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import pytest
import torch

import gpu.quick_interpreter  # noqa: F401
from gpu.guards import guard_all_tensors, used_guards
from gpu.share_comparisons import CASES, steps
from gradcomp import EncodeItem, ProtocolError, get_codec
from gradcomp.codec.shares import SHARE_BLOCK, Shares
from gradcomp.exchange.automatic import share_link_bytes
from gradcomp_torch.device_messages import DeviceMessage
from gradcomp_torch.gpu import peer_sums
from gradcomp_torch.gpu.encoders import tiling
from gradcomp_torch.gpu.packed import packed_size
from gradcomp_torch.gpu.peer_device import DirectDevice
from gradcomp_torch.gpu.peer_send import HEADER
from support.scope import FULL, by_scope

CPU = torch.device("cpu")


def main() -> None:
    """Small programs, so that a share has elements of several."""
    np.seterr(invalid="ignore")
    guard_all_tensors()
    tiling.TILE, tiling.BLOCK, tiling.SLOTS = 256, 64, 128
    peer_sums.RANGE, peer_sums.BLOCK, peer_sums.SEARCHES = 128, 64, 16
    print(f"{compare()} steps compared")
    print(f"{notice()} damaged messages noticed")
    check_sizes()
    faults = list(used_guards())
    assert not faults, faults


def compare() -> int:
    """Steps with all specs and gradients; by default these take turns."""
    compared, count = 0, by_scope(2, 3)
    for case in range(len(CASES)) if FULL else (1, 2):
        faults = list(steps(case, by_scope(3, 4), count, CPU))
        assert not faults, faults
        compared += count
    return compared


NUMEL, SHARES = 600, Shares(600, 90, 3)
NUMBER, UPPER = HEADER, HEADER + 4
"""Places in a first message: the number of elements, and the upper bits of positions, of which each has 1 lower bit."""
WORDS = packed_size(SHARES.size, SHARES.slots).upper

SCATTERED = {
    "another bucket": (0, b"\1"),
    "more elements than slots": (NUMBER, np.int32(SHARES.slots + 1).tobytes()),
    "fewer elements than none": (NUMBER, np.int32(-1).tobytes()),
    "fewer elements than were packed": (NUMBER, np.int32(1).tobytes()),
    "no position": (UPPER, b"\0" * 4 * WORDS),
    "positions beyond the share": (UPPER, b"\0" * 4 * (WORDS - 1) + b"\xff" * 4),
    "all upper bits": (UPPER, b"\xff" * 4 * WORDS),
}
"""A place of a first message, and what is there instead."""

GATHERED = {
    "another share": (0, b"\1"),
    "no position": (HEADER, b"\0" * 4 * 3),
    "positions beyond the share": (HEADER, b"\0" * 4 * 2 + b"\xff" * 4),
}
"""As `SCATTERED`, of second messages, whose positions have 3 words of upper bits."""


def notice() -> int:
    """Damage the message of one rank of three, in every way: the next step says so, and other shares are as ever."""
    rng = np.random.default_rng(0)
    grads = [rng.standard_normal(NUMEL, np.float32) for _ in range(3)]
    for number, (place, value) in enumerate(SCATTERED.values()):
        _exchange(grads, number % 3, place, value, "scatter")
    for number, (place, value) in enumerate(GATHERED.values()):
        wrong, right = (
            _exchange(grads, number % 3, place, there, "gather") for there in (value, None)
        )
        block = np.arange(NUMEL) // SHARE_BLOCK
        others = (block + block // 3) % 3 != number % 3
        assert (wrong[others] == right[others]).all()
    return len(SCATTERED) + len(GATHERED)


def _exchange(
    grads: Sequence[np.ndarray], damaged: int, place: int, value: bytes | None, phase: str
) -> np.ndarray:
    """The average on rank 1 with a damaged message of a rank in a phase; without a value none is damaged."""
    codec, choice = get_codec("topk(k=90)"), get_codec(f"topk(k={SHARES.chosen})")
    devices = [DirectDevice(CPU) for _ in grads]
    gathered = []

    def of_phase(this: str, messages: list[DeviceMessage]) -> list[Any]:
        if phase == this and value is not None:
            sent = messages[damaged].data.clone()
            sent[place : place + len(value)] = torch.frombuffer(bytearray(value), dtype=torch.uint8)
            messages[damaged] = DeviceMessage(sent, messages[damaged].staging)
        return messages

    def begin(rank: int) -> Any:
        device = devices[rank]
        tensors = [EncodeItem(codec, device.from_host(grads[rank]))]
        return device.begin_shares("scatter", tensors, SHARES, rank)

    def choose(device: DirectDevice, total: Any, lost: Any) -> Any:
        item = EncodeItem(choice, total, residual=lost, beta=0.0)
        return device.begin_messages("gather", [[item]])

    scattered = [begin(rank) for rank in range(3)]
    size = scattered[0].splits[0]
    for rank, device in enumerate(devices):
        messages = [one[rank * size : (rank + 1) * size] for one in scattered]
        sums = device.add_shares(scattered[rank], of_phase("scatter", messages))
        gathered.append(choose(device, *sums))
    device, out = devices[1], devices[1].zeros(NUMEL)
    received = of_phase("gather", [one[:] for one in gathered])
    device.collect_shares(scattered[1], gathered[1], choice, received, [out])
    if value is not None:
        again = partial(begin, 1) if phase == "scatter" else partial(choose, device, *sums)
        with pytest.raises(ProtocolError, match=f"damaged message of rank {damaged} is in"):
            again()
    return device.to_host(out)


def check_sizes() -> None:
    """Messages have the sizes by which `auto` chooses."""
    device, shares = DirectDevice(CPU), Shares(16384, 1638, 8)
    gradient = device.from_host(np.ones(shares.numel, np.float32))
    sent = device.begin_shares(
        "scatter", [EncodeItem(get_codec("topk(k=1638)"), gradient)], shares, 0
    )
    average = device.from_host(np.ones(shares.size, np.float32))
    choice = get_codec(f"topk(k={shares.chosen})")
    gathered = device.begin_messages("gather", [[EncodeItem(choice, average)]])
    nbytes = 7 / 8 * sum(sent.splits) + 7 * gathered.nbytes
    assert nbytes == pytest.approx(share_link_bytes(shares, "fp32"), rel=0.03)


if __name__ == "__main__":
    main()
