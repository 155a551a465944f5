"""Codecs on a device: a row for each says what it launches, and what it hands to the core or to other devices.

`encoder(spec, sizes, device)` is made once for all buckets of tensors with these sizes and one codec, and
`Launches` once for each bucket. Results are in the encoder's memory: a `Kept` or a `Payload` for each tensor,
in order. They hold until the encoder's next launch, which must be on the same stream as copies of them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch

from gradcomp.adapter_api import Stage, clip_of_normal, kept_count, parse
from gradcomp.errors import SpecError
from torch_compressors.gpu.bucket import (
    EXACT,
    VECTOR_BYTES,
    Array,
    Bucket,
    Kept,
    Mode,
    Payload,
    Table,
    ToLaunch,
    current,
    divide,
)
from torch_compressors.gpu.graphs import Replayed
from torch_compressors.gpu.kernels import (
    correct,
    pack,
    packed,
    places,
    quantize,
    rotate,
    select,
    signs,
    value_types,
)
from torch_compressors.gpu.kernels import table as field
from torch_compressors.gpu.packed import packed_size
from torch_compressors.gpu.rotations import WARPS, Rotations

__all__ = [
    "FLOAT_TYPES",
    "VALUE_TYPES",
    "Encoder",
    "Launches",
    "Shared",
    "bucket_size",
    "encoder",
    "level_bits",
    "packs_indices",
    "shares",
    "stage_of",
    "takes",
]

Params = Mapping[str, float | int | bool | str | list[float]]

TILE = 2048
CHUNK = 65536
"""Elements that the core sums up in one piece."""
PIECE = 8192
"""Elements that the program of a sum corrects at a time."""
UNROLL = 32
"""Rows of 16 elements that a program of a sum loads at a time."""
SLOTS = 2048
"""Slots of kept elements, or more, that a program looks at."""
SPAN = 16
"""Tiles of a program that has work after a NaN or Inf only."""
BLOCK = 1024
"""Kept elements of a program."""


class Shared(NamedTuple):
    """A tensor's result as other devices get it.

    Attributes:
        values: uint8: a payload, filled up to a multiple of 16 bytes; or kept values of 2 or 4 bytes.
        indices: of kept elements, packed or as int32, as uint8; None with a payload.
        elements: number of kept elements; with a payload that of all elements.
    """

    values: torch.Tensor
    indices: torch.Tensor | None
    elements: int


class Encoder(ABC):
    """One codec for tensors of fixed sizes on one device.

    Attributes:
        memory: flat uint8 on the device, with the results of all tensors.
        seeded: whether the codec draws random numbers.
    """

    memory: torch.Tensor
    seeded = True

    def __init__(self, params: Params, sizes: Sequence[int], device: torch.device) -> None:
        self.bucket = Bucket(sizes, device, self.tile(params))

    def tile(self, params: Params) -> int:
        """Elements of a program."""
        return TILE

    def start(self, table: Table, mode: Mode) -> None:
        """Launch what corrects, encodes and subtracts the tensors of a table; allocates nothing."""
        if self.bucket.tiles.programs:
            self._launch(table.memory, mode)

    @abstractmethod
    def _launch(self, table: torch.Tensor, mode: Mode) -> None: ...

    @abstractmethod
    def results(self, memory: Array) -> list[Kept[Array]] | list[Payload[Array]]:
        """The tensors' results in the encoder's memory, or in a copy of it on the host."""

    @abstractmethod
    def shared(self, table: Table, *, packs: bool) -> list[Shared]:
        """The tensors' results as other devices get them; launches, and allocates the first time only.

        All sizes follow from the sizes of the tensors. Results hold as long as those of the launch.

        Args:
            table: of the last launch.
            packs: indices are packed; see kernels/packed.py.
        """


class Launches:
    """The launches of an encoder for a bucket: their table, and a graph that replays them."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self._table = Table(encoder.bucket)
        self._replayed = Replayed(encoder.bucket.device)

    def run(self, tensors: Sequence[ToLaunch]) -> None:
        """Correct, encode and subtract, without waiting: results and residuals are the core's.

        Args:
            tensors: of the encoder's sizes, all with the same kind of error feedback.

        Raises:
            ValueError: a tensor has another size, dtype or device, or is not contiguous.
        """
        encoder = self.encoder
        with current(encoder.bucket.device):
            mode = self._table.fill(tensors, seeded=encoder.seeded)
            self._replayed.run(mode, lambda: encoder.start(self._table, mode))


