"""Speeds of kernels as fractions of a copy's, of copies to and from the host, and of whole frames."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from gpulab.clock import Clock, Work
from gpulab.operations import BETA, GAMMA, OPERATIONS, Operation
from gradcomp import DecodeItem, EncodeItem, _core, encode_batch, get_codec
from gradcomp_torch.devices import TensorArray, TensorDevice
from gradcomp_torch.gpu.device import TorchDevice

__all__ = ["copies", "frames", "kernels"]

Row = dict[str, Any]

CACHE = 256 * 2**20
"""Bytes that no cache holds: works on smaller tensors take turns on that many."""

SPEC = "topk(ratio=0.01)"
RANKS = 8
THREADS = (1, 8)
"""Of the core, which codes and reads frames."""


def copies(clock: Clock, numel: int = 2**28) -> Row:
    """Bandwidth of copies, in GB/s: on the device read plus written, to and from the host one way."""
    device = clock.device
    source = torch.zeros(numel, device=device)
    to = torch.empty_like(source)
    bytes_ = 4 * numel
    row: Row = {"device": 2 * bytes_ / clock.launched([lambda: to.copy_(source)]) / 1e6}
    pinned = device.type != "cpu"
    part = source[: max(1, numel // 4)]
    for name, host in (
        ("pinned", torch.empty(part.shape, pin_memory=pinned)),
        ("pageable", torch.empty(part.shape)),
    ):
        for way, work in (
            ("to the host", _copy(host, part, name == "pinned")),
            ("to the device", _copy(part, host, name == "pinned")),
        ):
            row[f"{name}, {way}"] = 4 * part.numel() / clock.launched([work]) / 1e6
    return row


def _copy(to: torch.Tensor, source: torch.Tensor, non_blocking: bool) -> Work:
    return lambda: to.copy_(source, non_blocking=non_blocking)


def kernels(clock: Clock, numels: Sequence[int], copied: float) -> list[Row]:
    """Times of all operations, in ms; ``copied`` is the device's bandwidth of a copy in GB/s."""
    return [
        _operation(clock, operation, numel, copied) for operation in OPERATIONS for numel in numels
    ]


def _operation(clock: Clock, operation: Operation, numel: int, copied: float) -> Row:
    turns = max(1, math.ceil(CACHE / (operation.bytes * numel)))
    works = [operation.make(numel, clock.device) for _ in range(turns)]
    row: Row = {
        "name": operation.name,
        "numel": numel,
        "bytes": operation.bytes,
        "target": operation.target,
    }
    row["launched"] = clock.launched(works)
    row["graph"] = clock.in_graph(works)
    row["fraction"] = operation.bytes * numel / row["graph"] / 1e6 / copied
    others = [work for _ in works if (work := operation.other(numel, clock.device)) is not None]
    row["package"] = operation.package if others else None
    row["other"] = clock.launched(others) if others else None
    return row


def frames(clock: Clock, numels: Sequence[int], tensors: int = 50) -> list[Row]:
    """A bucket of some tensors, with error feedback, to frames on the host, in ms of the host's clock.

    ``launched`` is until the call returns, ``done`` until the frames are there; ``host`` is the same
    by the core, from the gradients on the device on. ``added`` is until the frames of 8 ranks are
    added to averages on the device.
    """
    device = TorchDevice(clock.device)
    before = _core.thread_count()
    rows = []
    for threads in THREADS:
        _core.set_thread_count(threads)
        rows += [_frames(clock, device, numel, tensors, threads) for numel in numels]
    _core.set_thread_count(before)
    return rows


def _frames(clock: Clock, device: TensorDevice, numel: int, tensors: int, threads: int) -> Row:
    items = _bucket(device, clock.device, numel, tensors)
    waits: list[Work] = []
    return {
        "name": f"residual|{SPEC}",
        "numel": numel,
        "tensors": tensors,
        "threads": threads,
        "launched": clock.host(lambda: waits.append(device.encode(items)), lambda: waits.pop()()),
        "done": clock.host(lambda: device.encode(items)()),
        "host": clock.host(_on_host(items, clock)),
        "added": clock.host(_adds(device, items, clock)),
    }


def _bucket(
    device: TensorDevice, place: torch.device, numel: int, tensors: int
) -> list[EncodeItem]:
    """Gradients that are neighbours in memory, as those of a bucket of DDP."""
    codec = get_codec(SPEC)
    each = max(1, numel // tensors)
    items = []
    memory = torch.randn(each * tensors, device=place)
    for number in range(tensors):
        grad = device.array(memory[number * each : (number + 1) * each])
        items.append(EncodeItem(codec, grad, 0, 0, number, device.zeros(each), BETA, GAMMA))
    return items


def _adds(device: TensorDevice, items: Sequence[EncodeItem], clock: Clock) -> Work:
    """The frames of one rank stand for those of all."""
    data, sizes = device.encode(items)()
    begins = np.cumsum([0, *sizes])
    out = [
        DecodeItem(
            str(i),
            item.codec,
            [data[begins[i] : begins[i + 1]]] * RANKS,
            device.zeros(item.grad.size),
        )
        for i, item in enumerate(items)
    ]

    def work() -> None:
        device.decode_add(out, 1 / RANKS)
        clock.synchronize()

    return work


def _tensor(array: object) -> torch.Tensor:
    assert isinstance(array, TensorArray)  # of a device
    return array.tensor


def _on_host(items: Sequence[EncodeItem], clock: Clock) -> Work:
    """The gradients are copied to pinned memory; residuals are on the host."""
    grads = [_tensor(item.grad) for item in items]
    pinned = grads[0].device.type != "cpu"
    hosts = [torch.empty(grad.shape, pin_memory=pinned) for grad in grads]
    host_items = [
        item._replace(grad=host.numpy(), residual=np.zeros(host.numel(), np.float32))
        for item, host in zip(items, hosts, strict=True)
    ]

    def work() -> None:
        for host, grad in zip(hosts, grads, strict=True):
            host.copy_(grad, non_blocking=True)
        clock.synchronize()
        encode_batch(host_items)

    return work
