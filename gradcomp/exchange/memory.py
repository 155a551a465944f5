"""Memories: a rank's state from one step to the next. Their contract, and error feedback.

`gradcomp.exchange.momentum` has the memories of momentum. All keep each tensor's arrays by name; the
arithmetic is the core's (csrc/codec/memory.hpp).
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import numpy as np

from gradcomp import _core
from gradcomp.codec.arrays import FloatArray
from gradcomp.codec.batch_items import EncodeItem
from gradcomp.codec.codec import Codec
from gradcomp.codec.correction import Correction
from gradcomp.codec.devices import HOST, Device, device_of
from gradcomp.errors import SpecError, StateError
from gradcomp.exchange.rates import Rates
from gradcomp.exchange.rounds import TensorKey
from gradcomp.stopwatch import timed

__all__ = [
    "EF21",
    "ESTIMATE",
    "ESTIMATE_MEAN",
    "ESTIMATE_ROWS",
    "MOMENTUM_CORRECTION",
    "NORM",
    "RESIDUAL_LR",
    "Arrays",
    "Memory",
    "MemoryState",
    "NoMemory",
    "NormLimit",
    "Residual",
    "ScaledResidual",
    "Source",
    "array_of",
]

Arrays = dict[str, FloatArray]
"""One array per tensor, by name: flat float32, on the device of the tensor's last gradient."""

MemoryState = dict[str, Arrays]
"""The arrays of all memories and algorithms, by kind."""

MOMENTUM_CORRECTION = "momentum_correction"
"""The memory that applies the optimizer's momentum, and must then do so for every tensor."""

EF21 = "ef21"
"""The memory of differences; see `gradcomp.exchange.estimates.Estimates`."""

ESTIMATE = "estimate"
"""Kind of state: EF21's estimate of a rank's gradient."""

ESTIMATE_MEAN = "estimate_mean"
"""Kind of state: the mean of all ranks' estimates, equal on all of them."""

ESTIMATE_ROWS = "estimate_rows"
"""Kind of state: the sum of all ranks' estimates in a rank's own rows, in a reduce-scatter."""

RESIDUAL_LR = "residual_lr"
"""Kind of state: the learning rate of a residual's last step, one element for each tensor."""


NORM = "norm"
"""Kind of state: the running mean of a tensor's norms, one element, for `NormLimit`."""


class Source(NamedTuple):
    """Input of a codec call: ``grad``, or with a residual the corrected gradient; all flat float32.

    Encoding then leaves ``residual = beta * residual + gamma * grad - decode(sent)``.
    """

    grad: FloatArray
    residual: FloatArray | None = None
    beta: float = 1.0
    gamma: float = 1.0
    correction: Correction | None = None

    def part(self, begin: int, end: int) -> Source:
        """The elements [begin, end), as views; encoding updates their part of the residual."""
        residual, correction = self.residual, self.correction
        if correction is not None:
            correction = correction._replace(momentum=correction.momentum[begin:end])
        return self._replace(
            grad=self.grad[begin:end],
            residual=None if residual is None else residual[begin:end],
            correction=correction,
        )

    def to_encode(self, codec: Codec, seed: int, step: int, tensor_id: int) -> EncodeItem:
        """The codec call; see `EncodeItem`."""
        return EncodeItem(
            codec,
            self.grad,
            seed,
            step,
            tensor_id,
            residual=self.residual,
            beta=self.beta,
            gamma=self.gamma,
            correction=self.correction,
        )


class Memory(Protocol):
    """Wraps the compression of one tensor in one step.

    Callers use `source`, then `sent`. Rounds of several codec calls know the sent elements only
    later; they use `compensate`, then `update`.
    """

    def source(self, grad: FloatArray, key: TensorKey) -> Source:
        """The input of the codec for this gradient, flat. Valid until `sent`."""
        ...

    def sent(self, key: TensorKey) -> None:
        """Report that the source has been encoded."""
        ...

    def compensate(self, grad: FloatArray, key: TensorKey) -> FloatArray:
        """The corrected gradient, flat. Valid until `update`."""
        ...

    def update(self, key: TensorKey, sent: FloatArray) -> None:
        """Subtract the sent elements, flat, as every rank decodes them."""
        ...

    def unsent(self, key: TensorKey) -> FloatArray | None:
        """After `update`: the unsent rest, flat; callers may add to it. None if it is not kept."""
        ...


