"""Memories of momentum: moving averages before compression, and DGC's momentum correction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradcomp import _core
from gradcomp.codec.arrays import FloatArray
from gradcomp.codec.correction import Correction
from gradcomp.codec.devices import HOST, device_of
from gradcomp.codec.spec import Stage
from gradcomp.exchange.memory import Arrays, Source, array_of
from gradcomp.exchange.rounds import TensorKey
from gradcomp.stopwatch import timed

__all__ = ["JOINT_NORM", "MomentumCorrection", "Signum", "joint_limit"]

JOINT_NORM = "joint_norm"
"""The clipping by the norms of all ranks; see `gradcomp.exchange.patterns.joint_clip`."""


def joint_limit(stage: Stage | None) -> float | None:
    """The largest joint norm of a memory's gradients; None without this clipping."""
    if stage is None or stage.params.get("clip") != JOINT_NORM:
        return None
    return float(stage.params["clip_norm"])  # type: ignore[arg-type]


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

    Lin et al., "Deep Gradient Compression" (ICLR 2018), sections 3.2 and 3.3, on each rank:

    1. ``g`` = the gradient, clipped (``clip``).
    2. ``u = m u + g``, with m for ``momentum``.
    3. ``v = v + u``; with ``nesterov`` see `gradcomp.codec.correction.Correction`.
    4. The codec sends chosen elements of v, such as the largest.
    5. ``v = v - sent``, and with ``masking`` u is 0 where an element was sent.

    State: v is the ``residual``, u the ``momentum``.

    Gradients of tensors that travel dense are averaged first; see `of_average`.

    ``clip=local_norm`` and ``clip=joint_norm`` are those of the authors' code; the latter comes before this
    memory, see `joint_clip`. ``clip=scaled_norm`` is the paper's: its threshold for a rank's share g / N of
    the sum is N**-0.5 of the sum's threshold. So the threshold for g itself is N**0.5 of it.

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
        of_rank = "none" if clip == JOINT_NORM else clip
        self._clip = _core.clip_limit(of_rank, clip_norm, world_size)
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
