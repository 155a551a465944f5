"""Sums of results that stay on devices, in the messages of all ranks: one table for all steps of a bucket.

Ranks are added in their order, so that all devices and hosts get the same bits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from gradcomp_torch.gpu import packed
from gradcomp_torch.gpu.add import KEPT, Form, form_of, launch, lay_out
from gradcomp_torch.gpu.arrays import OnDevice
from gradcomp_torch.gpu.bucket import EXACT, spread
from gradcomp_torch.gpu.codecs import counts_kept, packs_indices, stage_of
from gradcomp_torch.gpu.encoders.params import VALUE_TYPES
from gradcomp_torch.gpu.kernels import add as fields
from gradcomp_torch.gpu.kernels import kept
from gradcomp_torch.gpu.kernels import packed as unpacking

__all__ = ["KeptForm", "PeerSums", "PeerTensor", "Place", "peer_form_of", "sums_of"]

RANGE = 16384
"""Elements of a program that adds kept ones."""
BLOCK = 1024
"""Elements that such a program looks at together."""
SEARCHES = 128
"""Bisections of a program."""


class KeptForm(NamedTuple):
    """Kept elements in messages.

    Attributes:
        type: of values; one of `VALUE_TYPES`.
        counted: messages say how many there are.
        packed: indices are packed; see kernels/packed.py.
        fewest: number of elements that a message can say it has, at least.
    """

    type: int
    counted: bool
    packed: bool
    fewest: int = 1


@lru_cache(maxsize=256)
def peer_form_of(spec: str) -> Form | KeptForm:
    """The form of a codec's results in messages of devices; see `form_of`."""
    form = form_of(spec)
    if form is not KEPT:
        return form
    _, stage = stage_of(spec)
    type_ = VALUE_TYPES[str(stage.params["values"])]
    return KeptForm(type_, counts_kept(spec), packs_indices(spec))


class Place(NamedTuple):
    """Where a tensor's result begins in a message, in bytes.

    Attributes:
        values: of a payload, a multiple of 16; or of kept values.
        indices: of kept elements; 0 with a payload.
        elements: as in `PeerResult`.
        present: of the number of kept elements that there are; 0: all.
    """

    values: int
    indices: int
    elements: int
    present: int = 0


class PeerTensor(NamedTuple):
    """One tensor of all ranks' messages.

    Attributes:
        acc: as in `AddItem`.
        place: of the tensor's result in each rank's message.
        streams: as in `gradcomp`'s `PeerItem`.
        message: number of the message that has the tensor, where each one has another.
    """

    acc: torch.Tensor
    place: Place
    streams: Sequence[int]
    message: int = 0


class PeerSums(ABC):
    """Sums of tensors of one form.

    Args:
        begun: results are added to what the tensors hold, else to 0.
        decodes: tensors become the results of their one message, also where those are -0.0.

    Attributes:
        version: another number for other launches: while it stays, they can be replayed.
    """

    def __init__(self, *, begun: bool, decodes: bool) -> None:
        self.version = 0
        self._begun = begun
        self._decodes = decodes
        self._given: object = None

    def prepare(
        self, tensors: Sequence[PeerTensor], messages: Sequence[torch.Tensor], weight: float
    ) -> None:
        """Tell kernels about a step's tensors; copies only where it changed."""
        given = (
            [(tensor.acc.data_ptr(), tensor.place, tensor.message) for tensor in tensors],
            [message.data_ptr() for message in messages],
            weight,
        )
        if given != self._given:
            self._prepare(tensors, messages, weight)
            self._given = given
            self.version += 1

    @abstractmethod
    def _prepare(
        self, tensors: Sequence[PeerTensor], messages: Sequence[torch.Tensor], weight: float
    ) -> None: ...

    @abstractmethod
    def launch(self, damaged: torch.Tensor) -> None:
        """Add rank after rank, on the current stream of the current device.

        Args:
            damaged: int32 [ranks, 4]; the first column becomes 1 where kept elements are not of the tensor.
        """


def sums_of(form: Form | KeptForm, *, begun: bool, decodes: bool) -> PeerSums:
    """Sums of tensors of a form, from `peer_form_of`."""
    if isinstance(form, KeptForm):
        return _KeptSums(form, begun=begun, decodes=decodes)
    return _PayloadSums(form, begun=begun, decodes=decodes)


class _PayloadSums(PeerSums):
    """Payloads: a launch, or two, for all ranks."""

    def __init__(self, form: Form, *, begun: bool, decodes: bool) -> None:
        super().__init__(begun=begun, decodes=decodes)
        self._form = form
        self._streams: list[Sequence[int]] = []

    def prepare(
        self, tensors: Sequence[PeerTensor], messages: Sequence[torch.Tensor], weight: float
    ) -> None:
        """See `PeerSums`; only streams of rotations change with the step."""
        super().prepare(tensors, messages, weight)
        streams = [tensor.streams for tensor in tensors] if self._form.rotated else []
        if streams != self._streams:
            of_ranks = np.array(streams, np.uint64).T.view(np.int64)
            self._arrays[0][:, :, fields.STREAM.value] = of_ranks
            self._there.fill(self._arrays)
            self._streams = streams

    def _prepare(
        self, tensors: Sequence[PeerTensor], messages: Sequence[torch.Tensor], weight: float
    ) -> None:
        accs = [tensor.acc for tensor in tensors]
        counts = [tensor.place.elements for tensor in tensors]
        values = np.array([tensor.place.values for tensor in tensors], np.int64)
        layouts = [
            lay_out(self._form, accs, counts, [tensor.streams[rank] for tensor in tensors], weight)
            for rank in range(len(messages))
        ]
        for (rows, _, _), message in zip(layouts, messages, strict=True):
            rows[:, fields.VALUES.value] = values + message.data_ptr()
        self._scratch = [layout.scratch for layout in layouts]
        self._streams = [tensor.streams for tensor in tensors] if self._form.rotated else []
        tables = np.stack([layout.rows for layout in layouts])
        programs = layouts[0].programs
        self._arrays: list[npt.NDArray[Any]] = [tables, *programs]
        self._there = OnDevice.empty(self._arrays, accs[0].device)
        self._there.fill(self._arrays)
        self._table = self._there.part(0, tables, torch.int64)
        self._ranks = len(messages)
        self._programs = [
            self._there.part(1 + number, array, torch.int32)
            for number, array in enumerate(programs)
        ]

    def launch(self, damaged: torch.Tensor) -> None:
        """See `PeerSums`."""
        start = fields.NONE if self._decodes else fields.HELD if self._begun else fields.ZERO
        launch(self._form, self._table, self._programs, self._ranks, start.value)


