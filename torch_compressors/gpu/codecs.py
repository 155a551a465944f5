"""Codecs on a device: a row for each says what it launches, and what it hands to the core.

`encoder(spec, sizes, device)` is made once for tensors that travel together with one codec.
`Encoder.launch` only launches and returns arrays on the device: a `Kept` or a `Payload` for each tensor,
in order. They belong to the encoder and hold until its next launch, which must be on the same stream as
the copies of them. Not run on any GPU so far.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from gradcomp.adapter_api import Stage, parse
from gradcomp.errors import SpecError
from torch_compressors.gpu.bucket import (
    VECTOR_BYTES,
    Bucket,
    Kept,
    Mode,
    Payload,
    ToLaunch,
    current,
    divide,
)
from torch_compressors.gpu.kernels import correct, pack, quantize, select
from torch_compressors.gpu.kernels import table as field

__all__ = ["Encoder", "encoder", "takes"]

Params = Mapping[str, float | int | bool | str | list[float]]

EXACT = {"enable_fp_fusion": False}
"""Options of every launch of a kernel with float arithmetic: nothing is contracted."""

TILE = 2048
BLOCK = 1024
"""Kept elements of a program."""


class Encoder(ABC):
    """One codec for tensors of fixed sizes on one device."""

    def __init__(self, params: Params, sizes: Sequence[int], device: torch.device) -> None:
        self.bucket = Bucket(sizes, device, TILE)

    def launch(self, tensors: Sequence[ToLaunch]) -> list[Kept] | list[Payload]:
        """Correct, encode and subtract, without waiting: results and residuals are the core's.

        Args:
            tensors: of the encoder's sizes, all with the same kind of error feedback.

        Raises:
            ValueError: a tensor has another size, dtype or device, or is not contiguous.
        """
        with current(self.bucket.device):
            return self._launch(tensors)

    @abstractmethod
    def _launch(self, tensors: Sequence[ToLaunch]) -> list[Kept] | list[Payload]: ...


class TopK(Encoder):
    """`topk` with all value types: kernels/select.py, then kernels/pack.py.

    The host launches 13 to 15 kernels, whatever the number of tensors.
    """

    DIGITS = (11, 10, 10)
    SAMPLE = 8192

    def __init__(self, params: Params, sizes: Sequence[int], device: torch.device) -> None:
        super().__init__(params, sizes, device)
        self.kept = [kept_count(params, n) for n in sizes]
        self.type = VALUE_TYPES[str(params["values"])]
        total = sum(self.kept)
        elements = sum(sizes)
        # Several times the candidates that a tile should have.
        share = 4 * TILE * total / max(elements, 1)
        self.room = min(TILE, max(TILE // 16, 1 << math.ceil(math.log2(max(share, 1)))))
        self.blocks = divide(self.kept, BLOCK, device)
        rows = self.bucket.rows
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
        self.counts, self.above, self.equal = (zeros(tiles) for _ in range(3))
        self.slot_indices = zeros(tiles * self.room)
        self.slot_values = zeros(tiles * self.room, torch.float32)
        self.indices = zeros(total)
        self.values = zeros(total, torch.float32)
        self.bins = zeros(total if self.type == VALUE_TYPES["2bit"] else 0, torch.int8)

    def _launch(self, tensors: Sequence[ToLaunch]) -> list[Kept]:
        table, mode = self.bucket.table(tensors)
        if self.bucket.tiles.programs:
            self._select(table, mode)
            if mode.mode != correct.PLAIN.value:
                self._subtract(table, mode)
        return [
            Kept(indices, values)
            for indices, values in zip(
                self.indices.split(self.kept), self.values.split(self.kept), strict=True
            )
        ]

    def _select(self, table: torch.Tensor, mode: Mode) -> None:
        each = (len(self.kept),)
        tiles = (self.bucket.tiles.programs,)
        of = (table, self.bucket.tiles.tensors, self.state)
        slots = (self.counts, self.slot_indices, self.slot_values)
        sizes = {"ALIGNED": mode.aligned, "TILE": TILE, "ROOM": self.room}
        select.guess_kernel[each](
            table, self.state, mode.mode, mode.aligned, S=self.SAMPLE, STEPS=12, **EXACT
        )
        select.collect_kernel[tiles](*of, *slots, MODE=mode.mode, **sizes, **EXACT)
        shift = 31
        bins = 1 << max(self.DIGITS)
        for bits in self.DIGITS:
            shift -= bits
            select.digits_kernel[tiles](
                *of,
                self.counts,
                self.slot_values,
                self.histogram,
                SHIFT=shift,
                BITS=bits,
                BINS=bins,
                **sizes,
            )
            select.pick_kernel[each](table, self.state, self.histogram, BITS=bits, BINS=bins)
        ranks = (self.above, self.equal)
        select.count_kernel[tiles](*of, self.counts, self.slot_values, *ranks, **sizes)
        select.scan_kernel[each](table, *ranks, TILE=TILE, B=4096)
        select.compact_kernel[tiles](*of, *slots, *ranks, self.indices, self.values, **sizes)

    def _subtract(self, table: torch.Tensor, mode: Mode) -> None:
        each = (len(self.kept),)
        blocks = (self.blocks.programs,)
        of = (table, self.blocks.tensors, self.state)
        if self.type == VALUE_TYPES["int8"]:
            pack.largest_kernel[blocks](*of, self.values, B=BLOCK)
        elif self.type == VALUE_TYPES["sign"]:
            pack.magnitudes_kernel[each](table, self.state, self.values, num_warps=1, **EXACT)
        elif self.type == VALUE_TYPES["means"]:
            pack.means_kernel[each](table, self.state, self.values, num_warps=1, **EXACT)
        elif self.type == VALUE_TYPES["2bit"]:
            pack.bins_kernel[each](table, self.state, self.values, self.bins, num_warps=1, **EXACT)
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
        correct.zero_kernel[(self.bucket.tiles.programs,)](
            table,
            self.bucket.tiles.tensors,
            self.state,
            FLAGS=select.STATE.value,
            FLAG=select.NOT_FINITE.value,
            MODE=mode.mode,
            ALIGNED=mode.aligned,
            TILE=TILE,
        )


class Dense(Encoder):
    """A codec that sends all elements; the payloads lie in one array, at multiples of 16 bytes."""

    def __init__(self, params: Params, sizes: Sequence[int], device: torch.device) -> None:
        super().__init__(params, sizes, device)
        self.bytes = [self.payload_bytes(n) for n in sizes]
        rooms = [-(-size // VECTOR_BYTES) * VECTOR_BYTES for size in self.bytes]
        self.data = torch.zeros(sum(rooms), dtype=torch.uint8, device=device)
        begins = np.cumsum(rooms) - rooms
        self.bucket.rows[:, field.OUT.value] = self.data.data_ptr() + begins
        self.payloads = [
            Payload(self.data[begin : begin + size])
            for begin, size in zip(begins.tolist(), self.bytes, strict=True)
        ]

    @abstractmethod
    def payload_bytes(self, numel: int) -> int:
        """Bytes of the payload of a tensor of so many elements."""


class Half(Dense):
    """`fp16` and `bf16`: one kernel. 14 bytes per element with error feedback."""

    def __init__(self, params: Params, sizes: Sequence[int], device: torch.device) -> None:
        super().__init__(params, sizes, device)
        self.bf16 = "overflow" not in params
        self.saturate = params.get("overflow") == "saturate"

    def payload_bytes(self, numel: int) -> int:
        return 2 * numel

    def _launch(self, tensors: Sequence[ToLaunch]) -> list[Payload]:
        table, mode = self.bucket.table(tensors)
        if self.bucket.tiles.programs:
            quantize.half_kernel[(self.bucket.tiles.programs,)](
                table,
                self.bucket.tiles.tensors,
                BF16=self.bf16,
                SATURATE=self.saturate,
                MODE=mode.mode,
                ALIGNED=mode.aligned,
                TILE=TILE,
                **EXACT,
            )
        return self.payloads


VALUE_TYPES = {"fp32": 0, "fp16": 1, "bf16": 2, "int8": 3, "sign": 4, "means": 5, "2bit": 6}
"""Numbers of value types on the wire, which docs/wire-format.md gives."""


def kept_count(params: Params, numel: int) -> int:
    """Number of elements kept, as docs/wire-format.md says."""
    if "k" in params:
        k = int(params["k"])  # type: ignore[arg-type]
    else:
        k = math.floor(float(params["ratio"]) * numel + 0.5)  # type: ignore[arg-type]
    return min(max(k, 1), numel)


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
    "bf16": Half,
    "fp16": Half,
    "topk": TopK,
}


def takes(spec: str) -> bool:
    """Whether there are kernels for a codec.

    Args:
        spec: a codec's, without a memory, as `gradcomp.get_codec` takes it. Index coders run on the
            host, so any of them will do; the same holds for memories that `ToLaunch` can describe.
    """
    return _stage(spec) is not None


def encoder(spec: str, sizes: Sequence[int], device: torch.device) -> Encoder:
    """An encoder for tensors that have one codec.

    Args:
        spec: of a codec, without a memory.
        sizes: number of elements of each tensor; below 2**30.

    Raises:
        SpecError: there are no kernels for the codec.
    """
    stage = _stage(spec)
    if stage is None:
        raise SpecError(
            f"{spec!r} has no kernels for a GPU; codecs with kernels: {', '.join(CODECS)}"
        )
    return CODECS[stage.name](stage.params, sizes, device)


def _stage(spec: str) -> Stage | None:
    """The codec's own stage, if kernels do all that the spec asks of the device."""
    stage = parse(spec).stages[0]
    return stage if stage.name in CODECS else None
