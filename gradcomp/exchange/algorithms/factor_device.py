"""Devices that multiply matrices by thin factors, for power iterations.

A factor of r vectors for the rows or columns of a matrix is flat, one vector after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple, Protocol, cast, runtime_checkable

from gradcomp import _core
from gradcomp.codec.arrays import FloatArray
from gradcomp.codec.devices import HOST, Device
from gradcomp.stopwatch import timed

__all__ = [
    "HOST_PRODUCTS",
    "ApplyItem",
    "FactorDevice",
    "MultiplyItem",
    "PeerProducts",
    "ProductDevice",
    "ProductItem",
    "SettleItem",
    "product_device",
]


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
        m, grad, beta, transposed: as in `MultiplyItem`.
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
        m, factor, transposed: as in the `ProductItem` that made the product.
        kept: becomes the average, with 0 for NaN and Inf; vectors of zeros leave the earlier ones.
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


@runtime_checkable
class ProductDevice(Protocol):
    """A `Device` on which power iterations multiply the matrices that live there."""

    def multiply(self, matrices: Sequence[MultiplyItem]) -> Callable[[], None]:
        """Start products; the returned function waits until they are in ``out``.

        They are a rank's own, so their last bits may depend on the device.
        """
        ...

    def apply(self, matrices: Sequence[ApplyItem]) -> None:
        """Update averages and matrices; see `ApplyItem`."""
        ...

    def factor_device(self) -> FactorDevice | None:
        """This device, if thin factors travel from it to the devices of other ranks.

        None: through the hosts. All ranks give the same answer.
        """
        ...


class PeerProducts(Protocol):
    """Products in the memory of a `FactorDevice`, as numbers that an engine can add."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        ...


class FactorDevice(Protocol):
    """A device on which the factors of matrices stay, of a job as `PeerDevice` has it."""

    def zeros(self, numel: int) -> FloatArray:
        """See `Device.zeros`."""
        ...

    def from_host(self, array: FloatArray) -> FloatArray:
        """See `Device.from_host`."""
        ...

    def begin_products(
        self, name: str, matrices: Sequence[ProductItem], *, half: bool
    ) -> PeerProducts:
        """Start products, one after the other; they hold until the next call with this name.

        A rank's own products may depend on the device in their last bits, and bases differ from the core's
        there; but bases of equal factors are equal on all devices.

        Args:
            half: products travel as float16.
        """
        ...

    def settle(
        self,
        own_products: PeerProducts,
        average: object,
        matrices: Sequence[SettleItem],
        *,
        of_average: bool,
    ) -> None:
        """Use the average of all ranks' products, which is applied to all matrices or none.

        Args:
            own_products: this rank's products, from `begin_products`.
            average: of all ranks.
            of_average: matrices lose the product with the average, not that with what was sent.
        """
        ...


class _HostDevice:
    """The host's products, by the core."""

    @timed("encode")
    def multiply(self, matrices: Sequence[MultiplyItem]) -> Callable[[], None]:
        """See `ProductDevice`."""
        for m, grad, beta, factor, transposed, out in matrices:
            product = _core.multiply_transposed if transposed else _core.multiply
            product(m, grad, factor, out, beta=beta)
        return lambda: None

    @timed("decode")
    def apply(self, matrices: Sequence[ApplyItem]) -> None:
        """See `ProductDevice`."""
        for m, average, begun, p, q, own_p, own_q, safe in matrices:
            output = {"added" if begun else "assigned": average}
            if own_p is p and own_q is q:
                _core.outer(p, q, **output, subtracted=m)
            else:
                _core.outer(p, q, **output)
                _core.outer(own_p, own_q, subtracted=m)
            if not safe:
                _core.zero(m.reshape(-1))

    def factor_device(self) -> FactorDevice | None:
        """None: factors of the host travel from the host."""
        return None


HOST_PRODUCTS: ProductDevice = _HostDevice()


def product_device(device: Device) -> ProductDevice:
    """What multiplies the matrices in the memory of a device.

    Raises:
        TypeError: the device is neither the host nor a `ProductDevice`.
    """
    if device is HOST:
        return HOST_PRODUCTS
    if not _multiplies(type(device)):
        raise TypeError(f"{type(device).__name__} does not multiply matrices; see ProductDevice")
    return cast(ProductDevice, device)


@cache  # the check takes as long as the launch of a kernel, and each matrix asks in each step
def _multiplies(kind: type) -> bool:
    return issubclass(kind, ProductDevice)
