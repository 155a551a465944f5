"""Adds decoded frames to averages on a device, a launch for each rank's part of a bucket.

The core checks frames and takes them apart; the parts come here. Ranks are added in the order of the
calls, so that all devices and hosts get the same bits. Not run on any GPU so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from torch_compressors.gpu.bucket import EXACT, current, divide, upload
from torch_compressors.gpu.kernels import add as kernels

__all__ = ["ToAdd", "ToAddHalf", "add_half", "add_kept"]

BLOCK = 1024


class ToAdd(NamedTuple):
    """Kept elements of one rank's frame of a tensor.

    Attributes:
        acc: contiguous float32 of the tensor's size, added to in place.
        indices: int32, distinct and below its size; the core checked them.
        values: float32, as many, decoded from their wire type.
    """

    acc: torch.Tensor
    indices: torch.Tensor
    values: torch.Tensor


class ToAddHalf(NamedTuple):
    """One rank's payload of `fp16` or `bf16` for a tensor.

    Attributes:
        acc: contiguous float32, added to in place.
        payload: uint8 of twice as many elements, at an even address.
    """

    acc: torch.Tensor
    payload: torch.Tensor


def add_kept(tensors: Sequence[ToAdd], weight: float) -> None:
    """``acc[index] += weight * value``, for all tensors in one launch. 16 bytes per kept element."""
    if not tensors:
        return
    counts = [tensor.indices.numel() for tensor in tensors]
    pointers = [(t.acc.data_ptr(), t.values.data_ptr(), t.indices.data_ptr()) for t in tensors]
    _launch(tensors[0].acc.device, pointers, counts, weight, kernels.add_kept_kernel)


def add_half(tensors: Sequence[ToAddHalf], weight: float, *, bf16: bool) -> None:
    """``acc += weight * decode(payload)``, for all tensors in one launch. 10 bytes per element."""
    if not tensors:
        return
    counts = [tensor.acc.numel() for tensor in tensors]
    pointers = [(t.acc.data_ptr(), t.payload.data_ptr(), 0) for t in tensors]
    _launch(tensors[0].acc.device, pointers, counts, weight, kernels.add_half_kernel, BF16=bf16)


def _launch(
    device: torch.device,
    pointers: Sequence[tuple[int, int, int]],
    counts: Sequence[int],
    weight: float,
    kernel: object,
    **constants: bool,
) -> None:
    work = divide(counts, BLOCK, device)
    if not work.programs:
        return
    rows = np.zeros((len(counts), kernels.FIELDS.value), np.int64)
    rows[:, : kernels.COUNT.value] = pointers
    rows[:, kernels.COUNT.value] = counts
    rows[:, kernels.FIRST.value] = work.first
    rows[:, kernels.WEIGHT.value] = np.array(weight, np.float32).view(np.int32)
    with current(device):
        kernel[(work.programs,)](  # type: ignore[index]
            upload(rows, device), work.tensors, **constants, B=BLOCK, **EXACT
        )
