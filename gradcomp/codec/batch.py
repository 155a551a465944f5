"""Many tensors in one call, each with its own codec, stream and residual."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradcomp.codec.arrays import ByteArray, split
from gradcomp.codec.batch_items import AdvanceItem, DecodeItem, DifferItem, EncodeItem, GiveItem
from gradcomp.codec.devices import HOST, Device, Encoded, device_of
from gradcomp.stopwatch import timed

__all__ = [
    "advance_batch",
    "decode_batch_add",
    "differ_batch",
    "encode_batch",
    "give_batch",
    "launch_batch",
]


def encode_batch(tensors: Sequence[EncodeItem]) -> tuple[ByteArray, list[int]]:
    """Encode all tensors of a bucket.

    Each frame is that of `Codec.encode` for the tensor alone, except for codecs with ``whole_bucket``:
    ``globaltopk`` chooses among all elements of its tensors, and ``adaptive`` gives all of them one
    step size. All threads together encode each large tensor; small tensors are encoded in parallel,
    one thread each. The bytes depend neither on the threads nor on the tensors' devices.

    Returns:
        The frames, one after the other (`gradcomp.codec.frame.split_frames` cuts them apart), and
        the size of each frame in bytes.

    Raises:
        TypeError: an array is not C-contiguous float32.
        ValueError: a residual has another size than its gradient, or ``carried`` or ``basis`` than
            the codec's.
        CapacityError: a tensor has 2**30 elements or more.
    """
    launched = launch_batch(tensors)
    return HOST.encode(tensors)() if launched is None else launched()


def launch_batch(tensors: Sequence[EncodeItem]) -> Encoded | None:
    """Start encoding tensors in the memory of devices; None if all of them are on the host.

    Returns:
        A function that waits, and returns the result of `encode_batch`.
    """
    of_devices = _by_device([device_of(tensor.grad) for tensor in tensors])
    if all(device is HOST for device in of_devices):
        return None
    launched = [
        (places, device.encode([tensors[place] for place in places]))
        for device, places in of_devices.items()
    ]

    def wait() -> tuple[ByteArray, list[int]]:
        frames: dict[int, ByteArray] = {}
        for places, encoded in launched:
            data, sizes = encoded()
            frames.update(zip(places, split(data, sizes), strict=True))
        in_order = [frames[place] for place in range(len(tensors))]
        return np.concatenate(in_order), [frame.size for frame in in_order]

    return launched[0][1] if len(launched) == 1 else wait


@timed("decode")
def decode_batch_add(tensors: Sequence[DecodeItem], weight: float = 1.0) -> None:
    """``out += weight * decode(frame)`` for each frame of each tensor, in the order given.

    Raises:
        SpecError: a tensor has ``over_senders``, and its codec sends all elements.
        WireError: a frame is damaged, or was made by another codec, for another size or with
            another basis; the message names the rank and the tensor. Every ``out`` must be
            discarded.
        TypeError: an array is not C-contiguous, or of another dtype than float32 or uint8.
    """
    for device, places in _by_device([device_of(tensor.out) for tensor in tensors]).items():
        device.decode_add([tensors[place] for place in places], weight)


def give_batch(tensors: Sequence[GiveItem]) -> None:
    """Write exact gradients to their outputs; see `Device.give`."""
    for device, places in _by_device([device_of(tensor.grad) for tensor in tensors]).items():
        device.give([tensors[place] for place in places])


@timed("compensate")
def differ_batch(tensors: Sequence[DifferItem]) -> None:
    """Compute differences to estimates; see `DifferItem`."""
    for device, places in _by_device([device_of(tensor.grad) for tensor in tensors]).items():
        device.differ([tensors[place] for place in places])


@timed("compensate")
def advance_batch(tensors: Sequence[AdvanceItem]) -> None:
    """Add what was sent to estimates; see `AdvanceItem`."""
    for device, places in _by_device([device_of(tensor.mean) for tensor in tensors]).items():
        device.advance([tensors[place] for place in places])


def _by_device(devices: Sequence[Device]) -> dict[Device, list[int]]:
    """The places of each device in a list."""
    places: dict[Device, list[int]] = {}
    for place, device in enumerate(devices):
        places.setdefault(device, []).append(place)
    return places
