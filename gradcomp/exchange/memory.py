"""Memories: a rank's state from one step to the next.

The classes keep each tensor's arrays by name; the arithmetic is the core's (csrc/codec/memory.hpp).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from gradcomp import _core
from gradcomp.codec.arrays import FloatArray
from gradcomp.codec.batch_items import EncodeItem
from gradcomp.codec.codec import Codec
from gradcomp.codec.correction import Correction
from gradcomp.codec.devices import HOST, Device, device_of
from gradcomp.codec.spec import Stage
from gradcomp.errors import StateError
from gradcomp.exchange.rates import Rates
from gradcomp.exchange.rounds import TensorKey
from gradcomp.stopwatch import timed

__all__ = [
    "MOMENTUM_CORRECTION",
    "RESIDUAL_LR",
    "Arrays",
    "Memory",
    "MemoryState",
    "MomentumCorrection",
    "NoMemory",
    "Residual",
    "ScaledResidual",
    "Signum",
    "Source",
    "array_of",
    "hands_over",
    "make_memory",
]

Arrays = dict[str, FloatArray]
"""One array per tensor, by name: flat float32, on the device of the tensor's last gradient."""

MemoryState = dict[str, Arrays]
"""The arrays of all memories and algorithms, by kind."""

MOMENTUM_CORRECTION = "momentum_correction"
"""The memory that applies the optimizer's momentum, and must then do so for every tensor."""

RESIDUAL_LR = "residual_lr"
"""Kind of state: the learning rate of a residual's last step, one element for each tensor."""


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
    (arXiv:2407.04480): its moving average of errors is ``(1 - average) * residual``. Deviations from
    LoCo: float32 in place of 8 bits, and no reset.
    """

    def __init__(self, beta: float, gamma: float, residuals: Arrays, average: float = 0.0) -> None:
        self.beta = beta
        self.gamma = gamma
        self.average = average
        self._residuals = residuals
        self._waiting: dict[str, tuple[FloatArray, float]] = {}

    def source(self, grad: FloatArray, key: TensorKey) -> Source:
        """The gradient with its residual, which encoding updates."""
        residual = array_of(self._residuals, key, "residual", device_of(grad))
        return Source(grad.reshape(-1), residual, self._weight(key), self.gamma)

    def sent(self, key: TensorKey) -> None:
        """Add the part that has waited, if any."""
        if key.name in self._waiting:
            _core.keep_waiting(self._residuals[key.name], *self._waiting.pop(key.name))

    @timed("compensate")
    def compensate(self, grad: FloatArray, key: TensorKey) -> FloatArray:
        """The corrected gradient, in the residual's own memory."""
        residual = array_of(self._residuals, key, "residual")
        _core.compensate(residual, grad.reshape(-1), self._weight(key), self.gamma)
        return residual

    @timed("compensate")
    def update(self, key: TensorKey, sent: FloatArray) -> None:
        """residual = corrected - sent, plus the part that has waited."""
        _core.subtract_sent(self._residuals[key.name], sent)
        self.sent(key)

    @timed("compensate")
    def release(self, grad: FloatArray, key: TensorKey) -> FloatArray:
        """The gradient with all of the residual, of which nothing is left; flat, perhaps ``grad`` itself."""
        beta = self._beta(key)
        if key.name not in self._residuals and self.gamma == 1:
            return grad.reshape(-1)
        residual = array_of(self._residuals, key, "residual")
        _core.compensate(residual, grad.reshape(-1), beta, self.gamma)
        return self._residuals.pop(key.name)

    def _weight(self, key: TensorKey) -> float:
        """The weight of the residual in the corrected gradient; keeps the part that waits."""
        beta = self._beta(key)
        if self.average:
            self._waiting[key.name] = self._residuals[key.name].copy(), beta * self.average
        return beta * (1.0 - self.average)

    def _beta(self, key: TensorKey) -> float:
        """The weight of the residual in this step."""
        return self.beta

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
    ) -> None:
        super().__init__(beta, gamma, residuals, average)
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
        """The weight of the residual in this step, whose rate the residual has from now on."""
        return self.beta * self._rates.advance(key.name, self._last)


