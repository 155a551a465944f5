"""Matrices and thin factors: torch multiplies, and a kernel applies averages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from gradcomp.device_api import ApplyItem, MultiplyItem, ProductItem
from gradcomp_torch.compat import foreach_add_, foreach_mul_
from gradcomp_torch.devices import tensor_of
from gradcomp_torch.gpu.arrays import OnDevice
from gradcomp_torch.gpu.bucket import EXACT, current, spread
from gradcomp_torch.gpu.kernels import low_rank as kernels

__all__ = ["apply", "launch_apply", "matrix_rows", "multiply", "take_up"]

ROWS, COLUMNS = 16, 64
"""Of a tile of a matrix."""


def take_up(matrices: Sequence[MultiplyItem | ProductItem]) -> None:
    """M = beta * M + gradient, where there is one. As in the core, the product is rounded before the sum."""
    given = [work for work in matrices if work.grad is not None]
    weighted = [work for work in given if work.beta != 1]
    if weighted:
        foreach_mul_([tensor_of(work.m) for work in weighted], [work.beta for work in weighted])
    if given:
        foreach_add_(
            [tensor_of(work.m) for work in given], [tensor_of(work.grad) for work in given]
        )


def multiply(m: torch.Tensor, factor: torch.Tensor, transposed: bool, out: torch.Tensor) -> None:
    """M q, or M^T p where ``transposed``; ``factor`` and ``out`` are flat, one vector after the other."""
    rows, cols = m.shape
    n, k = (rows, cols) if transposed else (cols, rows)
    torch.mm(factor.view(-1, n), m if transposed else m.t(), out=out.view(-1, k))


def matrix_rows(
    matrices: Sequence[tuple[int, int, int]],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Rows of a table of matrices without pointers, and the matrix of each program of `launch_apply`.

    Args:
        matrices: rows, columns, and vectors of factors.
    """
    rows = np.zeros((len(matrices), kernels.MATRIX_FIELDS.value), np.int64)
    rows[:, [kernels.ROWS.value, kernels.COLS.value, kernels.VECTORS_OF_MATRIX.value]] = matrices
    tiles = [-(-height // ROWS) * -(-width // COLUMNS) for height, width, _ in matrices]
    programs, rows[:, kernels.FIRST.value] = spread(tiles, 1)
    return rows, programs


def launch_apply(
    table: torch.Tensor, programs: torch.Tensor, unsafe: torch.Tensor, *, same: bool
) -> None:
    """Averages gain products of factors, and matrices lose theirs; ``same``: they are the same."""
    kernels.apply_kernel[(programs.numel(),)](
        *(table, programs, unsafe), SAME=same, R=ROWS, C=COLUMNS, **EXACT
    )


def apply(matrices: Sequence[ApplyItem], device: torch.device) -> None:
    """Apply factors of the host: one copy and one launch for all matrices, on the current stream."""
    of_matrices = [(work.p, work.q, work.own_p, work.own_q) for work in matrices]
    factors = {id(factor): factor for four in of_matrices for factor in four}
    shapes = [tensor_of(work.m).shape for work in matrices]
    rows, programs = matrix_rows(
        [
            (height, width, work.q.size // width)
            for (height, width), work in zip(shapes, matrices, strict=True)
        ]
    )
    unsafe = np.array([not work.safe for work in matrices], np.int32)
    there = OnDevice.empty([rows, programs, unsafe, *factors.values()], device)
    places = dict(zip(factors, there.begins[3:], strict=True))
    fields = (kernels.P, kernels.Q, kernels.OWN_P, kernels.OWN_Q)
    rows[:, [field.value for field in fields]] = there.memory.data_ptr() + np.array(
        [[places[id(factor)] for factor in four] for four in of_matrices]
    )
    rows[:, kernels.M.value] = [tensor_of(work.m).data_ptr() for work in matrices]
    rows[:, kernels.AVERAGE.value] = [tensor_of(work.average).data_ptr() for work in matrices]
    rows[:, kernels.BEGUN.value] = [work.begun for work in matrices]
    there.fill([rows, programs, unsafe, *factors.values()])
    same = all(own_p is p and own_q is q for p, q, own_p, own_q in of_matrices)
    with current(device):
        launch_apply(
            there.part(0, rows, torch.int64),
            there.part(1, programs, torch.int32),
            there.part(2, unsafe, torch.int32),
            same=same,
        )
