"""Memories: what a rank keeps of one step for the next."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from gradcomp import _core
from gradcomp.codec.arrays import FloatArray
from gradcomp.codec.batch import Correction, ToEncode
from gradcomp.codec.codec import Codec, get_codec
from gradcomp.codec.spec import Spec, Stage
from gradcomp.errors import StateError
from gradcomp.exchange.rounds import TensorKey
from gradcomp.stopwatch import timed

__all__ = [
    "MOMENTUM_CORRECTION",
    "REPLICATED_KINDS",
    "STATE_KINDS",
    "Arrays",
    "Memory",
    "MemoryState",
    "MomentumCorrection",
    "NoMemory",
    "Residual",
    "Signum",
    "Source",
    "array_of",
    "make_memory",
    "state_of",
]

Arrays = dict[str, FloatArray]
"""An array of each tensor, by name: flat float32."""

MemoryState = dict[str, Arrays]
"""The arrays of all memories and algorithms, by kind."""

MOMENTUM_CORRECTION = "momentum_correction"
"""The memory that applies the optimizer's momentum; then it must do so for every tensor."""

_FACTORS = ("powersgd_p", "powersgd_q")

REPLICATED_KINDS = (*_FACTORS, "basis")
"""Of the kinds of state, those that are equal on all ranks."""

STATE_KINDS = ("residual", "momentum", *REPLICATED_KINDS, "carried")
"""What memories, algorithms and encoders keep: keys of `Pipeline.state_dict`."""


def state_of(spec: Spec) -> dict[str, Hashable]:
    """The kinds of state that a spec keeps.

    Another spec can take over those for which it has an equal value here.
    """
    kinds: dict[str, Hashable] = {}
    memory, algorithm = spec.memory, spec.algorithm
    if algorithm is None:
        codec = get_codec(spec.first_codec)
        if codec.carried:
            kinds["carried"] = codec.name
        if "learns" in codec.caps:
            kinds["basis"] = codec.name
    if memory is not None:
        if memory.name != "signum":
            kinds["residual"] = None
        if memory.name != "residual":
            kinds["momentum"] = memory.name
    if algorithm is not None and algorithm.name == "powersgd":
        kinds["residual"] = None
        kinds.update(dict.fromkeys(_FACTORS, str(algorithm.params["rank"])))
    return kinds


