"""Adds decoded frames to averages on a device: one copy and one launch for each rank's part of a bucket.

Frames come from the core, which checks them and takes them apart (`Addition`), or in messages that stay on
devices (`SharedAddition`). Ranks are added in the order of the calls, so that all devices and hosts get the same
bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from torch_compressors.gpu import packed
from torch_compressors.gpu.arrays import OnDevice
from torch_compressors.gpu.bucket import EXACT, current, spread
from torch_compressors.gpu.codecs import counts_kept, packs_indices, stage_of
from torch_compressors.gpu.encoders.params import FLOAT_TYPES, VALUE_TYPES, bucket_size, level_bits
from torch_compressors.gpu.kernels import add as kernels
from torch_compressors.gpu.kernels import packed as unpacking
from torch_compressors.gpu.kernels import rotate
from torch_compressors.gpu.rotations import WARPS, Rotations

__all__ = [
    "KEPT",
    "Addition",
    "Form",
    "Place",
    "SharedAddition",
    "SharedTensor",
    "ToAdd",
    "form_of",
    "form_of_shared",
]

BLOCK = 1024


class Form(NamedTuple):
    """The kernel that adds what frames of a codec hold, and its constants.

    Attributes:
        constants: beside B, elements of a program, or in its place.
        rotated: two launches, of rests and of blocks; see kernels/rotate.py.
        packed: indices are unpacked before; see kernels/packed.py.
    """

    kernel: Any
    constants: tuple[tuple[str, int], ...] = ()
    rotated: bool = False
    packed: bool = False

    @property
    def sparse(self) -> bool:
        """Whether frames hold kept elements."""
        return self.kernel in (kernels.add_kept_kernel, kernels.add_shared_kept_kernel)


KEPT = Form(kernels.add_kept_kernel)


@lru_cache(maxsize=256)
def form_of_shared(spec: str, *, assigns: bool = False) -> Form:
    """The form of a codec's results in messages of devices; see `form_of`.

    Args:
        assigns: kept elements are assigned, not added.
    """
    form = form_of(spec)
    if form is not KEPT:
        return form
    _, stage = stage_of(spec)
    constants = {
        "TYPE": VALUE_TYPES[str(stage.params["values"])],
        "ASSIGNS": assigns,
        "COUNTS": counts_kept(spec),
    }
    return Form(
        kernels.add_shared_kept_kernel, tuple(constants.items()), packed=packs_indices(spec)
    )


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
    rows[:, kernels.NUMEL.value] = [acc.numel() for acc in accs]
    rows[:, kernels.COUNT.value] = counts
    rows[:, kernels.WEIGHT.value] = np.array(weight, np.float32).view(np.int32)
    if not form.rotated:
        programs, rows[:, kernels.FIRST.value] = spread(counts, BLOCK)
        return Layout(rows, [programs], None)
    rotations = Rotations(counts)
    elements = rotations.rests << rotations.log2
    scratch = torch.empty(int(elements.sum()), device=accs[0].device)
    rows[:, kernels.STREAM.value] = np.array(streams, np.uint64).view(np.int64)
    rows[:, kernels.LOG2.value] = rotations.log2
    rows[:, kernels.FACTOR.value] = rotations.factors
    rows[:, kernels.SHARED.value] = scratch.data_ptr() + 4 * (np.cumsum(elements) - elements)
    rests, _ = spread(rotations.rests, 1)
    blocks, rows[:, kernels.FIRST.value] = spread(rotations.blocks, 1)
    return Layout(rows, [rests, blocks], scratch)


def launch(
    form: Form, table: torch.Tensor, programs: Sequence[torch.Tensor], *arguments: torch.Tensor
) -> None:
    """Launch a form's kernels on the current stream."""
    constants = {"B": BLOCK, **dict(form.constants), **EXACT}
    with current(table.device):
        for number, tensors in enumerate(programs):
            if form.rotated:
                constants["REST"] = number == 0
            if tensors.numel():
                form.kernel[(tensors.numel(),)](table, tensors, *arguments, **constants)


class Addition:
    """Parts of one rank's frames, which are copied to the device at once, with the table of their launch.

    The current stream copies, and the host does not wait.

    Args:
        form: of all tensors.
        tensors: with indices for `KEPT`, else with payloads. At least one.
    """

    def __init__(self, form: Form, tensors: Sequence[ToAdd], weight: float) -> None:
        self._form = form
        counts = [one.acc.numel() if one.indices is None else one.indices.size for one in tensors]
        streams = [one.stream for one in tensors]
        self._layout = lay_out(form, [one.acc for one in tensors], counts, streams, weight)
        rows, programs, _ = self._layout
        own = [one.values for one in tensors]
        own += [one.indices for one in tensors if one.indices is not None]
        arrays: list[npt.NDArray[Any]] = [rows, *programs, *own]
        there = OnDevice.empty(arrays, tensors[0].acc.device)
        places = np.array(there.begins[-len(own) :], np.int64) + there.memory.data_ptr()
        rows[:, kernels.VALUES.value] = places[: len(tensors)]
        if len(own) > len(tensors):
            rows[:, kernels.INDICES.value] = places[len(tensors) :]
        there.fill(arrays)
        self._table = there.part(0, rows, torch.int64)
        self._programs = [
            there.part(1 + number, array, torch.int32) for number, array in enumerate(programs)
        ]

    def launch(self) -> None:
        """Launch ``acc[index] += weight * value`` of kept elements, or ``acc += weight * decode(payload)``."""
        launch(self._form, self._table, self._programs)


