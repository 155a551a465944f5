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
from torch_compressors.gpu.kernels import rotate
from torch_compressors.gpu.rotations import WARPS, Rotations
from torch_compressors.shared.staging import room

__all__ = ["KEPT", "Addition", "Form", "ToAdd", "form_of"]

BLOCK = 1024


class Form(NamedTuple):
    """The kernel that adds what frames of a codec hold, and its constants.

    Attributes:
        constants: beside B, elements of a program, or in its place.
        rotated: two launches, of rests and of blocks; see kernels/rotate.py.
    """

    kernel: Any
    constants: tuple[tuple[str, int], ...] = ()
    rotated: bool = False


KEPT = Form(kernels.add_kept_kernel)


@lru_cache(maxsize=256)
def form_of(spec: str) -> Form:
    """The form of a codec's frames.

    Args:
        spec: a codec's, without a memory.

    Raises:
        SpecError: there are no kernels for the codec.
    """
    name, stage = stage_of(spec)
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
        case "rotate|uniform":
            block = (("B", rotate.BLOCK.value), ("num_warps", WARPS))
            constants = (("BITS", level_bits(stage.params)), *block)
            return Form(kernels.add_rotated_kernel, constants, rotated=True)
        case _:
            raise AssertionError(f"{name} has kernels that encode, but none that adds")


class ToAdd(NamedTuple):
    """One rank's frame of a tensor, on the host.

    Attributes:
        acc: contiguous float32 of the tensor's size on the device, added to in place.
        values: kept values as float32, decoded from their wire type; or a payload as uint8, which the core
            has checked.
        indices: of kept values, distinct and below the tensor's size, as int32; the core checked them.
            None with a payload.
        stream: key of the frame's random numbers, for codecs that take them to decode.
    """

    acc: torch.Tensor
    values: npt.NDArray[Any]
    indices: npt.NDArray[np.int32] | None = None
    stream: int = 0


class Addition:
    """Parts of one rank's frames, which are copied to the device at once, with the table of their launch.

    The current stream copies, and the host does not wait.

    Args:
        form: of all tensors.
        tensors: with indices for `KEPT`, else with payloads. At least one.
    """

    def __init__(self, form: Form, tensors: Sequence[ToAdd], weight: float) -> None:
        self._form = form
        self._device = tensors[0].acc.device
        counts = [one.acc.numel() if one.indices is None else one.indices.size for one in tensors]
        rows = np.zeros((len(tensors), kernels.FIELDS.value), np.int64)
        rows[:, kernels.ACC.value] = [one.acc.data_ptr() for one in tensors]
        rows[:, kernels.COUNT.value] = counts
        rows[:, kernels.WEIGHT.value] = np.array(weight, np.float32).view(np.int32)
        if form.rotated:
            launches = self._rotate(rows, [one.stream for one in tensors])
        else:
            programs, rows[:, kernels.FIRST.value] = spread(counts, BLOCK)
            launches = [programs]
        own = [one.values for one in tensors]
        own += [one.indices for one in tensors if one.indices is not None]
        arrays = [rows, *launches, *own]
        rooms = [-(-array.nbytes // VECTOR_BYTES) * VECTOR_BYTES for array in arrays]
        ends = np.cumsum(rooms)
        begins = (ends - rooms).tolist()
        self._memory = torch.empty(int(ends[-1]), dtype=torch.uint8, device=self._device)
        places = np.array(begins[-len(own) :], np.int64) + self._memory.data_ptr()
        rows[:, kernels.VALUES.value] = places[: len(tensors)]
        if len(own) > len(tensors):
            rows[:, kernels.INDICES.value] = places[len(tensors) :]
        host = room(self._memory.numel(), torch.uint8, self._device)
        view = host.numpy()
        for begin, array in zip(begins, arrays, strict=True):
            view[begin : begin + array.nbytes] = array.reshape(-1).view(np.uint8)
        self._memory.copy_(host, non_blocking=True)
        self._table = self._memory[: rows.nbytes].view(torch.int64)
        self._launches = [
            self._memory[begin : begin + programs.nbytes].view(torch.int32)
            for begin, programs in zip(begins[1:], launches, strict=False)
        ]

    def launch(self) -> None:
        """Launch ``acc[index] += weight * value`` of kept elements, or ``acc += weight * decode(payload)``."""
        constants = {"B": BLOCK, **dict(self._form.constants), **EXACT}
        with current(self._device):
            for number, programs in enumerate(self._launches):
                if self._form.rotated:
                    constants["REST"] = number == 0
                if programs.numel():
                    self._form.kernel[(programs.numel(),)](self._table, programs, **constants)

    def _rotate(
        self, rows: npt.NDArray[np.int64], streams: Sequence[int]
    ) -> list[npt.NDArray[np.int32]]:
        """Fill in the fields of rotations; the tensors of the programs of both launches."""
        rotations = Rotations(rows[:, kernels.COUNT.value].tolist())
        shared = rotations.rests << rotations.log2
        self._shared = torch.empty(int(shared.sum()), device=self._device)
        rows[:, kernels.STREAM.value] = np.array(streams, np.uint64).view(np.int64)
        rows[:, kernels.LOG2.value] = rotations.log2
        rows[:, kernels.FACTOR.value] = rotations.factors
        rows[:, kernels.SHARED.value] = self._shared.data_ptr() + 4 * (np.cumsum(shared) - shared)
        rests, _ = spread(rotations.rests, 1)
        blocks, rows[:, kernels.FIRST.value] = spread(rotations.blocks, 1)
        return [rests, blocks]
