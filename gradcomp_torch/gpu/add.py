"""Adds decoded frames to averages on a device: one copy and one launch for each rank's part of a bucket.

Frames come from the core, which checks them and takes them apart. Ranks are added in the order of the calls, so
that all devices and hosts get the same bits. Messages that stay on devices: see peer_sums.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from gradcomp_torch.gpu.arrays import OnDevice
from gradcomp_torch.gpu.bucket import EXACT, current, spread
from gradcomp_torch.gpu.codecs import stage_of
from gradcomp_torch.gpu.encoders.params import FLOAT_TYPES, bucket_size, level_bits, number
from gradcomp_torch.gpu.kernels import add as kernels
from gradcomp_torch.gpu.kernels import rotate
from gradcomp_torch.gpu.rotations import WARPS, Rotations

__all__ = [
    "HELD",
    "KEPT",
    "ZERO",
    "AddItem",
    "Addition",
    "Form",
    "form_of",
    "launch",
    "lay_out",
]

BLOCK = 1024

HELD: int = kernels.HELD.value
ZERO: int = kernels.ZERO.value


class Form(NamedTuple):
    """The kernel that adds what frames of a codec hold, and its constants.

    Attributes:
        constants: besides B, the elements of a program, or instead of it.
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
        case "topk" | "sampled_topk" | "randomk":
            return KEPT
        case "identity" | "fp16" | "bf16":
            return Form(kernels.add_floats_kernel, (("TYPE", FLOAT_TYPES[name]),))
        case "sign" | "onebit":
            return Form(kernels.add_bits_kernel, (("ONE_BIT", name == "onebit"),))
        case "terngrad":
            return Form(kernels.add_ternary_kernel)
        case "int8" | "int4":
            return Form(kernels.add_integer_kernel, (("EACH", 1 if name == "int8" else 2), bucket))
        case "qsgd":
            levels, bits = ("LEVELS", int(number(stage.params, "levels"))), level_bits(stage.params)
            return Form(kernels.add_qsgd_kernel, (levels, ("BITS", bits), bucket))
        case "uniform":
            return Form(kernels.add_uniform_kernel, (("BITS", level_bits(stage.params)), bucket))
        case "rotate|uniform":
            block = (("B", rotate.BLOCK.value), ("num_warps", WARPS))
            constants = (("BITS", level_bits(stage.params)), *block)
            return Form(kernels.add_rotated_kernel, constants, rotated=True)
        case _:
            raise AssertionError(f"{name} has kernels that encode, but none that adds")


class AddItem(NamedTuple):
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


class Layout(NamedTuple):
    """A launch of a form, or two.

    Attributes:
        rows: the table on the host, but for the pointers to what is added.
        programs: for each launch, the tensor of each program.
        scratch: memory that the launches share; it lives as long as they do.
    """

    rows: npt.NDArray[np.int64]
    programs: list[npt.NDArray[np.int32]]
    scratch: torch.Tensor | None


def lay_out(
    form: Form,
    accs: Sequence[torch.Tensor],
    counts: Sequence[int],
    streams: Sequence[int],
    weight: float,
) -> Layout:
    """The launches for tensors of one form.

    Args:
        accs: contiguous float32, to which kernels add.
        counts: elements to add to each.
        streams: key of each frame's random numbers, for codecs that take them to decode.
    """
    rows = np.zeros((len(accs), kernels.FIELDS.value), np.int64)
    rows[:, kernels.ACC.value] = [acc.data_ptr() for acc in accs]
    rows[:, kernels.COUNT.value] = counts
    rows[:, kernels.WEIGHT.value] = np.array(weight, np.float32).view(np.int32)
    if not form.rotated:
        programs, rows[:, kernels.FIRST.value] = spread(counts, BLOCK)
        return Layout(rows, [programs], None)
    rotations = Rotations(counts)
    elements = rotations.rests << rotations.log2
    scratch = torch.empty(int(elements.sum()), dtype=torch.float32, device=accs[0].device)
    rows[:, kernels.STREAM.value] = np.array(streams, np.uint64).view(np.int64)
    rows[:, kernels.LOG2.value] = rotations.log2
    rows[:, kernels.FACTOR.value] = rotations.factors
    rows[:, kernels.SHARED.value] = scratch.data_ptr() + 4 * (np.cumsum(elements) - elements)
    rests, _ = spread(rotations.rests, 1)
    blocks, rows[:, kernels.FIRST.value] = spread(rotations.blocks, 1)
    return Layout(rows, [rests, blocks], scratch)


def launch(
    form: Form,
    table: torch.Tensor,
    programs: Sequence[torch.Tensor],
    ranks: int = 1,
    start: int = HELD,
) -> None:
    """Launch a form's kernels on the current stream.

    Args:
        table: of all tensors, one rank after the other.
        ranks: 1 with `KEPT`.
        start: one of the numbers of kernels/add.py; `HELD` with `KEPT`.
    """
    constants = {"B": BLOCK, **dict(form.constants), **EXACT}
    if form is not KEPT:
        count = table.numel() // kernels.FIELDS.value // ranks
        constants.update(START=start, ranks=ranks, count=count)
    with current(table.device):
        for number, tensors in enumerate(programs):
            if form.rotated:
                constants["REST"] = number == 0
            if tensors.numel():
                form.kernel[(tensors.numel(),)](table, tensors, **constants)


class Addition:
    """Parts of one rank's frames, which are copied to the device at once, with the table of their launch.

    The current stream copies, and the host does not wait.

    Args:
        form: of all tensors.
        tensors: with indices for `KEPT`, else with payloads. At least one.
        start: as in `launch`.
    """

    def __init__(
        self, form: Form, tensors: Sequence[AddItem], weight: float, start: int = HELD
    ) -> None:
        self._form, self._start = form, start
        counts = [
            tensor.acc.numel() if tensor.indices is None else tensor.indices.size
            for tensor in tensors
        ]
        streams = [tensor.stream for tensor in tensors]
        self._layout = lay_out(form, [tensor.acc for tensor in tensors], counts, streams, weight)
        rows, programs, _ = self._layout
        inputs = [tensor.values for tensor in tensors]
        inputs += [tensor.indices for tensor in tensors if tensor.indices is not None]
        arrays: list[npt.NDArray[Any]] = [rows, *programs, *inputs]
        there = OnDevice.empty(arrays, tensors[0].acc.device)
        places = np.array(there.begins[-len(inputs) :], np.int64) + there.memory.data_ptr()
        rows[:, kernels.VALUES.value] = places[: len(tensors)]
        if len(inputs) > len(tensors):
            rows[:, kernels.INDICES.value] = places[len(tensors) :]
        there.fill(arrays)
        self._table = there.part(0, rows, torch.int64)
        self._programs = [
            there.part(1 + number, array, torch.int32) for number, array in enumerate(programs)
        ]

    def launch(self) -> None:
        """Launch ``acc[index] += weight * value`` of kept elements, or ``acc += weight * decode(payload)``."""
        launch(self._form, self._table, self._programs, start=self._start)