class Place(NamedTuple):
    """Where a tensor's result begins in a message, in bytes.

    Attributes:
        values: of a payload, a multiple of 16; or of kept values.
        indices: of kept elements; 0 with a payload.
        elements: as of `Shared`.
        present: of the number of kept elements that there are; 0: all.
    """

    values: int
    indices: int
    elements: int
    present: int = 0


class SharedTensor(NamedTuple):
    """One tensor that all ranks have shared.

    Attributes:
        acc: as of `ToAdd`.
        place: of the tensor's result in each rank's message.
        streams: as of `gradcomp`'s `ToAddShared`.
    """

    acc: torch.Tensor
    place: Place
    streams: Sequence[int]


class SharedAddition:
    """Additions of the results of tensors in all ranks' messages; one for all steps of a bucket.

    Args:
        form: of all tensors, from `form_of_shared`.

    Attributes:
        version: another number for other launches: while it stays, they can be replayed.
    """

    def __init__(self, form: Form) -> None:
        self.version = 0
        self._form = form
        self._given: object = None
        self._streams: list[Sequence[int]] = []
        self._tables: list[torch.Tensor] = []
        self._programs: list[torch.Tensor] = []
        self._scratch: list[torch.Tensor | None] = []

    def prepare(
        self, tensors: Sequence[SharedTensor], messages: Sequence[torch.Tensor], weight: float
    ) -> None:
        """Tell kernels about a step's tensors; copies only where it changed."""
        given = (
            [(one.acc.data_ptr(), one.place) for one in tensors],
            [message.data_ptr() for message in messages],
            weight,
        )
        streams = [one.streams for one in tensors] if self._form.rotated else []
        if given != self._given:
            self._prepare(tensors, messages, weight)
            self._given, self._streams = given, streams
            self.version += 1
        elif streams != self._streams:
            self._arrays[0][:, :, kernels.STREAM.value] = np.array(streams, np.uint64).T.view(
                np.int64
            )
            self._there.fill(self._arrays)
            self._streams = streams

    def launch(self, damaged: torch.Tensor) -> None:
        """Add rank after rank, on the current stream of the current device.

        Args:
            damaged: int32 [ranks, 4], whose first column becomes 1 where kept elements are none of the tensor.
        """
        if self._form.packed:
            self._unpack()
        for rank, table in enumerate(self._tables):
            checks = (damaged[rank],) if self._form.sparse else ()
            launch(self._form, table, self._programs, *checks)

    def _prepare(
        self, tensors: Sequence[SharedTensor], messages: Sequence[torch.Tensor], weight: float
    ) -> None:
        accs = [one.acc for one in tensors]
        counts = [one.place.elements for one in tensors]
        places = np.array(
            [(one.place.values, one.place.indices, one.place.present) for one in tensors], np.int64
        )
        layouts = [
            lay_out(self._form, accs, counts, [one.streams[rank] for one in tensors], weight)
            for rank in range(len(messages))
        ]
        for (rows, _, _), message in zip(layouts, messages, strict=True):
            rows[:, kernels.VALUES.value] = places[:, 0] + message.data_ptr()
            rows[:, kernels.INDICES.value] = places[:, 1] + message.data_ptr()
            rows[:, kernels.COUNTED.value] = places[:, 2] + message.data_ptr()
        self._scratch = [layout.scratch for layout in layouts]
        if self._form.packed:
            self._prepare_unpacking(tensors, messages, [rows for rows, _, _ in layouts])
        tables = np.stack([layout.rows for layout in layouts])
        programs = layouts[0].programs
        arrays: list[npt.NDArray[Any]] = [tables, *programs]
        there = OnDevice.empty(arrays, accs[0].device)
        there.fill(arrays)
        self._arrays, self._there = arrays, there
        self._tables = list(there.part(0, tables, torch.int64).view(len(messages), -1))
        self._programs = [
            there.part(1 + number, array, torch.int32) for number, array in enumerate(programs)
        ]

    def _prepare_unpacking(
        self,
        tensors: Sequence[SharedTensor],
        messages: Sequence[torch.Tensor],
        of_ranks: Sequence[npt.NDArray[np.int64]],
    ) -> None:
        """Lay out the lists of all ranks' tensors, and let the rows' indices be unpacked ones."""
        counts = [one.place.elements for one in tensors]
        sizes = [packed.packed_size(one.acc.numel(), one.place.elements) for one in tensors]
        ranks = len(messages)
        device = tensors[0].acc.device
        self._indices = torch.empty(ranks * sum(counts), dtype=torch.int32, device=device)
        begins = np.cumsum(counts * ranks) - counts * ranks
        unpacked = self._indices.data_ptr() + 4 * begins
        for rows, own in zip(of_ranks, np.split(unpacked, ranks), strict=True):
            rows[:, kernels.INDICES.value] = own
        words = [message.data_ptr() + one.place.indices for message in messages for one in tensors]
        programs = sum(-(-size.upper // packed.WORDS) for size in sizes) * ranks
        self._partial = torch.empty(programs, dtype=torch.int32, device=device)
        arrays = packed.unpack_table(
            sizes * ranks, counts * ranks, words, unpacked.tolist(), self._partial.data_ptr()
        )
        there = OnDevice.empty(arrays, device)
        there.fill(arrays)
        self._lists = there.part(0, arrays[0], torch.int64), there.part(1, arrays[1], torch.int32)

    def _unpack(self) -> None:
        """Unpack the indices of all ranks; those that are missing become -1, which is none."""
        table, programs = self._lists
        self._indices.fill_(-1)
        grid = (programs.numel(),)
        unpacking.count_bits_kernel[grid](table, programs, W=packed.WORDS, **EXACT)
        unpacking.unpack_kernel[grid](table, programs, W=packed.WORDS, SUMMED=packed.WORDS, **EXACT)