class TopK(Encoder):
    """`topk` with all value types: kernels/select.py, then kernels/pack.py.

    Also `sampled_topk` whose sample is the whole tensor, which makes the same choice.

    The host launches 8 kernels, and up to 3 more with error feedback, whatever the number of tensors.
    12 bytes per element with error feedback and O(k); 36 where the guess failed.
    """

    DIGITS = (8, 8, 8, 7)
    SAMPLE = 8192
    seeded = False

    def __init__(self, params: Params, sizes: Sequence[int], device: torch.device) -> None:
        super().__init__(params, sizes, device)
        self.kept = [kept_count(params, n) for n in sizes]
        self.type = VALUE_TYPES[str(params["values"])]
        total = sum(self.kept)
        elements = sum(sizes)
        # Several times the candidates that a tile should have.
        share = 4 * TILE * total / max(elements, 1)
        self.room = min(TILE, max(TILE // 16, 1 << math.ceil(math.log2(max(share, 1)))))
        self.span = max(1, SLOTS // self.room)
        self.spans = divide(sizes, self.span * TILE, device)
        self.blocks = divide(self.kept, BLOCK, device)
        rows = self.bucket.rows
        rows[:, field.FIRST_SPAN.value] = self.spans.first
        rows[:, field.KEPT.value] = self.kept
        rows[:, field.OUT.value] = np.cumsum(self.kept) - self.kept
        rows[:, field.FIRST_BLOCK.value] = self.blocks.first
        rows[:, field.RUNS.value : field.RANK.value + 1] = [
            sample(n, k) for n, k in zip(sizes, self.kept, strict=True)
        ]
        tiles = self.bucket.tiles.programs

        def zeros(numel: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.zeros(numel, dtype=dtype, device=device)

        self.state = zeros(select.STATE.value * len(sizes))
        self.histogram = zeros(len(sizes) << max(self.DIGITS))
        self.counts = zeros(tiles)
        self.above, self.equal = zeros(self.spans.programs), zeros(self.spans.programs)
        self.slot_indices = zeros(tiles * self.room)
        self.slot_values = zeros(tiles * self.room, torch.float32)
        self.packed = [packed_size(n, k) for n, k in zip(sizes, self.kept, strict=True)]
        words = [one.words for one in self.packed]
        rows[:, field.PACKED.value] = np.cumsum(words) - words
        rows[:, field.LOW.value] = [one.low_bits for one in self.packed]
        rows[:, field.UPPER.value] = [one.upper for one in self.packed]
        self.memory = zeros(8 * total, torch.uint8)
        self.indices, self.values = self._parts(self.memory)
        self.bins = zeros(total if self.type == VALUE_TYPES["2bit"] else 0, torch.int8)

    def results(self, memory: Array) -> list[Kept[Array]]:
        indices, values = self._parts(memory)
        ends = np.cumsum(self.kept).tolist()
        return [
            Kept(indices[end - k : end], values[end - k : end])
            for end, k in zip(ends, self.kept, strict=True)
        ]

    def _parts(self, memory: Array) -> tuple[Array, Array]:
        """All indices, and all values."""
        half = 4 * sum(self.kept)
        indices, values = memory[:half], memory[half:]
        if isinstance(memory, torch.Tensor):
            return indices.view(torch.int32), values.view(torch.float32)
        return indices.view(np.int32), values.view(np.float32)

    def shared(self, table: Table, *, packs: bool) -> list[Shared]:
        values, size = self.values, 4
        if self.type != VALUE_TYPES["fp32"]:
            values, size = self._halves, 2
            bf16 = self.type == VALUE_TYPES["bf16"]
            total = sum(self.kept)
            pack.halves_kernel[(-(-total // BLOCK),)](
                self.values, values, total, BF16=bf16, B=BLOCK, **EXACT
            )
        of_values = torch.split(values.view(torch.uint8), [size * k for k in self.kept])
        of_indices = self._packed(table) if packs else torch.split(self.indices, self.kept)
        return [
            Shared(own, indices.view(torch.uint8), k)
            for own, indices, k in zip(of_values, of_indices, self.kept, strict=True)
        ]

    @cached_property
    def _halves(self) -> torch.Tensor:
        """Memory for kept values of 2 bytes."""
        return torch.zeros(sum(self.kept), dtype=torch.int16, device=self.bucket.device)

    @cached_property
    def _words(self) -> torch.Tensor:
        """Memory for packed indices. Without lower bits kernels still touch the word after a list."""
        words = sum(one.words for one in self.packed) + 1
        return torch.zeros(words, dtype=torch.int32, device=self.bucket.device)

    def _packed(self, table: Table) -> Sequence[torch.Tensor]:
        """Each tensor's indices, packed."""
        self._words.zero_()
        packed.pack_kernel[(self.blocks.programs,)](
            table.memory, self.blocks.tensors, self.indices, self._words, B=BLOCK, **EXACT
        )
        return torch.split(self._words[:-1], [one.words for one in self.packed])

    def _launch(self, table: torch.Tensor, mode: Mode) -> None:
        self._select(table, mode)
        if mode.mode != correct.PLAIN.value:
            self._subtract(table, mode)

    def _select(self, table: torch.Tensor, mode: Mode) -> None:
        slots = (self.counts, self.slot_indices, self.slot_values)
        select.guess_kernel[(len(self.kept),)](
            table, self.state, mode.mode, S=self.SAMPLE, STEPS=16, num_warps=16, **EXACT
        )
        select.collect_kernel[(self.bucket.tiles.programs,)](
            *(table, self.bucket.tiles.tensors, self.state, *slots),
            MODE=mode.mode,
            ALIGNED=mode.aligned,
            TILE=TILE,
            ROOM=self.room,
            **EXACT,
        )
        spans = (self.spans.programs,)
        of = (table, self.spans.tensors, self.state, self.counts)
        sizes = {"SPAN": self.span, "TILE": TILE, "ROOM": self.room, **EXACT}
        shift = 31
        bins = 1 << max(self.DIGITS)
        for bits in self.DIGITS:
            shift -= bits
            select.digits_kernel[spans](
                *of, self.slot_values, self.histogram, SHIFT=shift, BITS=bits, BINS=bins, **sizes
            )
        ranks = (self.above, self.equal)
        select.count_kernel[spans](*of, self.slot_values, *ranks, SCANNED=1024, **sizes)
        select.compact_kernel[spans](
            *of,
            self.slot_indices,
            self.slot_values,
            *ranks,
            self.indices,
            self.values,
            TYPE=self.type,
            MODE=mode.mode,
            MASKING=mode.masking,
            **sizes,
        )

    def _subtract(self, table: torch.Tensor, mode: Mode) -> None:
        each = (len(self.kept),)
        blocks = (self.blocks.programs,)
        of = (table, self.blocks.tensors, self.state)
        if self.type == VALUE_TYPES["int8"]:
            pack.largest_kernel[blocks](*of, self.values, B=BLOCK, **EXACT)
        elif self.type == VALUE_TYPES["sign"]:
            pack.magnitudes_kernel[each](table, self.state, self.values, num_warps=1, **EXACT)
        elif self.type == VALUE_TYPES["means"]:
            pack.means_kernel[each](table, self.state, self.values, num_warps=1, **EXACT)
        elif self.type == VALUE_TYPES["2bit"]:
            pack.bins_kernel[each](table, self.state, self.values, self.bins, num_warps=1, **EXACT)
        if self.type > VALUE_TYPES["bf16"]:
            pack.subtract_kernel[blocks](
                *of,
                self.indices,
                self.values,
                self.bins,
                TYPE=self.type,
                MODE=mode.mode,
                MASKING=mode.masking,
                B=BLOCK,
                **EXACT,
            )
        correct.zero_kernel[(self.spans.programs,)](
            table,
            self.spans.tensors,
            self.state,
            FLAGS=select.STATE.value,
            FLAG=select.NOT_FINITE.value,
            MODE=mode.mode,
            ALIGNED=mode.aligned,
            SPAN=self.span,
            TILE=TILE,
            **EXACT,
        )


class Dense(Encoder):
    """A codec that sends all elements; the payloads lie in one array, at multiples of 16 bytes."""

    def __init__(self, params: Params, sizes: Sequence[int], device: torch.device) -> None:
        super().__init__(params, sizes, device)
        self.bytes = [self.payload_bytes(n) for n in sizes]
        rooms = [-(-size // VECTOR_BYTES) * VECTOR_BYTES for size in self.bytes]
        self.memory = torch.zeros(sum(rooms), dtype=torch.uint8, device=device)
        self.begins = (np.cumsum(rooms) - rooms).tolist()
        self.bucket.rows[:, field.OUT.value] = self.memory.data_ptr() + np.array(self.begins)

    def results(self, memory: Array) -> list[Payload[Array]]:
        return [
            Payload(memory[begin : begin + size])
            for begin, size in zip(self.begins, self.bytes, strict=True)
        ]

    def shared(self, table: Table, *, packs: bool) -> list[Shared]:
        ends = [*self.begins[1:], self.memory.numel()]
        return [
            Shared(self.memory[begin:end], None, numel)
            for begin, end, numel in zip(self.begins, ends, self.bucket.sizes, strict=True)
        ]

    @abstractmethod
    def payload_bytes(self, numel: int) -> int:
        """Bytes of the payload of a tensor of so many elements."""


class Floats(Dense):
    """`identity`, `fp16` and `bf16`: one kernel. 14 bytes per element with error feedback, 16 of `identity`.

    Args:
        type_: one of `FLOAT_TYPES`.
    """

    seeded = False

    def __init__(
        self, type_: int, params: Params, sizes: Sequence[int], device: torch.device
    ) -> None:
        self.type = type_
        self.saturate = params.get("overflow") == "saturate"
        super().__init__(params, sizes, device)

    def payload_bytes(self, numel: int) -> int:
        return (4 if self.type == FLOAT_TYPES["identity"] else 2) * numel

    def _launch(self, table: torch.Tensor, mode: Mode) -> None:
        quantize.floats_kernel[(self.bucket.tiles.programs,)](
            table,
            self.bucket.tiles.tensors,
            TYPE=self.type,
            SATURATE=self.saturate,
            MODE=mode.mode,
            ALIGNED=mode.aligned,
            TILE=TILE,
            **EXACT,
        )


class Bucketed(Dense):
    """A codec with a scale for each bucket of elements: one kernel, whose programs hold whole buckets."""

    def __init__(self, params: Params, sizes: Sequence[int], device: torch.device) -> None:
        self.params = params
        self.size = bucket_size(params)
        self.seeded = params.get("rounding") != "nearest"
        super().__init__(params, sizes, device)

    def tile(self, params: Params) -> int:
        return max(TILE, self.size)

    def _run(self, table: torch.Tensor, mode: Mode, kernel: Any, **constants: object) -> None:
        kernel[(self.bucket.tiles.programs,)](
            table,
            self.bucket.tiles.tensors,
            BUCKET=self.size,
            GROUP=self.tile(self.params) // self.size,
            MODE=mode.mode,
            ALIGNED=mode.aligned,
            **constants,
            **EXACT,
        )


class Levels(Bucketed):
    """A codec with the buckets' scales first, then packed levels of 1, 2, 4 or 8 bits."""

    def payload_bytes(self, numel: int) -> int:
        return 4 * -(-numel // self.size) + -(-numel * level_bits(self.params) // 8)


class Qsgd(Levels):
    """`qsgd` with norm=max and packed levels."""

    def _launch(self, table: torch.Tensor, mode: Mode) -> None:
        levels, bits = self.params["levels"], level_bits(self.params)
        self._run(table, mode, quantize.qsgd_kernel, LEVELS=levels, BITS=bits)


class Uniform(Levels):
    """`uniform` without `rotate` and `clip`, with packed levels."""

    def _launch(self, table: torch.Tensor, mode: Mode) -> None:
        bits = level_bits(self.params)
        top = float((1 << bits) - 1)
        self._run(table, mode, quantize.uniform_kernel, TOP=top, BITS=bits, RANDOM=self.seeded)


class RotatedUniform(Dense):
    """`rotate|uniform` with packed levels: kernels/rotate.py.

    The host launches 3 kernels and 1 more with error feedback, and up to 2 for rests, whatever the number
    of tensors. 40.5 bytes per element with error feedback and 4 bits.
    """

    def __init__(self, params: Params, sizes: Sequence[int], device: torch.device) -> None:
        self.bits = level_bits(params)
        self.random = params["rounding"] == "stochastic"
        rotations = Rotations(sizes)
        groups: list[int] = (rotations.blocks + rotations.rests).tolist()
        self.groups = dict(zip(sizes, groups, strict=True))
        super().__init__(params, sizes, device)
        self.blocks = divide(rotations.blocks, 1, device)
        self.rests = divide(rotations.rests, 1, device)
        self.of_groups = divide(groups, 1, device)
        rooms = [-(-n // VECTOR_BYTES) * VECTOR_BYTES for n in sizes]
        self.rotated = torch.zeros(sum(rooms), device=device)
        begins = np.cumsum(rooms) - rooms
        rows = self.bucket.rows
        rows[:, field.LOG2.value] = rotations.log2
        rows[:, field.FIRST_BLOCK.value] = self.blocks.first
        rows[:, field.FIRST_GROUP.value] = self.of_groups.first
        rows[:, field.FACTOR.value] = rotations.factors
        rows[:, field.SCALAR.value] = np.float64(self._clip(params)).view(np.int64)
        rows[:, field.ROTATED.value] = self.rotated.data_ptr() + 4 * begins

    def tile(self, params: Params) -> int:
        return int(rotate.BLOCK.value)

    def _clip(self, params: Params) -> float:
        """The outermost level in root mean squares of the group."""
        if "clip" in params:
            return float(params["clip"])  # type: ignore[arg-type]
        return clip_of_normal(self.bits, self.random)

    def payload_bytes(self, numel: int) -> int:
        return 4 * self.groups[numel] + -(-numel * self.bits // 8)

    def _launch(self, table: torch.Tensor, mode: Mode) -> None:
        self.rotate(table, mode)
        self._round(table, mode)
        if mode.mode != correct.PLAIN.value:
            self._subtract(table, mode)

    def rotate(self, table: torch.Tensor, mode: Mode) -> None:
        """Launch the correction and rotation alone: 8 bytes per element without error feedback."""
        common = {"MODE": mode.mode, "ALIGNED": mode.aligned, "num_warps": WARPS, **EXACT}
        blocks, rests = self.blocks, self.rests
        rotate.rotate_kernel[(blocks.programs,)](table, blocks.tensors, REST=False, **common)
        if rests.programs:
            rotate.rotate_kernel[(rests.programs,)](table, rests.tensors, REST=True, **common)

    def _round(self, table: torch.Tensor, mode: Mode) -> None:
        top = float((1 << self.bits) - 1)
        rotate.scales_kernel[(self.of_groups.programs,)](
            table, self.of_groups.tensors, TOP=top, UNROLL=UNROLL, num_warps=1, **EXACT
        )
        rotate.levels_kernel[(self.bucket.tiles.programs,)](
            table,
            self.bucket.tiles.tensors,
            TOP=top,
            BITS=self.bits,
            RANDOM=self.random,
            MODE=mode.mode,
            num_warps=2
            * WARPS,  # with more elements in each, too few threads are on the GPU at once
            **EXACT,
        )

    def _subtract(self, table: torch.Tensor, mode: Mode) -> None:
        back = rotate.rotate_back_kernel
        common = {"ALIGNED": mode.aligned, "num_warps": WARPS, **EXACT}
        if self.rests.programs:
            back[(self.rests.programs,)](table, self.rests.tensors, REST=True, **common)
        back[(self.blocks.programs,)](table, self.blocks.tensors, REST=False, **common)


class Int8(Bucketed):
    """`int8`, to nearest or at random."""

    LIMIT = 127.0

    def payload_bytes(self, numel: int) -> int:
        return 4 * -(-numel // self.size) + numel

    def _launch(self, table: torch.Tensor, mode: Mode) -> None:
        self._run(table, mode, quantize.integer_kernel, LIMIT=self.LIMIT, RANDOM=self.seeded)


class Int4(Int8):
    """`int4`: two elements in a byte."""

    LIMIT = 7.0

    def payload_bytes(self, numel: int) -> int:
        # Only the last bucket may have an odd size.
        return 4 * -(-numel // self.size) + -(-numel // 2)


class Summed(Dense):
    """A codec with scales of the whole tensor: a pass that sums, and a pass that rounds."""

    CODEC: int
    seeded = False

    def __init__(self, params: Params, sizes: Sequence[int], device: torch.device) -> None:
        super().__init__(params, sizes, device)
        self.chunks = divide(sizes, CHUNK, device)
        self.bucket.rows[:, field.FIRST_BLOCK.value] = self.chunks.first
        clip = np.float64(params.get("clip", 0.0))  # type: ignore[arg-type]
        self.bucket.rows[:, field.SCALAR.value] = clip.view(np.int64)
        numbers = 2 * self.chunks.programs
        self.sums = torch.zeros(numbers, dtype=torch.float64, device=device)
        self.counts = torch.zeros(numbers, dtype=torch.int32, device=device)

    def _launch(self, table: torch.Tensor, mode: Mode) -> None:
        common = {"CODEC": self.CODEC, "CHUNK": CHUNK, "UNROLL": UNROLL, **EXACT}
        signs.measure_kernel[(self.chunks.programs,)](
            *(table, self.chunks.tensors, self.sums, self.counts),
            MODE=mode.mode,
            ALIGNED=mode.aligned,
            PIECE=PIECE,
            num_warps=2,  # more would repeat the sums of 16 lanes
            **common,
        )
        signs.scale_kernel[(len(self.bytes),)](table, self.sums, self.counts, num_warps=1, **common)
        self._round((self.bucket.tiles.programs,), table, mode.mode)

    @abstractmethod
    def _round(self, grid: tuple[int], table: torch.Tensor, mode: int) -> None: ...


class Sign(Summed):
    """`sign`: 20 bytes per element with error feedback."""

    CODEC = signs.SIGN.value

    def payload_bytes(self, numel: int) -> int:
        return 4 + -(-numel // 8)

    def _round(self, grid: tuple[int], table: torch.Tensor, mode: int) -> None:
        signs.sign_bits_kernel[grid](
            table, self.bucket.tiles.tensors, ONE_BIT=False, MODE=mode, TILE=TILE, **EXACT
        )


class OneBit(Summed):
    """`onebit`: 20 bytes per element with error feedback."""

    CODEC = signs.ONEBIT.value

    def payload_bytes(self, numel: int) -> int:
        return 8 + -(-numel // 8)

    def _round(self, grid: tuple[int], table: torch.Tensor, mode: int) -> None:
        signs.sign_bits_kernel[grid](
            table, self.bucket.tiles.tensors, ONE_BIT=True, MODE=mode, TILE=TILE, **EXACT
        )


class TernGrad(Summed):
    """`terngrad`: 20 bytes per element with error feedback."""

    CODEC = signs.TERNGRAD.value
    seeded = True

    def tile(self, params: Params) -> int:
        return 1280

    def payload_bytes(self, numel: int) -> int:
        return 4 + -(-numel // 5)

    def _round(self, grid: tuple[int], table: torch.Tensor, mode: int) -> None:
        signs.ternary_kernel[grid](table, self.bucket.tiles.tensors, MODE=mode, **EXACT)


class RandomK(Dense):
    """`randomk` with values=fp32: 12 bytes per element with error feedback, else O(k)."""

    def __init__(self, params: Params, sizes: Sequence[int], device: torch.device) -> None:
        self.kept = [kept_count(params, n) for n in sizes]
        self.sized = dict(zip(sizes, self.kept, strict=True))
        super().__init__(params, sizes, device)
        self.unbiased = bool(params["unbiased"])
        self.blocks = divide(self.kept, BLOCK, device)
        self.spans = divide(sizes, SPAN * TILE, device)
        rows = self.bucket.rows
        rows[:, field.KEPT.value] = self.kept
        rows[:, field.FIRST_BLOCK.value] = self.blocks.first
        rows[:, field.FIRST_SPAN.value] = self.spans.first
        for row, n, k in zip(rows, sizes, self.kept, strict=True):
            if k:
                # Distance between parts in 2^-32 places.
                row[field.STRIDE.value] = ((n << 32) + k - 1) // k
                row[field.SCALAR.value] = np.float64(n / k).view(np.int64)
        self.flags = torch.zeros(len(sizes), dtype=torch.int32, device=device)

    def payload_bytes(self, numel: int) -> int:
        return 4 * self.sized[numel]

    def _launch(self, table: torch.Tensor, mode: Mode) -> None:
        tiles = (self.bucket.tiles.programs,)
        of = (table, self.bucket.tiles.tensors, self.flags)
        common = {"MODE": mode.mode, "ALIGNED": mode.aligned, "TILE": TILE}
        feeds_back = mode.mode != correct.PLAIN.value
        if feeds_back:
            self.flags.zero_()
            correct.correct_kernel[tiles](*of, **common, **EXACT)
        places.gather_kernel[(self.blocks.programs,)](
            table,
            self.blocks.tensors,
            UNBIASED=self.unbiased,
            MODE=mode.mode,
            MASKING=mode.masking,
            B=BLOCK,
            **EXACT,
        )
        if feeds_back:
            correct.zero_kernel[(self.spans.programs,)](
                *(table, self.spans.tensors, self.flags),
                FLAGS=1,
                FLAG=0,
                SPAN=SPAN,
                **common,
                **EXACT,
            )


VALUE_TYPES = {
    "fp32": value_types.FP32.value,
    "fp16": value_types.FP16.value,
    "bf16": value_types.BF16.value,
    "int8": value_types.INT8.value,
    "sign": value_types.SIGN.value,
    "means": value_types.MEANS.value,
    "2bit": value_types.BINS.value,
}

FLOAT_TYPES = {"identity": VALUE_TYPES["fp32"]} | {
    name: VALUE_TYPES[name] for name in ("fp16", "bf16")
}
"""Value types of codecs whose payload is all elements as floats."""


def bucket_size(params: Params) -> int:
    """Elements that share a scale; `uniform` has no parameter for it."""
    return int(params.get("bucket", 512))  # type: ignore[arg-type]


def level_bits(params: Params) -> int:
    """Bits of a packed level: of `qsgd`, which has levels of both signs, or of `uniform`."""
    if "levels" in params:
        return (2 * int(params["levels"])).bit_length()  # type: ignore[arg-type]
    return int(params["bits"])  # type: ignore[arg-type]


def sample(numel: int, k: int) -> tuple[int, int, int]:
    """Runs of 16 elements, the stride between them, and the rank of the guess among them.

    Small tensors are looked at whole; of others the rank is four standard deviations beyond k's.
    """
    if numel <= TopK.SAMPLE:
        return -(-numel // 16), 16, k
    runs = TopK.SAMPLE // 16
    rank = 16 * runs * k / numel
    return runs, numel // runs, math.ceil(rank + 4 * math.sqrt(rank) + 8)


CODECS: dict[str, Callable[[Params, Sequence[int], torch.device], Encoder]] = {
    **{name: partial(Floats, type_) for name, type_ in FLOAT_TYPES.items()},
    "int4": Int4,
    "int8": Int8,
    "onebit": OneBit,
    "qsgd": Qsgd,
    "randomk": RandomK,
    "rotate|uniform": RotatedUniform,
    "sampled_topk": TopK,
    "sign": Sign,
    "terngrad": TernGrad,
    "topk": TopK,
    "uniform": Uniform,
}
"""By name of the codec, after that of a transform."""


LARGEST_BUCKET = 4096
"""Elements that share a scale are in one program. Buckets are powers of two."""


def takes(spec: str) -> bool:
    """Whether there are kernels for a codec.

    Args:
        spec: a codec's, without a memory, as `gradcomp.get_codec` takes it. Index coders run on the
            host, so any of them will do; the same holds for memories that `ToLaunch` can describe.
    """
    return _find_stage(spec) is not None


def shares(spec: str) -> bool:
    """Whether results of a codec with kernels can be added as `Encoder.shared` gives them.

    Elements of `randomk`, and values with scales, are known to their sender and the core alone.
    """
    name, stage = stage_of(spec)
    return name != "randomk" and stage.params.get("values", "fp32") in ("fp32", "fp16", "bf16")


@lru_cache(maxsize=256)
def packs_indices(spec: str) -> bool:
    """Whether a codec's indices are packed for other devices; not with the coder `raw32`."""
    return all(stage.name != "raw32" for stage in parse(spec).stages)


def encoder(spec: str, sizes: Sequence[int], device: torch.device) -> Encoder:
    """An encoder for tensors that have one codec.

    Args:
        spec: of a codec, without a memory.
        sizes: number of elements of each tensor; below 2**30.

    Raises:
        SpecError: there are no kernels for the codec.
    """
    name, stage = stage_of(spec)
    return CODECS[name](stage.params, sizes, device)


def stage_of(spec: str) -> tuple[str, Stage]:
    """The codec's name in `CODECS` and its own stage.

    Raises:
        SpecError: there are no kernels for the codec.
    """
    found = _find_stage(spec)
    if found is None:
        raise SpecError(
            f"{spec!r} has no kernels for a GPU; codecs with kernels: {', '.join(CODECS)}"
        )
    return found


@lru_cache(maxsize=256)
def _find_stage(spec: str) -> tuple[str, Stage] | None:
    """As `stage_of`, if kernels do all that the spec asks."""
    stages = parse(spec).stages
    transforms = [one.name for one in stages if one.kind == "transform"]
    stage, *coders = stages[len(transforms) :]
    name = "|".join([*transforms, stage.name])
    params = stage.params
    if name not in CODECS:
        return None
    taken = True
    if name in ("int4", "int8", "qsgd"):
        bucket = bucket_size(params)
        taken = bucket <= LARGEST_BUCKET and bucket & (bucket - 1) == 0
    if stage.name in ("qsgd", "uniform"):
        packed = all(coder.name == "packed" for coder in coders)
        taken = taken and packed and level_bits(params) in (1, 2, 4, 8)
        taken = taken and params.get("norm", "max") == "max"
    if name == "uniform":
        taken = taken and "clip" not in params
    if name == "randomk":
        taken = params["values"] == "fp32"
    if name == "sampled_topk":
        taken = float(params["sample_ratio"]) == 1  # type: ignore[arg-type]
    return (name, stage) if taken else None