class Signum:
    """Momentum before compression: a rank sends the moving average of its own gradients.

    ``m = momentum * m + (1 - momentum) * grad``; in the first step ``m = grad``. With ``sign`` this
    is Signum of Bernstein et al., "signSGD: Compressed Optimisation for Non-Convex Problems"
    (ICML 2018), algorithm 2. The unsent rest is not kept.

    Deviations from the paper: ranks average scaled signs instead of voting, and m starts at the
    first gradient instead of a fraction of it. As with `Residual`, elements that are not finite are
    reset to 0 after they were sent.
    """

    def __init__(self, momentum: float, momenta: Arrays) -> None:
        self.momentum = momentum
        self._momenta = momenta
        self._finite: dict[str, bool] = {}

    def source(self, grad: FloatArray, key: TensorKey) -> Source:
        """The moving average."""
        return Source(self.compensate(grad, key))

    @timed("compensate")
    def compensate(self, grad: FloatArray, key: TensorKey) -> FloatArray:
        """The moving average, this step's gradient included."""
        first = key.name not in self._momenta
        average = array_of(self._momenta, key, "momentum")
        finite = _core.update_average(average, grad.reshape(-1), self.momentum, first)
        self._finite[key.name] = finite
        return average

    @timed("compensate")
    def sent(self, key: TensorKey) -> None:
        """Reset elements of the moving average that are not finite."""
        if not self._finite.pop(key.name):
            _core.zero_nonfinite(self._momenta[key.name])

    def update(self, key: TensorKey, sent: FloatArray) -> None:
        """As `sent`: the moving average does not depend on the sent elements."""
        self.sent(key)

    def unsent(self, key: TensorKey) -> None:
        """None: the unsent rest is not kept."""


