"""Phases of a power iteration: products of matrices and thin factors, and their averages over the ranks.

Factors are on the host, with matrices on any devices (`HostPhases`); or all are on one device, from which
products travel to those of other ranks (`DevicePhases`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from gradcomp import _core
from gradcomp.codec.arrays import FloatArray, split
from gradcomp.codec.codec import Codec
from gradcomp.codec.devices import HOST, Device, device_of
from gradcomp.exchange.algorithms.factor_device import (
    HOST_PRODUCTS,
    ApplyItem,
    FactorDevice,
    MultiplyItem,
    PeerProducts,
    ProductItem,
    SettleItem,
    product_device,
)
from gradcomp.exchange.algorithms.low_rank import average_of_factors, buffer, is_safe
from gradcomp.exchange.patterns.base import Member
from gradcomp.exchange.rounds import AllReduce, Ready, Request
from gradcomp.stopwatch import timed

__all__ = ["Applied", "DevicePhases", "HostPhases", "Matrix", "Phases", "Products"]

_orthonormalize = timed("encode")(_core.orthonormalize)

Applied: TypeAlias = Literal["nothing", "own", "average"]
"""What M loses, when the average of a phase is applied: its product with this rank's own product, or with the
average of all ranks."""


class Matrix:
    """One tensor in one step: M, in the residual's own memory, and the average computed so far."""

    def __init__(
        self,
        member: Member,
        step: int,
        rank: int,
        grad: FloatArray,
        residual: FloatArray,
        beta: float,
    ) -> None:
        self.key = member.key
        self.step = step
        self.rank = rank
        self.device = device_of(grad)
        self._member = member
        self._sides: tuple[int, ...] = grad.shape
        self._m = residual
        self._grad: FloatArray | None = grad
        self._beta = beta
        self._average: FloatArray | None = None

    def size(self, *, of_rows: bool) -> int:
        """Elements of the factor for rows, or for columns."""
        return self.rank * self._sides[0 if of_rows else 1]

    @property
    def average(self) -> FloatArray:
        """The average so far; at first memory of any content, which the thread that decodes takes."""
        if self._average is None:
            self._average = self._member.out.reshape(self._sides)
        return self._average

    def to_multiply(self, factor: FloatArray, transposed: bool, out: FloatArray) -> MultiplyItem:
        """A product; the first one also sets M to beta * residual + gradient."""
        return MultiplyItem(self._m, self._take_grad(), self._beta, factor, transposed, out)

    def to_product(self, factor: FloatArray, transposed: bool) -> ProductItem:
        """As `to_multiply`, on one device."""
        return ProductItem(self._m, self._take_grad(), self._beta, factor, self.rank, transposed)

    def to_apply(
        self, p: FloatArray, q: FloatArray, own_p: FloatArray, own_q: FloatArray
    ) -> ApplyItem:
        """Add p q^T to the average, and subtract own_p own_q^T from M.

        Products of an M that is not finite are not finite, so the factors tell.
        """
        begun = self._average is not None
        safe = is_safe(own_p) and is_safe(own_q)
        return ApplyItem(self._m, self.average, begun, p, q, own_p, own_q, safe)

    def to_settle(
        self, factor: FloatArray, transposed: bool, kept: FloatArray, applied: Applied
    ) -> SettleItem:
        """As `to_apply`, on one device, on which finiteness has not been checked yet."""
        begun = self._average is not None
        average = None if applied == "nothing" else self.average
        return SettleItem(self._m, factor, transposed, kept, average, begun)

    def _take_grad(self) -> FloatArray | None:
        grad, self._grad = self._grad, None
        return grad


class Products(ABC):
    """What a phase has computed: this rank's products, and their averages."""

    @abstractmethod
    def settle(self, kept: Sequence[FloatArray | None], applied: Applied) -> list[FloatArray]:
        """Apply the averages, and keep them as factors of the next phase, with 0 for NaN and Inf.

        A vector of zeros, as of a gradient of zeros, would determine no direction. Products with what
        replaces it may be 0 in all later steps. So the earlier vector stays instead.

        Args:
            kept: earlier factors; their memory may be used again; None where there is none.
        """


class Phases(ABC):
    """How the products of a bucket's matrices are computed and averaged."""

    @abstractmethod
    def place(self, factor: FloatArray) -> FloatArray:
        """The factor in the memory where products take it: a copy, unless it is in that memory already."""

    @abstractmethod
    def multiply(
        self,
        name: str,
        matrices: Sequence[Matrix],
        factors: Sequence[FloatArray],
        transposed: Sequence[bool],
    ) -> Generator[Request | Ready, Any, Products]:
        """Orthonormalize factors in place, multiply matrices with them, and average over the ranks.

        Args:
            name: of the request.
            transposed: a factor of rows is multiplied from the left.
        """