class NoMemory:
    """Keeps nothing: each step stands alone."""

    def source(self, grad: FloatArray, key: TensorKey) -> Source:
        """The gradient itself."""
        return Source(grad.reshape(-1))

    def sent(self, key: TensorKey) -> None:
        """Nothing to keep."""

    def compensate(self, grad: FloatArray, key: TensorKey) -> FloatArray:
        """The gradient itself."""
        return grad.reshape(-1)

    def update(self, key: TensorKey, sent: FloatArray) -> None:
        """Nothing to keep."""

    def unsent(self, key: TensorKey) -> None:
        """None: nothing is kept."""


class NormLimit:
    """Bounds gradients by a multiple of the running mean of their tensor's norms.

    The mean is ``0.9 * mean + 0.1 * norm``, of the norms that count: a spike raises it by a factor of
    ``0.9 + 0.1 * limit`` at most. Norms of 0 and norms that are not finite leave it as it is. What a gradient
    has beyond its bound is lost.

    Args:
        limit: the multiple, at least 1.
        norms: the means, by tensor name; arrays of one element.

    Raises:
        SpecError: ``limit`` is below 1.
    """

    def __init__(self, limit: float, norms: Arrays) -> None:
        if limit < 1:
            raise SpecError(
                f"residual(limit={limit}): it must be at least 1, as gradients of the mean norm would be "
                "scaled down, or 0 for no limit; 5 to 10 leaves ordinary gradients as they are"
            )
        self.limit = limit
        self._norms = norms

    def factor(self, grad: FloatArray, name: str) -> float:
        """The factor of a tensor's gradient, flat; 1 if its norm is within the bound."""
        norm = _core.l2_norm(grad)
        if not 0 < norm < math.inf:
            return 1.0
        mean = self._norms.get(name)
        if mean is None:
            self._norms[name] = np.array([min(norm, _LARGEST)], np.float32)
            return 1.0
        counted = min(norm, self.limit * float(mean[0]))
        mean[0] = min(0.9 * float(mean[0]) + 0.1 * counted, _LARGEST)
        return counted / norm


_LARGEST = float(np.finfo(np.float32).max)


class Residual:
    """Error feedback: the unsent rest is added to the next step's gradient.

    ``corrected = beta * residual + gamma * grad``; ``residual = corrected - decode(sent)``,
    exactly, so that rounding losses are kept too. Stich et al., "Sparsified SGD with Memory"
    (NeurIPS 2018), algorithm 1, which has beta = gamma = 1.

    Deviation from the paper: elements that are not finite after the update are reset to 0. A NaN or
    Inf is thus sent at most once and never stays behind in the memory.

    With ``average`` that share of the residual waits: ``corrected = (1 - average) * beta * residual
    + gamma * grad``; ``residual = average * beta * residual + corrected - decode(sent)``. This is
    LoCo of Xie et al., "LoCo: Low-Bit Communication Adaptor for Large-Scale Model Training"
    (arXiv:2407.04480): its moving average of errors is ``(1 - average) * residual``. Deviation from
    LoCo: float32 instead of 8 bits. Its resets are `RankState`'s, which drops the residual.

    Args:
        beta, gamma, average: see above.
        residuals: by tensor name.
        limit: a gradient counts with at most the norm of `NormLimit`; None: with all of it.
    """

    def __init__(
        self,
        beta: float,
        gamma: float,
        residuals: Arrays,
        average: float = 0.0,
        limit: NormLimit | None = None,
    ) -> None:
        self.beta = beta
        self.gamma = gamma
        self.average = average
        self._residuals = residuals
        self._limit = limit
        self._waiting: dict[str, tuple[FloatArray, float]] = {}

    def source(self, grad: FloatArray, key: TensorKey) -> Source:
        """The gradient with its residual, which encoding updates."""
        residual = self._residuals.get(key.name)
        device = device_of(grad)
        if residual is None or residual.size != key.numel or device_of(residual) is not device:
            residual = array_of(self._residuals, key, "residual", device)
        weight = self._weight(key) if self.average else self._beta(key)
        gamma = self.gamma if self._limit is None else self._gamma(grad, key)
        return Source(grad.reshape(-1), residual, weight, gamma)

    def sent(self, key: TensorKey) -> None:
        """Add the part that has waited, if any."""
        if key.name in self._waiting:
            _core.keep_waiting(self._residuals[key.name], *self._waiting.pop(key.name))

    @timed("compensate")
    def compensate(self, grad: FloatArray, key: TensorKey) -> FloatArray:
        """The corrected gradient, in the residual's own memory."""
        residual = array_of(self._residuals, key, "residual")
        _core.compensate(residual, grad.reshape(-1), self._weight(key), self._gamma(grad, key))
        return residual

    @timed("compensate")
    def update(self, key: TensorKey, sent: FloatArray) -> None:
        """residual = corrected - sent, plus the part that has waited."""
        _core.subtract_sent(self._residuals[key.name], sent)
        self.sent(key)

    @timed("compensate")
    def release(self, grad: FloatArray, key: TensorKey) -> FloatArray:
        """The gradient plus all of the residual, which is removed; flat, perhaps ``grad`` itself."""
        beta, gamma = self._beta(key), self._gamma(grad, key)
        if key.name not in self._residuals and gamma == 1:
            return grad.reshape(-1)
        residual = array_of(self._residuals, key, "residual")
        _core.compensate(residual, grad.reshape(-1), beta, gamma)
        return self._residuals.pop(key.name)

    def _weight(self, key: TensorKey) -> float:
        """The weight of the residual in the corrected gradient; keeps the part that waits."""
        beta = self._beta(key)
        if not self.average:
            return beta
        self._waiting[key.name] = self._residuals[key.name].copy(), beta * self.average
        return beta * (1.0 - self.average)

    def _beta(self, key: TensorKey) -> float:
        """The weight of the residual in this step."""
        return self.beta

    def _gamma(self, grad: FloatArray, key: TensorKey) -> float:
        """The weight of the gradient in this step."""
        if self._limit is None:
            return self.gamma
        return self.gamma * self._limit.factor(grad.reshape(-1), key.name)

    def unsent(self, key: TensorKey) -> FloatArray:
        """The residual."""
        return self._residuals[key.name]