class _KeptSums(PeerSums):
    """Kept elements: two launches for all ranks, and two that unpack.

    To `decodes`, messages of several ranks are as the message of one.
    """

    def __init__(self, form: KeptForm, *, begun: bool, decodes: bool) -> None:
        super().__init__(begun=begun, decodes=decodes)
        self._form = form

    def _prepare(
        self, tensors: Sequence[PeerTensor], messages: Sequence[torch.Tensor], weight: float
    ) -> None:
        device = tensors[0].acc.device
        numels = [tensor.acc.numel() for tensor in tensors]
        counts = [tensor.place.elements for tensor in tensors]
        of_places = np.array(
            [(place.values, place.indices, place.present) for _, place, *_ in tensors], np.int64
        )
        if self._decodes:
            numbers = np.array([[tensor.message for tensor in tensors]])
        else:
            numbers = np.arange(len(messages))[:, None]
        begins = np.array([message.data_ptr() for message in messages], np.int64)[numbers]
        ranks = len(numbers)
        programs, first = spread(numels, RANGE)
        tables = np.zeros((ranks, len(tensors), fields.FIELDS.value), np.int64)
        tables[:, :, fields.ACC.value] = [tensor.acc.data_ptr() for tensor in tensors]
        tables[:, :, fields.NUMEL.value] = numels
        tables[:, :, fields.COUNT.value] = counts
        tables[:, :, fields.FIRST.value] = first
        tables[:, :, fields.WEIGHT.value] = np.array(weight, np.float32).view(np.int32)
        tables[:, :, fields.VALUES.value] = begins + of_places[:, 0]
        tables[:, :, fields.COUNTED.value] = begins + of_places[:, 2]
        tables[:, :, fields.MESSAGE.value] = numbers
        lists = begins + of_places[:, 1]
        arrays: list[npt.NDArray[Any]] = [tables, programs]
        if self._form.packed:
            self._indices = torch.empty(ranks * sum(counts), dtype=torch.int32, device=device)
            ends = np.cumsum(np.array(counts * ranks, np.int64)).reshape(ranks, -1)
            unpacked = self._indices.data_ptr() + 4 * (ends - counts)
            arrays += self._unpack_table(lists, unpacked, numels, counts)
            lists = unpacked
        tables[:, :, fields.INDICES.value] = lists
        there = OnDevice.empty(arrays, device)
        there.fill(arrays)
        self._table, self._programs, *self._lists = (
            there.part(number, array, torch.int32 if number % 2 else torch.int64)
            for number, array in enumerate(arrays)
        )
        self._bounds = torch.empty(ranks * programs.size, dtype=torch.int32, device=device)
        self._ranks, self._count, self._steps = ranks, len(tensors), max(counts).bit_length()

    def _unpack_table(
        self,
        lists: npt.NDArray[np.int64],
        indices: npt.NDArray[np.int64],
        numels: Sequence[int],
        counts: list[int],
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """The table of the launches that unpack all ranks' lists, and the list of each program."""
        ranks = len(lists)
        sizes = [packed.packed_size(*pair) for pair in zip(numels, counts, strict=True)]
        programs = sum(-(-size.upper // packed.WORDS) for size in sizes) * ranks
        self._partial = torch.empty(programs, dtype=torch.int32, device=self._indices.device)
        return packed.unpack_table(
            *(sizes * ranks, counts * ranks, lists.ravel().tolist(), indices.ravel().tolist()),
            self._partial.data_ptr(),
        )

    def launch(self, damaged: torch.Tensor) -> None:
        """See `PeerSums`."""
        if self._form.packed:
            self._unpack()
        programs = self._programs.numel()
        of = (self._table, self._programs, self._bounds)
        counts = self._form.counted
        constants = {"COUNTS": counts, "FEWEST": self._form.fewest, "RANGE": RANGE, **EXACT}
        kept.bounds_kernel[(-(-programs // SEARCHES), self._ranks)](
            *of, programs, self._count, self._steps, B=SEARCHES, **constants
        )
        kept.add_ranks_kernel[(programs,)](
            *(*of, damaged, programs, self._count, self._ranks),
            TYPE=self._form.type,
            ASSIGNS=self._decodes,
            BEGUN=self._begun,
            PACKED=self._form.packed,
            B=BLOCK,
            **constants,
        )

    def _unpack(self) -> None:
        """Unpack the indices of all ranks; those that are missing become -1, which is none."""
        table, programs = self._lists
        self._indices.fill_(-1)
        grid = (programs.numel(),)
        unpacking.count_bits_kernel[grid](table, programs, W=packed.WORDS, **EXACT)
        unpacking.unpack_kernel[grid](table, programs, W=packed.WORDS, SUMMED=packed.WORDS, **EXACT)