@dataclass(frozen=True)
class HostPhases(Phases):
    """Factors are on the host, where the core computes all that is not a device's product.

    Args:
        codec: of factors that travel.
        method: of orthonormalization.
    """

    codec: Codec
    method: str

    def place(self, factor: FloatArray) -> FloatArray:
        """See `Phases.place`."""
        return device_of(factor).to_host(factor)

    def multiply(
        self,
        name: str,
        matrices: Sequence[Matrix],
        factors: Sequence[FloatArray],
        transposed: Sequence[bool],
    ) -> Generator[Request | Ready, Any, Products]:
        """See `Phases.multiply`."""
        for matrix, factor in zip(matrices, factors, strict=True):
            _orthonormalize(factor, matrix.rank, self.method)
        sizes = [
            matrix.size(of_rows=not left) for matrix, left in zip(matrices, transposed, strict=True)
        ]
        flat, parts = buffer(sizes)
        yield from _multiply(name, matrices, factors, transposed, parts)
        own_products, mean = yield from average_of_factors(name, flat, self.codec)
        return _HostProducts(
            matrices, factors, transposed, split(own_products, sizes), split(mean, sizes)
        )


def _multiply(
    name: str,
    matrices: Sequence[Matrix],
    factors: Sequence[FloatArray],
    transposed: Sequence[bool],
    outputs: Sequence[FloatArray],
) -> Generator[Ready, Any, None]:
    """Products of all matrices, on each one's device."""
    of_devices: dict[Device, list[MultiplyItem]] = {}
    for matrix, factor, side, out in zip(matrices, factors, transposed, outputs, strict=True):
        of_devices.setdefault(matrix.device, []).append(matrix.to_multiply(factor, side, out))
    host_items = of_devices.pop(HOST, [])
    waits = [product_device(device).multiply(works) for device, works in of_devices.items()]
    HOST_PRODUCTS.multiply(host_items)

    def wait() -> None:
        for wait_for_device in waits:
            wait_for_device()

    if waits:
        yield Ready(name, wait)


@dataclass(frozen=True)
class _HostProducts(Products):
    matrices: Sequence[Matrix]
    factors: Sequence[FloatArray]
    transposed: Sequence[bool]
    own_products: Sequence[FloatArray]
    means: Sequence[FloatArray]

    def settle(self, kept: Sequence[FloatArray | None], applied: Applied) -> list[FloatArray]:
        """See `Products.settle`."""
        if applied != "nothing":
            self._apply(self.own_products if applied == "own" else self.means)
        return [
            _known(mean, earlier, matrix.rank)
            for mean, earlier, matrix in zip(self.means, kept, self.matrices, strict=True)
        ]

    def _apply(self, sent: Sequence[FloatArray]) -> None:
        """Update all averages and residuals, on each matrix's device."""
        of_devices: dict[Device, list[ApplyItem]] = {}
        for matrix, known, left, own_product, mean in zip(
            self.matrices, self.factors, self.transposed, sent, self.means, strict=True
        ):
            four = (known, mean, known, own_product) if left else (mean, known, own_product, known)
            of_devices.setdefault(matrix.device, []).append(matrix.to_apply(*four))
        for device, works in of_devices.items():
            product_device(device).apply(works)


def _known(mean: FloatArray, earlier: FloatArray | None, rank: int) -> FloatArray:
    """The average with 0 for NaN and Inf, and with the earlier vectors where all elements are 0."""
    kept = mean.copy()
    _core.zero_nonfinite(kept)
    if earlier is not None and earlier.size == kept.size:
        vectors = kept.reshape(rank, -1)
        unknown = ~vectors.any(axis=1)
        if unknown.any():
            on_host = device_of(earlier).to_host(earlier)
            vectors[unknown] = on_host.reshape(rank, -1)[unknown]
    return kept


@dataclass(frozen=True)
class DevicePhases(Phases):
    """Factors are on the device of all matrices; the host only launches.

    Args:
        half: factors travel as float16.
    """

    device: FactorDevice
    half: bool

    def place(self, factor: FloatArray) -> FloatArray:
        """See `Phases.place`."""
        current = device_of(factor)
        if product_device(current).factor_device() is self.device:
            return factor
        return self.device.from_host(current.to_host(factor))

    def multiply(
        self,
        name: str,
        matrices: Sequence[Matrix],
        factors: Sequence[FloatArray],
        transposed: Sequence[bool],
    ) -> Generator[Request | Ready, Any, Products]:
        """See `Phases.multiply`."""
        works = [
            matrix.to_product(factor, left)
            for matrix, factor, left in zip(matrices, factors, transposed, strict=True)
        ]
        products: Any = self.device.begin_products(name, works, half=self.half)
        average = yield AllReduce(name, products)
        return _DeviceProducts(self, matrices, factors, transposed, products, average)


@dataclass(frozen=True)
class _DeviceProducts(Products):
    phases: DevicePhases
    matrices: Sequence[Matrix]
    factors: Sequence[FloatArray]
    transposed: Sequence[bool]
    own_products: PeerProducts
    average: object

    def settle(self, kept: Sequence[FloatArray | None], applied: Applied) -> list[FloatArray]:
        """See `Products.settle`."""
        works = []
        for matrix, factor, left, room in zip(
            self.matrices, self.factors, self.transposed, kept, strict=True
        ):
            size = matrix.size(of_rows=not left)
            if room is None or room.size != size:
                room = self.phases.device.zeros(size)
            to = self.phases.place(room)
            works.append(matrix.to_settle(factor, left, to, applied))
        of_average = applied == "average"
        self.phases.device.settle(self.own_products, self.average, works, of_average=of_average)
        return [work.kept for work in works]
