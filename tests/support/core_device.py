"""A device with the core itself as kernels, on arrays that no other code can read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradcomp import _core
from gradcomp.codec.arrays import ByteArray, FloatArray
from gradcomp.codec.batch_items import AdvanceItem, DecodeItem, DifferItem, EncodeItem, GiveItem
from gradcomp.codec.codec import Codec
from gradcomp.codec.devices import HOST, DeviceArray, Encoded, PeerDevice
from gradcomp.codec.spec import Spec
from gradcomp.exchange.algorithms.factor_device import (
    HOST_PRODUCTS,
    ApplyItem,
    FactorDevice,
    MultiplyItem,
)


class CoreArray(DeviceArray):
    """An array of a `CoreDevice`; only the device reads its elements."""

    def __init__(self, device: CoreDevice, elements: FloatArray) -> None:
        self.device = device
        self.elements = elements
        self.shape = elements.shape
        self.size = elements.size
        self.nbytes = elements.nbytes

    def reshape(self, shape: int | tuple[int, ...]) -> Any:
        return CoreArray(self.device, self.elements.reshape(shape))

    def __getitem__(self, elements: slice) -> Any:
        return CoreArray(self.device, self.elements[elements])


class CoreDevice:
    """Takes tensors of at least ``least`` elements, and logs its calls."""

    def __init__(self, least: int = 0) -> None:
        self.least = least
        self.log: list[str] = []

    def takes(self, spec: Spec, shape: tuple[int, ...]) -> bool:
        return int(np.prod(shape)) >= self.least

    def zeros(self, numel: int) -> Any:
        return self._array(np.zeros(numel, np.float32))

    def encode(self, tensors: Sequence[EncodeItem]) -> Encoded:
        self.log.append(f"launch {len(tensors)}")
        own = []
        for tensor in tensors:
            correction = tensor.correction
            if correction is not None:
                momentum = self._elements(correction.momentum)
                correction = correction._replace(momentum=momentum)
            residual = None if tensor.residual is None else self._elements(tensor.residual)
            grad = self._elements(tensor.grad)
            own.append(tensor._replace(grad=grad, residual=residual, correction=correction))
        out, sizes = _core.encode_batch(own)

        def wait() -> tuple[np.ndarray, list[int]]:
            self.log.append(f"wait {len(tensors)}")
            return out[: sum(sizes)], sizes

        return wait

    def to_peers(self, codec: Codec) -> PeerDevice | None:
        return None

    def factor_device(self) -> FactorDevice | None:
        return None

    def decode_add(self, tensors: Sequence[DecodeItem], weight: float) -> None:
        self.log.append(f"decode {len(tensors)}")
        own = [tensor._replace(out=self._elements(tensor.out)) for tensor in tensors]
        _core.decode_batch_add(own, weight)

    def add(self, codec: Codec, frame: ByteArray, out: Any, weight: float) -> None:
        self.log.append("add")
        codec.decode_add(frame, self._elements(out), weight)

    def give(self, tensors: Sequence[GiveItem]) -> None:
        self.log.append(f"give {len(tensors)}")
        HOST.give(
            [
                one._replace(
                    grad=self._elements(one.grad),
                    residual=None if one.residual is None else self._elements(one.residual),
                    out=self._elements(one.out),
                )
                for one in tensors
            ]
        )

    def differ(self, tensors: Sequence[DifferItem]) -> None:
        HOST.differ([DifferItem(*map(self._elements, one)) for one in tensors])

    def advance(self, tensors: Sequence[AdvanceItem]) -> None:
        HOST.advance(
            [
                AdvanceItem(*(None if array is None else self._elements(array) for array in one))  # type: ignore[arg-type]
                for one in tensors
            ]
        )

    def multiply(self, matrices: Sequence[MultiplyItem]) -> Callable[[], None]:
        self.log.append(f"multiply {len(matrices)}")
        HOST_PRODUCTS.multiply(
            [
                work._replace(
                    m=self._elements(work.m),
                    grad=None if work.grad is None else self._elements(work.grad),
                )
                for work in matrices
            ]
        )
        return lambda: self.log.append(f"wait {len(matrices)}")

    def apply(self, matrices: Sequence[ApplyItem]) -> None:
        self.log.append(f"apply {len(matrices)}")
        HOST_PRODUCTS.apply(
            [
                work._replace(m=self._elements(work.m), average=self._elements(work.average))
                for work in matrices
            ]
        )

    def copy(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        HOST.copy([(self._elements(one), self._elements(other)) for one, other in pairs])

    def scale(self, arrays: Sequence[Any], factor: float) -> None:
        HOST.scale([self._elements(array) for array in arrays], factor)

    def poison(self, grads: Sequence[Any]) -> Sequence[Any]:
        self.log.append(f"poison {len(grads)}")
        for grad in grads:
            own = self._elements(grad)
            (found,) = HOST.poison([own])
            if found is not own:
                own[:] = found
        return grads

    def to_host(self, array: Any) -> FloatArray:
        return self._elements(array).copy()

    def from_host(self, array: FloatArray) -> Any:
        return self._array(array.copy())

    def _array(self, elements: FloatArray) -> Any:
        return CoreArray(self, elements)

    def _elements(self, array: Any) -> FloatArray:
        assert array.device is self
        elements: FloatArray = array.elements
        return elements
