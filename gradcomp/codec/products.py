"""Products of matrices and thin factors, which a device computes.

A factor of r vectors for the rows or columns of a matrix is flat, one vector after the other.
"""

from __future__ import annotations

from typing import NamedTuple

from gradcomp.codec.arrays import FloatArray

__all__ = ["ApplyItem", "MultiplyItem", "ProductItem", "SettleItem"]


class MultiplyItem(NamedTuple):
    """One product: ``out = M q``, or ``M^T p``.

    Attributes:
        m: [rows, cols], of the device.
        grad: as m; M becomes ``beta * M + grad`` before the product. None: M stays as it is.
        factor: of the host: q, or p where ``transposed``.
        out: of the host, flat, for the product.
    """

    m: FloatArray
    grad: FloatArray | None
    beta: float
    factor: FloatArray
    transposed: bool
    out: FloatArray


class ApplyItem(NamedTuple):
    """The average gains ``p q^T``, and M loses ``own_p own_q^T``.

    Elements are sums over the vectors in their order, in float32: the same bits on every device.

    Attributes:
        m, average: [rows, cols], of the device.
        begun: add to the average; else replace its contents.
        p, q, own_p, own_q: of the host.
        safe: False: M becomes 0 instead.
    """

    m: FloatArray
    average: FloatArray
    begun: bool
    p: FloatArray
    q: FloatArray
    own_p: FloatArray
    own_q: FloatArray
    safe: bool


class ProductItem(NamedTuple):
    """One product of a `FactorDevice`: ``M q``, or ``M^T p``; all arrays are of the device.

    Attributes:
        m, grad, beta, transposed: as of `MultiplyItem`.
        factor: q, or p where ``transposed``; its ``rank`` vectors are orthonormalized in place before.
    """

    m: FloatArray
    grad: FloatArray | None
    beta: float
    factor: FloatArray
    rank: int
    transposed: bool


class SettleItem(NamedTuple):
    """What a `FactorDevice` does with the average of a product, which is a factor of the other side.

    Attributes:
        m, factor, transposed: as of the `ProductItem` that made the product.
        kept: becomes the average, of which NaN and Inf become 0.
        average: [rows, cols], gains ``p q^T`` of ``factor`` and the average, and M loses that of ``factor``
            and what was sent: see `ApplyItem`. None: nothing is applied.
        begun: add to ``average``; else replace its contents.
    """

    m: FloatArray
    factor: FloatArray
    transposed: bool
    kept: FloatArray
    average: FloatArray | None
    begun: bool
