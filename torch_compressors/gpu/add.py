"""Adds decoded frames to averages on a device: one copy and one launch for each rank's part of a bucket.

The core checks frames and takes them apart; the parts come here. Ranks are added in the order of the
calls, so that all devices and hosts get the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from torch_compressors.gpu.bucket import EXACT, VECTOR_BYTES, current, spread
from torch_compressors.gpu.codecs import bucket_size, level_bits, stage_of
from torch_compressors.gpu.kernels import add as kernels
from torch_compressors.shared.staging import room

__all__ = ["KEPT", "Addition", "Form", "ToAdd", "form_of"]

BLOCK = 1024


class Form(NamedTuple):
    """The kernel that adds what frames of a codec hold, and its constants."""

    kernel: Any
    constants: tuple[tuple[str, int], ...] = ()


KEPT = Form(kernels.add_kept_kernel)


@lru_cache(maxsize=256)
def form_of(spec: str) -> Form | None:
    """The form of a codec's frames; None where none is added on devices.

    Args:
        spec: a codec's, without a memory.
    """
    found = stage_of(spec)
    if found is None:
        return None
    name, stage = found
    bucket = ("BUCKET", bucket_size(stage.params))
    match name:
        case "topk" | "randomk":
            return KEPT
        case "fp16" | "bf16":
            return Form(kernels.add_half_kernel, (("BF16", name == "bf16"),))
        case "sign" | "onebit":
            return Form(kernels.add_bits_kernel, (("ONE_BIT", name == "onebit"),))
        case "terngrad":
            return Form(kernels.add_ternary_kernel)
        case "int8" | "int4":
            return Form(kernels.add_integer_kernel, (("EACH", 1 if name == "int8" else 2), bucket))
        case "qsgd":
            levels, bits = ("LEVELS", int(stage.params["levels"])), level_bits(stage.params)  # type: ignore[arg-type]
            return Form(kernels.add_qsgd_kernel, (levels, ("BITS", bits), bucket))
        case "uniform":
            return Form(kernels.add_uniform_kernel, (("BITS", level_bits(stage.params)), bucket))
        case _:
            return None


class ToAdd(NamedTuple):
    """One rank's frame of a tensor, on the host.

    Attributes:
        acc: contiguous float32 of the tensor's size on the device, added to in place.
        values: kept values as float32, decoded from their wire type; or a payload as uint8, which the core
            has checked.
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

    def launch(self, form: Form) -> None:
        """Launch ``acc[index] += weight * value`` of kept elements, or ``acc += weight * decode(payload)``."""
        programs = self._programs.numel()
        if programs:
            constants = {**dict(form.constants), "B": BLOCK, **EXACT}
            with current(self._device):
                form.kernel[(programs,)](self._table, self._programs, **constants)
