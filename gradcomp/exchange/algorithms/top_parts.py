"""The choice of equal parts of a tensor by their norms."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gradcomp.codec.arrays import FloatArray

__all__ = ["largest"]


def largest(norms: FloatArray, count: int) -> npt.NDArray[np.intp]:
    """Ascending indices of the ``count`` largest norms; among equal norms the first wins.

    Norms that are not finite come first, so that their parts leave the memory.
    """
    order = np.argsort(-np.where(np.isfinite(norms), norms, np.inf), kind="stable")
    return np.sort(order[:count])
