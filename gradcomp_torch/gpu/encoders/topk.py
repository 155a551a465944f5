"""`topk`: see kernels/select.py and kernels/pack.py."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import torch

from gradcomp.device_api import kept_count
from gradcomp_torch.gpu.bucket import EXACT, Array, Kept, Mode, Table, Work, divide
from gradcomp_torch.gpu.encoders import tiling
from gradcomp_torch.gpu.encoders.encoder import Encoder, PeerResult
from gradcomp_torch.gpu.encoders.params import VALUE_TYPES, Params
from gradcomp_torch.gpu.kernels import correct, pack, packed, select
from gradcomp_torch.gpu.kernels import table as field
from gradcomp_torch.gpu.packed import packed_size

__all__ = ["TopK", "guess_of"]


class TopK(Encoder):
    """`topk` with all value types: kernels/select.py, then kernels/pack.py.

    The host launches 6 kernels, 4 of them on the kept elements, whatever the number of tensors; for values with
    scales up to 2 more with error feedback. 12 bytes per element with error feedback and O(k); 16 more in tiles that
    have more candidates than slots, and everywhere where the guess failed.
    """

    DIGITS = (11, 11, 9)
    """Bits of each pass of the selection. The last one is small, as each span has numbers for all its digits."""
    BINS = 1 << max(DIGITS)
    SAMPLE = 8192
    SAMPLED = False
    """Whether the choice follows from a sample: see `SampledTopK`."""
    AFTER = 0
    """Bytes of the memory after indices and values, for each tensor."""
    seeded = False

    def __init__(self, params: Params, sizes: Sequence[int], device: torch.device) -> None:
        super().__init__(params, sizes, device)
        self.kept = [kept_count(params, n) for n in sizes]
        self.type = VALUE_TYPES[str(params["values"])]
        total = sum(self.kept)
        elements = sum(sizes)
        # Several times the candidates that a tile should have.
        share = 4 * tiling.TILE * total / max(elements, 1)
        self.room = min(
            tiling.TILE, max(tiling.TILE // 16, 1 << math.ceil(math.log2(max(share, 1))))
        )
        self.span = max(1, tiling.SLOTS // self.room)
        self.spans = divide(sizes, self.span * tiling.TILE, device)
        self.blocks = divide(self.kept, tiling.BLOCK, device)
        rows = self.bucket.rows
        rows[:, field.FIRST_SPAN.value] = self.spans.first
        rows[:, field.KEPT.value] = self.kept
        rows[:, field.OUT.value] = np.cumsum(self.kept) - self.kept
        rows[:, field.FIRST_BLOCK.value] = self.blocks.first
        rows[:, field.RUNS.value : field.RANK.value + 1] = [
            guess_of(n, k) for n, k in zip(sizes, self.kept, strict=True)
        ]
        tiles = self.bucket.tiles.programs

        def zeros(numel: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.zeros(numel, dtype=dtype, device=device)

        self.state = zeros(select.STATE.value * len(sizes))
        self.histogram = zeros(len(sizes) * self.BINS)
        self.counts = zeros(tiles)
        self.above, self.equal = zeros(self.spans.programs), zeros(self.spans.programs)
        self.reached = zeros(self.spans.programs * ((1 << self.DIGITS[-1]) + 1))
        self.slot_indices = zeros(tiles * self.room)
        self.slot_values = zeros(tiles * self.room, torch.float32)
        self.packed = [packed_size(n, k) for n, k in zip(sizes, self.kept, strict=True)]
        words = [size.words for size in self.packed]
        rows[:, field.PACKED.value] = np.cumsum(words) - words
        rows[:, field.LOW.value] = [size.low_bits for size in self.packed]
        rows[:, field.UPPER.value] = [size.upper for size in self.packed]
        self.memory = zeros(8 * total + self.AFTER * len(sizes), torch.uint8)
        self.indices, self.values = self._parts(self.memory)
        self.bins = zeros(total if self.type == VALUE_TYPES["2bit"] else 0, torch.int8)

    def results(self, memory: Array) -> list[Kept[Array]]:
        """See `Encoder`."""
        indices, values = self._parts(memory)
        ends = np.cumsum(self.kept).tolist()
        return [
            Kept(indices[end - k : end], values[end - k : end])
            for end, k in zip(ends, self.kept, strict=True)
        ]

    def _parts(self, memory: Array) -> tuple[Array, Array]:
        """All indices, and all values."""
        half = 4 * sum(self.kept)
        indices, values = memory[:half], memory[half : 2 * half]
        if isinstance(memory, torch.Tensor):
            return indices.view(torch.int32), values.view(torch.float32)
        return indices.view(np.int32), values.view(np.float32)

    def peer_results(self, table: Table, *, packs: bool) -> list[PeerResult]:
        """See `Encoder`."""
        values, size = self.values, 4
        if self.type != VALUE_TYPES["fp32"]:
            values, size = self._halves, 2
            bf16 = self.type == VALUE_TYPES["bf16"]
            total = sum(self.kept)
            pack.halves_kernel[(-(-total // tiling.BLOCK),)](
                self.values, values, total, BF16=bf16, B=tiling.BLOCK, **EXACT
            )
        of_values = torch.split(values.view(torch.uint8), [size * k for k in self.kept])
        of_indices = self._packed(table) if packs else torch.split(self.indices, self.kept)
        return [
            PeerResult(piece, indices.view(torch.uint8), k)
            for piece, indices, k in zip(of_values, of_indices, self.kept, strict=True)
        ]

    @cached_property
    def _halves(self) -> torch.Tensor:
        """Memory for kept values of 2 bytes."""
        return torch.zeros(sum(self.kept), dtype=torch.int16, device=self.bucket.device)

    @cached_property
    def _words(self) -> torch.Tensor:
        """Memory for packed indices. Without lower bits kernels still touch the word after a list."""
        words = sum(size.words for size in self.packed) + 1
        return torch.zeros(words, dtype=torch.int32, device=self.bucket.device)

    def _packed(self, table: Table) -> Sequence[torch.Tensor]:
        """Each tensor's indices, packed."""
        self._words.zero_()
        packed.pack_kernel[(self.blocks.programs,)](
            *(table.memory, self.blocks.tensors, self.state, self.indices, self._words),
            B=tiling.BLOCK,
            **EXACT,
        )
        return torch.split(self._words[:-1], [size.words for size in self.packed])

    def _launch(self, table: torch.Tensor, mode: Mode) -> None:
        self._collect(table, mode)
        self._choose(table, mode)
        if mode.mode != correct.PLAIN.value and self.type > VALUE_TYPES["bf16"]:
            self._subtract(table, mode)

    def _collect(self, table: torch.Tensor, mode: Mode) -> None:
        """Correct the residuals, and copy the elements that reach a guess."""
        slots = (self.counts, self.slot_indices, self.slot_values)
        select.guess_kernel[(len(self.kept),)](
            table,
            self.state,
            mode.mode,
            mode.grad_type,
            S=self.SAMPLE,
            STEPS=16,
            num_warps=16,
            **EXACT,
        )
        select.collect_kernel[(self.bucket.tiles.programs,)](
            *(table, self.bucket.tiles.tensors, self.state, *slots),
            MODE=mode.mode,
            GRAD_TYPE=mode.grad_type,
            ALIGNED=mode.aligned,
            TILE=tiling.TILE,
            ROOM=self.room,
            **EXACT,
        )

    def _choose(self, table: torch.Tensor, mode: Mode) -> None:
        """Find the kept elements, and write them in ascending order."""
        spans = (self.spans.programs,)
        of = (table, self.spans.tensors, self.state, self.counts)
        sizes = {"SAMPLED": self.SAMPLED, "SPAN": self.span, **self._sizes}
        self._find_digits(self.spans, table, self.state, self.DIGITS[:-1], sizes)
        ranks = (self.above, self.equal)
        select.count_kernel[spans](
            *(*of, self.slot_values, self.histogram, self.reached, *ranks),
            BITS=self.DIGITS[-1],
            BINS=self.BINS,
            SCANNED=512,
            **sizes,
        )
        select.compact_kernel[spans](
            *of,
            self.slot_indices,
            self.slot_values,
            *ranks,
            self.indices,
            self.values,
            TYPE=self.type,
            MODE=mode.mode,
            ALIGNED=mode.aligned,
            MASKING=mode.masking,
            **sizes,
        )

    @property
    def _sizes(self) -> dict[str, object]:
        """Constants and options of all launches that read slots."""
        return {"TILE": tiling.TILE, "ROOM": self.room, **EXACT}

    def _find_digits(
        self,
        spans: Work,
        table: torch.Tensor,
        state: torch.Tensor,
        digits: Sequence[int],
        sizes: Mapping[str, object],
    ) -> None:
        """Find the first digits, given by their bits, of the k-th largest magnitude of each tensor of a table."""
        of = (table, spans.tensors, state, self.counts, self.slot_values, self.histogram)
        shift = 31
        for bits in digits:
            shift -= bits
            select.digits_kernel[(spans.programs,)](
                *of, SHIFT=shift, BITS=bits, BINS=self.BINS, **sizes
            )

    def _subtract(self, table: torch.Tensor, mode: Mode) -> None:
        """Subtract values with scales, which all kept elements of a tensor share."""
        each = (len(self.kept),)
        if self.type == VALUE_TYPES["sign"]:
            pack.magnitudes_kernel[each](table, self.state, self.values, num_warps=1, **EXACT)
        elif self.type == VALUE_TYPES["means"]:
            pack.means_kernel[each](table, self.state, self.values, num_warps=1, **EXACT)
        elif self.type == VALUE_TYPES["2bit"]:
            pack.bins_kernel[each](table, self.state, self.values, self.bins, num_warps=1, **EXACT)
        pack.subtract_kernel[(self.blocks.programs,)](
            *(table, self.blocks.tensors, self.state, self.indices, self.values, self.bins),
            TYPE=self.type,
            MODE=mode.mode,
            MASKING=mode.masking,
            B=tiling.BLOCK,
            **EXACT,
        )


def guess_of(numel: int, k: int) -> tuple[int, int, int]:
    """Runs of consecutive elements, the stride between them, and the rank of the guess among them.

    Small tensors are looked at whole; of others the rank is four standard deviations beyond k's.
    """
    run = select.RUN.value
    if numel <= TopK.SAMPLE:
        return -(-numel // run), run, k
    runs = TopK.SAMPLE // run
    rank = run * runs * k / numel
    return runs, numel // runs, math.ceil(rank + 4 * math.sqrt(rank) + 8)