class Source(NamedTuple):
    """What a codec call encodes: ``grad``, or with a residual the corrected gradient.

    The core then leaves ``residual = beta * residual + gamma * grad - decode(sent)`` behind.
    """

    grad: FloatArray
    residual: FloatArray | None = None
    beta: float = 1.0
    gamma: float = 1.0
    correction: Correction | None = None

    def part(self, begin: int, end: int) -> Source:
        """Some of the elements; encoding brings their residual up to date."""
        residual, correction = self.residual, self.correction
        if correction is not None:
            correction = correction._replace(momentum=correction.momentum[begin:end])
        return self._replace(
            grad=self.grad[begin:end],
            residual=None if residual is None else residual[begin:end],
            correction=correction,
        )

    def to_encode(self, codec: Codec, seed: int, step: int, tensor_id: int) -> ToEncode:
        """The codec call; see `ToEncode`."""
        return ToEncode(
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

    Either `source`, then `sent`; or, where what was sent is more than one codec call and known only
    later, `compensate`, then `update`.
    """

    def source(self, grad: FloatArray, key: TensorKey) -> Source:
        """What to encode for this gradient, flat. Valid until `sent`."""
        ...

    def sent(self, key: TensorKey) -> None:
        """Called once the source is encoded."""
        ...

    def compensate(self, grad: FloatArray, key: TensorKey) -> FloatArray:
        """The corrected gradient, flat: what should be sent. Valid until `update`."""
        ...

    def update(self, key: TensorKey, sent: FloatArray) -> None:
        """Take note of what was sent, as every rank decodes it."""
        ...

    def unsent(self, key: TensorKey) -> FloatArray | None:
        """After `update`: what was not sent, to add to; None where it is not kept."""
        ...


class NoMemory:
    """Forgets: each step stands alone."""

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
        """Nothing is kept."""


class Residual:
    """Error feedback: what was not sent is added to the next step's gradient.

    ``corrected = beta * residual + gamma * grad``; ``residual = corrected - decode(sent)``,
    exactly, so that rounding losses are kept too. Stich et al., "Sparsified SGD with Memory"
    (NeurIPS 2018), algorithm 1, which has beta = gamma = 1.

    Deviation from the paper: elements that are not finite after the update are reset to 0. A NaN or
    Inf is thus sent at most once and never stays behind in the memory.
    """

    def __init__(self, beta: float, gamma: float, residuals: Arrays) -> None:
        self.beta = beta
        self.gamma = gamma
        self._residuals = residuals

    def source(self, grad: FloatArray, key: TensorKey) -> Source:
        """The gradient with its residual, which encoding brings up to date."""
        residual = array_of(self._residuals, key, "residual")
        return Source(grad.reshape(-1), residual, self.beta, self.gamma)

    def sent(self, key: TensorKey) -> None:
        """Nothing is left to do."""

    @timed("compensate")
    def compensate(self, grad: FloatArray, key: TensorKey) -> FloatArray:
        """The corrected gradient, in the residual's own memory."""
        residual = array_of(self._residuals, key, "residual")
        _core.compensate(residual, grad.reshape(-1), self.beta, self.gamma)
        return residual

    @timed("compensate")
    def update(self, key: TensorKey, sent: FloatArray) -> None:
        """residual = corrected - sent."""
        residual = self._residuals[key.name]
        with np.errstate(over="ignore", invalid="ignore"):
            np.subtract(residual, sent, out=residual)
        _core.zero_nonfinite(residual)

    def unsent(self, key: TensorKey) -> FloatArray:
        """The residual."""
        return self._residuals[key.name]


class Signum:
    """Momentum before compression: a rank sends the moving average of its own gradients.

    ``m = momentum * m + (1 - momentum) * grad``; in the first step ``m = grad``. With ``sign`` this
    is Signum of Bernstein et al., "signSGD: Compressed Optimisation for Non-Convex Problems"
    (ICML 2018), algorithm 2, but that ranks average scaled signs instead of voting, and that m
    starts at the first gradient instead of a fraction of it. What is not sent is not kept.

    As with `Residual`, elements that are not finite are reset to 0 after they were sent.
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
        old, new = (0.0, 1.0) if first else (self.momentum, 1.0 - self.momentum)
        self._finite[key.name] = _core.compensate(average, grad.reshape(-1), old, new)
        return average

    @timed("compensate")
    def sent(self, key: TensorKey) -> None:
        """Sees to it that the moving average stays finite."""
        if not self._finite.pop(key.name):
            _core.zero_nonfinite(self._momenta[key.name])

    def update(self, key: TensorKey, sent: FloatArray) -> None:
        """What was sent does not matter; see `sent`."""
        self.sent(key)

    def unsent(self, key: TensorKey) -> None:
        """It is not kept."""


class MomentumCorrection:
    """DGC's memory: each rank applies the optimizer's momentum before elements are chosen.

    ``m = momentum * m + grad``; ``v += m``; what is sent leaves v, and with masking m, too. See
    `gradcomp.codec.batch.Correction`. State: v is the ``residual``, m the ``momentum``.

    Gradients of tensors that travel dense are averaged first; see `of_average`.

    Clipping cuts down one tensor's gradient, not that of the whole model as in the paper, since
    gradients are sent before the last one is known. ``local_norm`` is that of the authors' code.
    ``scaled_norm`` is the paper's: its threshold for a rank's share g / N of the sum is N**-0.5 of
    the sum's, which for g itself is N**0.5.

    Deviation from the authors' code: what rounding to fewer bits loses (``values=fp16``) stays in
    v, where they drop it. Elements that are not finite are reset to 0, as in `Residual`.
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
        self._clip_average = math.inf if clip == "none" else clip_norm
        self._clip = self._clip_average * (math.sqrt(world_size) if clip == "scaled_norm" else 1.0)
        self._velocities = velocities
        self._momenta = momenta

    @timed("compensate")
    def source(self, grad: FloatArray, key: TensorKey) -> Source:
        """The gradient with its velocity and momentum, which encoding brings up to date."""
        flat = grad.reshape(-1)
        correction = Correction(
            array_of(self._momenta, key, "momentum"),
            self.momentum,
            _clip_scale(flat, self._clip),
            self.nesterov,
            self._masking,
        )
        velocity = array_of(self._velocities, key, "residual")
        return Source(flat, velocity, correction=correction)

    def sent(self, key: TensorKey) -> None:
        """Nothing is left to do."""

    @timed("compensate")
    def compensate(self, grad: FloatArray, key: TensorKey) -> FloatArray:
        """The velocity, this step's momentum included, in its own memory."""
        velocity = array_of(self._velocities, key, "residual")
        with np.errstate(over="ignore", invalid="ignore"):
            velocity += self._advance(grad.reshape(-1), self._clip, key)
        return velocity

    @timed("compensate")
    def update(self, key: TensorKey, sent: FloatArray) -> None:
        """The velocity less what was sent. An element sent as 0 counts as not sent."""
        velocity, momentum = self._velocities[key.name], self._momenta[key.name]
        with np.errstate(over="ignore", invalid="ignore"):
            np.subtract(velocity, sent, out=velocity)
        if self._masking:
            momentum[sent != 0] = 0.0
        _core.zero_nonfinite(velocity)
        _core.zero_nonfinite(momentum)

    def settle(self, key: TensorKey, momentum: FloatArray) -> None:
        """Go on from the ranks' average momentum, without a velocity; see `unsettled`."""
        self._momenta[key.name] = momentum
        del self._velocities[key.name]

    def unsettled(self, key: TensorKey) -> tuple[FloatArray, FloatArray] | None:
        """The velocity and the momentum of a tensor that was compressed before it went dense.

        They are each rank's own; then `settle` must be told the average of the latter.
        """
        if key.name not in self._velocities:
            return None
        return array_of(self._velocities, key, "residual"), array_of(self._momenta, key, "momentum")

    def unsent(self, key: TensorKey) -> FloatArray:
        """The velocity."""
        return self._velocities[key.name]

    @timed("compensate")
    def of_average(self, average: FloatArray, key: TensorKey) -> FloatArray:
        """What the optimizer should be given instead of a dense tensor's average: its momentum.

        The same on every rank. There is no velocity, as nothing is left unsent.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            step = self._advance(average, self._clip_average, key)
        _core.zero_nonfinite(self._momenta[key.name])
        return step

    def _advance(self, grad: FloatArray, clip: float, key: TensorKey) -> FloatArray:
        """Take a gradient into the momentum; returns the step that follows from it, a copy."""
        momentum = array_of(self._momenta, key, "momentum")
        scaled = grad * np.float32(_clip_scale(grad, clip))
        if self.nesterov:
            momentum += scaled
            momentum *= np.float32(self.momentum)
            return momentum + scaled
        momentum *= np.float32(self.momentum)
        momentum += scaled
        return momentum.copy()


def _clip_scale(grad: FloatArray, norm: float) -> float:
    """What brings a gradient down to an L2 norm; 1 where it is smaller, or not finite."""
    if math.isinf(norm):
        return 1.0
    own = _core.norm(grad)
    return norm / own if norm < own < math.inf else 1.0


def make_memory(stage: Stage | None, state: MemoryState, world_size: int) -> Memory:
    """The memory of a spec; what it keeps lives in ``state``."""
    if stage is None:
        return NoMemory()
    params: Mapping[str, Any] = stage.params
    if stage.name == MOMENTUM_CORRECTION:
        velocities, momenta = state.setdefault("residual", {}), state.setdefault("momentum", {})
        return MomentumCorrection(params, velocities, momenta, world_size)
    if stage.name == "signum":
        return Signum(params["momentum"], state.setdefault("momentum", {}))
    return Residual(params["beta"], params["gamma"], state.setdefault("residual", {}))


def array_of(arrays: Arrays, key: TensorKey, kind: str) -> FloatArray:
    """The array of a tensor; zeros when it has none yet."""
    array = arrays.get(key.name)
    if array is None:
        array = arrays[key.name] = np.zeros(key.numel, np.float32)
    if array.size != key.numel:
        raise StateError(
            f"the {kind} of '{key.name}' has {array.size} elements and its gradient {key.numel}: "
            "the state was saved from another model, or the tensor changed shape"
        )
    return array
