"""Adds decoded frames to averages on a device: one copy and one launch for each rank's part of a bucket.

The core checks frames and takes them apart; the parts come here. Ranks are added in the order of the
calls, so that all devices and hosts get the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from torch_compressors.gpu.bucket import EXACT, VECTOR_BYTES, current, spread
from torch_compressors.gpu.kernels import add as kernels
from torch_compressors.shared.staging import room

__all__ = ["Addition", "ToAdd"]

BLOCK = 1024


class ToAdd(NamedTuple):
    """One rank's frame of a tensor, on the host.

    Attributes:
        acc: contiguous float32 of the tensor's size on the device, added to in place.
        values: kept values as float32, decoded from their wire type; or the payload of `fp16` or `bf16`
            as uint8.
        indices: of kept values, distinct and below the tensor's size, as int32; the core checked them.
            None with a payload.
    """

    acc: torch.Tensor
    values: npt.NDArray[Any]
    indices: npt.NDArray[np.int32] | None = None


class Addition:
    """Parts of one rank's frames, which are copied to the device at once, with the table of their launch.

    The current stream copies, and the host does not wait.

    Args:
        tensors: all with indices, or all with a payload. At least one.
    """

    def __init__(self, tensors: Sequence[ToAdd], weight: float) -> None:
        self._device = tensors[0].acc.device
        counts = [one.acc.numel() if one.indices is None else one.indices.size for one in tensors]
        programs, first = spread(counts, BLOCK)
        rows = np.zeros((len(tensors), kernels.FIELDS.value), np.int64)
        arrays = [rows, programs, *(one.values for one in tensors)]
        arrays += [one.indices for one in tensors if one.indices is not None]
        rooms = [-(-array.nbytes // VECTOR_BYTES) * VECTOR_BYTES for array in arrays]
        ends = np.cumsum(rooms)
        begins = (ends - rooms).tolist()
        self._memory = torch.empty(int(ends[-1]), dtype=torch.uint8, device=self._device)
        places = np.array(begins, np.int64) + self._memory.data_ptr()
        count = len(tensors)
        rows[:, kernels.ACC.value] = [one.acc.data_ptr() for one in tensors]
        rows[:, kernels.VALUES.value] = places[2 : 2 + count]
        if len(arrays) > 2 + count:
            rows[:, kernels.INDICES.value] = places[2 + count :]
        rows[:, kernels.COUNT.value] = counts
        rows[:, kernels.FIRST.value] = first
        rows[:, kernels.WEIGHT.value] = np.array(weight, np.float32).view(np.int32)
        host = room(self._memory.numel(), torch.uint8, self._device)
        view = host.numpy()
        for begin, array in zip(begins, arrays, strict=True):
            view[begin : begin + array.nbytes] = array.reshape(-1).view(np.uint8)
        self._memory.copy_(host, non_blocking=True)
        self._table = self._memory[: rows.nbytes].view(torch.int64)
        self._programs = self._memory[begins[1] : begins[1] + programs.nbytes].view(torch.int32)

    def kept(self) -> None:
        """Launch ``acc[index] += weight * value``. 16 bytes per kept element."""
        self._launch(kernels.add_kept_kernel)

    def half(self, *, bf16: bool) -> None:
        """Launch ``acc += weight * decode(payload)``. 10 bytes per element."""
        self._launch(kernels.add_half_kernel, BF16=bf16)

    def _launch(self, kernel: Any, **constants: bool) -> None:
        programs = self._programs.numel()
        if programs:
            with current(self._device):
                kernel[(programs,)](self._table, self._programs, **constants, B=BLOCK, **EXACT)
