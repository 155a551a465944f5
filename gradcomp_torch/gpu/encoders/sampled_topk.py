"""`sampled_topk`: see kernels/sample.py."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from gradcomp.device_api import sample_of
from gradcomp_torch.gpu.bucket import EXACT, Array, Kept, Mode, Table, divide, upload
from gradcomp_torch.gpu.encoders import tiling
from gradcomp_torch.gpu.encoders.encoder import PeerResult
from gradcomp_torch.gpu.encoders.params import Params, number
from gradcomp_torch.gpu.encoders.topk import TopK, guess_of
from gradcomp_torch.gpu.kernels import sample
from gradcomp_torch.gpu.kernels import table as field

__all__ = ["SampledTopK"]


class SampledTopK(TopK):
    """`sampled_topk` with ``resample``: kernels/sample.py before the choice.

    The host launches 6 kernels more than for `topk`. Besides its bytes, a sample of 1 % has 0.5 per element. All
    elements are read once more where the guess does not tell of a threshold, and 3 times where that is used.
    """

    SAMPLED = True
    THRESHOLDS = 256
    """Numbers of elements between thresholds."""
    AFTER = 4
    seeded = True

    def __init__(self, params: Params, sizes: Sequence[int], device: torch.device) -> None:
        super().__init__(params, sizes, device)
        self.last = int(number(params, "max_adaptation_iters"))
        plans = [
            sample_of(number(params, "sample_ratio"), k, n)
            for n, k in zip(sizes, self.kept, strict=True)
        ]
        kept = np.array(self.kept, np.int64)
        strides, ranks = np.array(plans, np.int64).T
        strides[strides == 1] = 0
        most = np.floor(number(params, "upper_bound") * kept).clip(max=1 << 30).astype(np.int64)
        # Slots should hold all elements that reach a threshold which is used.
        wanted = np.where(strides > 0, np.minimum(np.minimum(most, 2 * kept), sizes), kept)
        self.bucket.rows[:, field.RUNS.value : field.RANK.value + 1] = [
            guess_of(n, k) for n, k in zip(sizes, wanted.tolist(), strict=True)
        ]
        elements = np.where(strides > 0, -(-np.array(sizes) // np.maximum(strides, 1)), 0)
        self.elements = torch.zeros(int(elements.sum()), dtype=torch.float32, device=device)
        self.sampled = divide(elements, tiling.TILE, device)
        lower = number(params, "lower_bound")
        rows = np.zeros_like(self.bucket.rows)
        begins = np.cumsum(elements) - elements
        rows[:, field.RESIDUAL.value] = self.elements.data_ptr() + 4 * begins
        rows[:, field.NUMEL.value] = elements
        rows[:, field.KEPT.value] = ranks
        rows[:, field.STRIDE.value] = strides
        rows[:, field.FIRST_SPAN.value] = self.sampled.first
        rows[:, sample.FEWEST.value] = np.ceil(lower * kept)
        rows[:, sample.MOST.value] = most
        rows[:, sample.LOWER.value] = np.array(lower, np.float32).view(np.int32)
        self.samples = upload(rows, device)
        self.state_of_samples = torch.zeros_like(self.state)
        self.numbers = self._numbers(self.memory)

    def results(self, memory: Array) -> list[Kept[Array]]:
        """See `Encoder`; the host waits where the memory is a device's."""
        numbers = self._numbers(memory).tolist()
        return [
            Kept(kept.indices[:count], kept.values[:count])
            for kept, count in zip(super().results(memory), numbers, strict=True)
        ]

    def peer_results(self, table: Table, *, packs: bool) -> list[PeerResult]:
        """See `Encoder`."""
        numbers = torch.split(self.numbers.view(torch.uint8), 4)
        return [
            result._replace(present=number)
            for result, number in zip(
                super().peer_results(table, packs=packs), numbers, strict=True
            )
        ]

    def _numbers(self, memory: Array) -> Array:
        """How many elements of each tensor are kept."""
        numbers = memory[8 * sum(self.kept) :]
        if isinstance(memory, torch.Tensor):
            return numbers.view(torch.int32)
        return numbers.view(np.int32)

    def _collect(self, table: torch.Tensor, mode: Mode) -> None:
        super()._collect(table, mode)
        samples, state = self.samples, self.state_of_samples
        if self.sampled.programs:
            sample.sample_kernel[(self.sampled.programs,)](
                *(table, samples, self.sampled.tensors, state), B=tiling.TILE, **EXACT
            )
            sizes = {"SAMPLED": False, "SPAN": 1, **self._sizes}
            self._find_digits(self.sampled, samples, state, self.DIGITS, sizes)
        for whole in (False, True):
            sample.adapt_kernel[(self.spans.programs,)](
                *(table, samples, self.spans.tensors, self.state, state, self.counts),
                *(self.slot_values, self.histogram, self.numbers),
                LAST=self.last,
                WHOLE=whole,
                BINS=self.THRESHOLDS,
                SPAN=self.span,
                **self._sizes,
            )
