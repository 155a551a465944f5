"""Momentum correction of one tensor, as the core applies it while encoding."""

from __future__ import annotations

from typing import NamedTuple

from gradcomp.codec.arrays import FloatArray

__all__ = ["Correction"]


class Correction(NamedTuple):
    """Momentum correction: the residual (DGC's velocity) accumulates momenta, not gradients.

    ``momentum = factor * momentum + scale * grad``; ``residual += momentum``. With nesterov,
    ``momentum = factor * (momentum + scale * grad)``; ``residual += momentum + scale * grad``.
    Lin et al., "Deep Gradient Compression" (ICLR 2018), section 3.2.

    Attributes:
        momentum: C-contiguous float32 of as many elements as the gradient, updated in place.
        factor: in [0, 1).
        scale: factor of the gradient, from clipping.
        nesterov: Nesterov's momentum.
        masking: momentum of sent elements is set to 0, too (section 3.3, momentum factor masking).
    """

    momentum: FloatArray
    factor: float
    scale: float = 1.0
    nesterov: bool = False
    masking: bool = True