class MomentumCorrection:
    """DGC's memory: each rank applies the optimizer's momentum before elements are chosen.

    Lin et al., "Deep Gradient Compression" (ICLR 2018), sections 3.2 and 3.3. ``m = momentum * m +
    grad``; ``v += m``. Sent elements are subtracted from v, and with masking their m is set to 0.
    See `gradcomp.codec.correction.Correction`. State: v is the ``residual``, m the ``momentum``.

    Gradients of tensors that travel dense are averaged first; see `of_average`.

    ``clip=local_norm`` is the clipping of the authors' code; ``clip=scaled_norm`` is the paper's.
    The paper's threshold for a rank's share g / N of the sum is N**-0.5 of the sum's threshold. So
    the threshold for g itself is N**0.5 of it.

    Deviations: clipping limits the norm of each tensor's gradient. The paper limits the norm of the
    whole model's gradient; but here gradients are sent before the last one is known. Rounding losses
    (``values=fp16``) stay in v; the authors' code drops them. Elements that are not finite are
    reset to 0, as in `Residual`.
    """

    def __init__(
        self,
        params: Mapping[str, Any],
        velocities: Arrays,
        momenta: Arrays,
        world_size: int,
    ) -> None:
        self.momentum = float(params["momentum"])
        self.nesterov = bool(params["nesterov"])
        self._masking = bool(params["masking"])
        clip, clip_norm = params["clip"], float(params["clip_norm"])
        self._clip_average = _core.clip_limit(clip, clip_norm, 1)
        self._clip = _core.clip_limit(clip, clip_norm, world_size)
        self._velocities = velocities
        self._momenta = momenta

    @timed("compensate")
    def source(self, grad: FloatArray, key: TensorKey) -> Source:
        """The gradient with its velocity and momentum, which encoding updates."""
        flat, device = grad.reshape(-1), device_of(grad)
        correction = Correction(
            array_of(self._momenta, key, "momentum", device),
            self.momentum,
            _core.clip_scale(flat, self._clip) if device is HOST else 1.0,
            self.nesterov,
            self._masking,
        )
        velocity = array_of(self._velocities, key, "residual", device)
        return Source(flat, velocity, correction=correction)

    def sent(self, key: TensorKey) -> None:
        """Nothing is left to do."""

    @timed("compensate")
    def compensate(self, grad: FloatArray, key: TensorKey) -> FloatArray:
        """The velocity, this step's momentum included, in its own memory."""
        flat = grad.reshape(-1)
        velocity = array_of(self._velocities, key, "residual")
        momentum = array_of(self._momenta, key, "momentum")
        scale = _core.clip_scale(flat, self._clip)
        _core.correct_momentum(velocity, momentum, flat, self.momentum, scale, self.nesterov)
        return velocity

    @timed("compensate")
    def update(self, key: TensorKey, sent: FloatArray) -> None:
        """velocity -= sent. For masking, an element sent as 0 counts as unsent."""
        velocity, momentum = self._velocities[key.name], self._momenta[key.name]
        _core.subtract_sent_masking(velocity, momentum, sent, self._masking)

    def settle(self, key: TensorKey, momentum: FloatArray) -> None:
        """Continue from the ranks' average momentum, without a velocity; see `unsettled`."""
        self._momenta[key.name] = momentum
        del self._velocities[key.name]

    def unsettled(self, key: TensorKey) -> tuple[FloatArray, FloatArray] | None:
        """The velocity and the momentum of a tensor that was compressed before it went dense.

        Both differ between ranks: `settle` then needs the average momentum. None: nothing to settle.
        """
        if key.name not in self._velocities:
            return None
        return array_of(self._velocities, key, "residual"), array_of(self._momenta, key, "momentum")

    def unsent(self, key: TensorKey) -> FloatArray:
        """The velocity."""
        return self._velocities[key.name]

    @timed("compensate")
    def of_average(self, average: FloatArray, key: TensorKey) -> FloatArray:
        """Apply the momentum to a dense average; returns the optimizer's step, flat.

        The same on every rank. There is no velocity, as nothing is left unsent.
        """
        momentum = array_of(self._momenta, key, "momentum")
        scale = _core.clip_scale(average, self._clip_average)
        return _core.momentum_step(momentum, average, self.momentum, scale, self.nesterov)


def make_memory(
    stage: Stage | None, state: MemoryState, world_size: int, rates: Rates | None = None
) -> Memory:
    """The memory of a spec; its arrays live in ``state``.

    Args:
        rates: the present learning rates; None: unknown.
    """
    if stage is None:
        return NoMemory()
    params: Mapping[str, Any] = stage.params
    if stage.name == MOMENTUM_CORRECTION:
        velocities, momenta = state.setdefault("residual", {}), state.setdefault("momentum", {})
        return MomentumCorrection(params, velocities, momenta, world_size)
    if stage.name == "signum":
        return Signum(params["momentum"], state.setdefault("momentum", {}))
    residuals = state.setdefault("residual", {})
    weights = params["beta"], params["gamma"]
    if params["lr"] == "scale":
        last = state.setdefault(RESIDUAL_LR, {})
        return ScaledResidual(*weights, residuals, last, rates or Rates(), params["average"])
    return Residual(*weights, residuals, params["average"])


def hands_over(stage: Stage | None) -> bool:
    """Whether a memory's `source` leaves all arithmetic on elements to the encoder.

    Its gradients and arrays may then be on any device.
    """
    if stage is None:
        return True
    if stage.name == MOMENTUM_CORRECTION:
        return bool(stage.params["clip"] == "none")
    return stage.name == "residual" and stage.params["average"] == 0


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
    here = device_of(array)
    if here is not device:
        array = arrays[key.name] = device.from_host(here.to_host(array))
    return array