class ScaledResidual(Residual):
    """Error feedback in units of parameter updates: ``residual(lr=scale)``.

    ``corrected = beta * (last_rate / rate) * residual + gamma * grad``, so that a part that waits
    is applied with the learning rate under which it was measured. Zheng, Huang, Kwok,
    "Communication-Efficient Distributed Blockwise Momentum SGD with Error-Feedback" (NeurIPS 2019),
    algorithms 1 and 3.

    At a rate of 0 the optimizer applies nothing. The gradient is then sent without the residual,
    which keeps its elements and its rate. State: ``residual``, and ``residual_lr``, of one element.

    Args:
        last: the rates of the residuals, by tensor name.
        rates: the present rates.
    """

    def __init__(
        self,
        beta: float,
        gamma: float,
        residuals: Arrays,
        last: Arrays,
        rates: Rates,
        average: float = 0.0,
        limit: NormLimit | None = None,
    ) -> None:
        super().__init__(beta, gamma, residuals, average, limit)
        self._last = last
        self._rates = rates

    def source(self, grad: FloatArray, key: TensorKey) -> Source:
        """The gradient with its residual; without it at a rate of 0."""
        if self._rates.of(key.name) == 0:
            return Source(grad.reshape(-1))
        return super().source(grad, key)

    def compensate(self, grad: FloatArray, key: TensorKey) -> FloatArray:
        """The corrected gradient, in the residual's own memory; the gradient at a rate of 0."""
        if self._rates.of(key.name) == 0:
            return grad.reshape(-1)
        return super().compensate(grad, key)

    def release(self, grad: FloatArray, key: TensorKey) -> FloatArray:
        """The gradient with all of the residual; the gradient at a rate of 0."""
        if self._rates.of(key.name) == 0:
            return grad.reshape(-1)
        return super().release(grad, key)

    def update(self, key: TensorKey, sent: FloatArray) -> None:
        """residual = corrected - sent; nothing at a rate of 0."""
        if self._rates.of(key.name) != 0:
            super().update(key, sent)

    def unsent(self, key: TensorKey) -> FloatArray | None:  # type: ignore[override]
        """The residual; None at a rate of 0."""
        return None if self._rates.of(key.name) == 0 else super().unsent(key)

    def _beta(self, key: TensorKey) -> float:
        """The weight of the residual in this step; the residual has the rate of this step from now on."""
        return self.beta * self._rates.advance(key.name, self._last)


def array_of(arrays: Arrays, key: TensorKey, kind: str, device: Device = HOST) -> FloatArray:
    """The array of a tensor on a device, to which it moves; zeros if it has none yet.

    Raises:
        StateError: the array has another size than the tensor.
    """
    array = arrays.get(key.name)
    if array is None:
        array = arrays[key.name] = device.zeros(key.numel)
    if array.size != key.numel:
        raise StateError(
            f"the {kind} of '{key.name}' has {array.size} elements and its gradient {key.numel}: "
            "the state was saved from another model, or the tensor changed shape"
        )
    current = device_of(array)
    if current is not device:
        array = arrays[key.name] = device.from_host(current.to_host(array))
    return array
