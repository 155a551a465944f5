"""Matrices and thin factors that stay on a device: memory and launches of one phase of a bucket.

Torch multiplies; kernels/low_rank.py does all else. What follows from averages is replayed in a CUDA graph where
memory is that of the last step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from gradcomp.device_api import ProductItem, SettleItem
from gradcomp_torch.devices import tensor_of
from gradcomp_torch.gpu import low_rank
from gradcomp_torch.gpu.bucket import EXACT, Rows, current, spread, upload
from gradcomp_torch.gpu.graphs import Replayed
from gradcomp_torch.gpu.kernels import low_rank as kernels

__all__ = ["FactorExchange", "kinds_of"]

LANES = 1024
"""Partial sums of a basis: they decide on its bits."""

BASIS_WARPS = 8
BLOCK = 1024
Kinds = tuple[tuple[int, int, int, bool], ...]


def kinds_of(matrices: Sequence[ProductItem]) -> Kinds:
    """Rows, columns, vectors and side of each matrix, which are best the same in each step."""
    return tuple((*work.m.shape, work.rank, work.transposed) for work in matrices)


class FactorExchange:
    """Products of some matrices, and what follows from their averages.

    Args:
        half: products travel as float16.

    Attributes:
        products: of this rank, flat, one matrix after the other; with ``half`` as rounded.
        sent: as ``products``, for the engine, which may put the average there.
    """

    def __init__(self, kinds: Kinds, half: bool, device: torch.device) -> None:
        self._device = device
        # Of the given factors and of their products.
        given = [rank * (rows if left else cols) for rows, cols, rank, left in kinds]
        self._sizes = [rank * (cols if left else rows) for rows, cols, rank, left in kinds]
        self._begins = np.cumsum(self._sizes) - self._sizes
        total = sum(self._sizes)
        self.products = torch.zeros(total, dtype=torch.float32, device=device)
        dtype = torch.float16 if half else torch.float32
        self.sent = torch.zeros(total, dtype=dtype, device=device)
        self._widened = torch.zeros(total if half else 0, dtype=torch.float32, device=device)
        self._wide = torch.zeros(sum(given), dtype=torch.float64, device=device)
        self._unsafe = torch.zeros(len(kinds), dtype=torch.int32, device=device)
        self._factors = Rows(len(kinds), kernels.FACTOR_FIELDS.value, device)
        rows = self._factors.host
        rows[:, kernels.WIDE.value] = self._wide.data_ptr() + 8 * (np.cumsum(given) - given)
        rows[:, kernels.N.value] = [height if left else width for height, width, _, left in kinds]
        rows[:, kernels.RANK.value] = [kind[2] for kind in kinds]
        rows[:, kernels.NUMEL.value] = self._sizes
        self._matrices = Rows(len(kinds), kernels.MATRIX_FIELDS.value, device)
        self._matrices.host[:], tiles = low_rank.matrix_rows([kind[:3] for kind in kinds])
        self._tiles = upload(tiles, device)
        vectors, first = spread([kind[2] for kind in kinds], 1)
        self._vectors, self._first = upload(vectors, device), upload(first.astype(np.int32), device)
        self._settling = Replayed(device)

    def multiply(self, matrices: Sequence[ProductItem]) -> None:
        """Matrices take up gradients; then the products of all, on the current stream."""
        low_rank.take_up(matrices)
        given = [tensor_of(work.factor) for work in matrices]
        self._factors.host[:, kernels.VECTORS.value] = _places(given)
        with current(self._device):
            self._factors.upload()
            kernels.orthonormalize_kernel[(len(matrices),)](
                self._factors.memory, B=LANES, num_warps=BASIS_WARPS, **EXACT
            )
        parts = torch.split(self.products, self._sizes)
        for work, factor, out in zip(matrices, given, parts, strict=True):
            low_rank.multiply(tensor_of(work.m), factor, work.transposed, out)
        self.sent.copy_(self.products)
        if self._widened.numel():
            self.products.copy_(self.sent)

    def settle(
        self, average: torch.Tensor, matrices: Sequence[SettleItem], *, of_average: bool
    ) -> None:
        """Use the average of all ranks' products, on the current stream; see `FactorDevice.settle`."""
        mean = self._widened if self._widened.numel() else average
        sent = mean if of_average else self.products
        rows = self._factors.host
        rows[:, kernels.OWN.value] = sent.data_ptr() + 4 * self._begins
        rows[:, kernels.MEAN.value] = mean.data_ptr() + 4 * self._begins
        kept = rows[:, kernels.KEPT.value] = _places([tensor_of(work.kept) for work in matrices])
        applies = matrices[0].average is not None
        if applies:
            self._fill_matrices(matrices)
        with current(self._device):
            self._factors.upload()
            self._matrices.upload()
            key = (
                *(applies, sent.data_ptr(), average.data_ptr(), *kept),
                self._matrices.host.tobytes() if applies else b"",
            )
            self._settling.run(key, lambda: self._settle(average, applies, of_average))

    def _fill_matrices(self, matrices: Sequence[SettleItem]) -> None:
        """Tell the kernel about matrices and the factors of what they gain and lose."""
        factors, rows = self._factors.host, self._matrices.host
        rows[:, kernels.M.value] = _places([tensor_of(work.m) for work in matrices])
        rows[:, kernels.AVERAGE.value] = _places([tensor_of(work.average) for work in matrices])
        rows[:, kernels.BEGUN.value] = [work.begun for work in matrices]
        left = np.array([work.transposed for work in matrices])
        known = _places([tensor_of(work.factor) for work in matrices])
        for p, q, other in (
            (kernels.P, kernels.Q, kernels.MEAN),
            (kernels.OWN_P, kernels.OWN_Q, kernels.OWN),
        ):
            rows[:, p.value] = np.where(left, known, factors[:, other.value])
            rows[:, q.value] = np.where(left, factors[:, other.value], known)

    def _settle(self, average: torch.Tensor, applies: bool, same: bool) -> None:
        if self._widened.numel():
            self._widened.copy_(average)
        self._unsafe.zero_()
        kernels.keep_kernel[(self._vectors.numel(),)](
            self._factors.memory, self._vectors, self._first, self._unsafe, B=BLOCK, **EXACT
        )
        if applies:
            low_rank.launch_apply(self._matrices.memory, self._tiles, self._unsafe, same=same)


def _places(tensors: Sequence[torch.Tensor]) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]
