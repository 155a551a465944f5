"""EF21: ranks send differences to estimates of their gradients, and all know the estimates' mean."""

from __future__ import annotations

import numpy as np

from gradcomp import _core
from gradcomp.codec.arrays import FloatArray, room
from gradcomp.codec.batch_items import AdvanceItem, DifferItem
from gradcomp.codec.devices import HOST, Device, device_of
from gradcomp.exchange.memory import (
    ESTIMATE,
    ESTIMATE_MEAN,
    ESTIMATE_ROWS,
    Arrays,
    MemoryState,
    array_of,
)
from gradcomp.exchange.rounds import TensorKey
from gradcomp.stopwatch import timed

__all__ = ["Estimates"]


class Estimates:
    """The arrays of EF21 and EF21-SGDM on one rank.

    Richtarik, Sokolov, Fatkhullin: "EF21: A New, Simpler, Theoretically Better, and Practically Faster
    Error Feedback" (NeurIPS 2021), algorithm 2, on rank i:

    1. ``v_i`` = the gradient; with ``momentum``, ``v_i = momentum * v_i + (1 - momentum) * gradient``,
       and in the first step the gradient.
    2. ``c_i = C(v_i - g_i)`` is sent.
    3. ``g_i = g_i + c_i``.
    4. ``g = g + mean of all c_i``, which is the mean of all g_i, is the result.

    With ``momentum`` it is EF21-SGDM: Fatkhullin, Tyurin, Richtarik, "Momentum Provably Improves Error
    Feedback!" (NeurIPS 2023), algorithm 1, with eta = 1 - momentum.

    All g_i begin with 0, so the first g_i is C(first gradient). Deviations: EF21-SGDM begins with a
    batch of gradients, and sends it whole. Where the sum of all ranks' payloads is decoded, every rank
    keeps g in the place of its g_i: for a linear C both are the same algorithm, and what the sum rounds
    is sent later. ``c_i`` is the difference less what the aggregator's memory calls unsent.

    State, by tensor name: ``estimate``, g_i; ``estimate_mean``, g, equal on all ranks; with momentum
    also ``momentum``, v_i. A missing g_i is equal to g: so it is after a change of the ranks.
    In a reduce-scatter, ``estimate_rows``, the sum of all g_i in this rank's rows, instead of g.

    Args:
        momentum: in [0, 1); 0 for EF21.
        state: arrays by kind.
        unsent: by tensor name, what was not sent of a step's differences: residuals of the aggregator
            that averages them, which begin with 0 in each step.
        shared: every rank keeps g as its estimate.
    """

    def __init__(
        self, momentum: float, state: MemoryState, unsent: Arrays, shared: bool = False
    ) -> None:
        self._momentum = momentum
        self._unsent = unsent
        self._shared = shared
        self._momenta = state.setdefault("momentum", {})
        self._own = state.setdefault(ESTIMATE, {})
        self._means = state.setdefault(ESTIMATE_MEAN, {})
        self._rows = state.setdefault(ESTIMATE_ROWS, {})

    def differ(self, grad: FloatArray, key: TensorKey) -> DifferItem:
        """The difference that a step sends, in new memory; see `differ_batch`."""
        self._unsent.pop(key.name, None)  # of a step that has failed
        device = device_of(grad)
        point = self._point(grad, key)
        difference = room(key.numel) if device is HOST else device.zeros(key.numel)
        return DifferItem(difference, point, self._estimate(key, device))

    def differed(self, item: DifferItem) -> None:
        """After `differ_batch`: a moving average that is not finite begins again."""
        if self._momentum and np.isnan(item.difference[:1]).any():
            _core.zero_nonfinite(item.grad)

    def advance(
        self, key: TensorKey, item: DifferItem, average: FloatArray, out: FloatArray
    ) -> AdvanceItem:
        """The step from an average to the next mean of all estimates; see `advance_batch`.

        Args:
            item: of this step.
            average: the mean over the ranks of what was sent of their differences; the step is made on
                its device.
            out: memory for the result, if it is on that device.
        """
        device = device_of(average)
        if device_of(out) is not device:
            out = average
        mean = array_of(self._means, key, ESTIMATE_MEAN, device)
        unsent = self._unsent.pop(key.name, None)
        if self._shared:
            self._own.pop(key.name, None)
            return AdvanceItem(mean, average, out)
        assert unsent is not None
        difference, unsent = (
            device.from_host(device_of(array).to_host(array))
            if device_of(array) is not device
            else array
            for array in (item.difference, unsent)
        )
        return AdvanceItem(mean, average, out, self._estimate(key, device), difference, unsent)

    @timed("compensate")
    def settle_rows(
        self, key: TensorKey, difference: FloatArray, sums: FloatArray, begin: int, ranks: int
    ) -> FloatArray:
        """As `advance`, in a reduce-scatter: the next sums of all estimates in this rank's rows.

        A rank does not know which elements of other rows are not finite. So elements whose sum is not
        finite keep their estimates.

        Args:
            sums: of what was sent of the ranks' differences in this rank's rows; overwritten.
            begin: the first element of these rows.
            ranks: number of ranks.
        """
        estimate = self._estimate(key)
        rows = self._rows.get(key.name)
        if rows is None or rows.size != sums.size:
            rows = np.float32(ranks) * estimate[begin : begin + sums.size]
            self._rows[key.name] = rows
        bad = ~np.isfinite(sums)
        kept = rows[bad]
        _core.add_average(rows, sums, sums)
        rows[bad] = kept
        _core.add_sent(estimate, difference, self._unsent.pop(key.name), estimate)
        return sums

    @timed("compensate")
    def release(self, grad: FloatArray, key: TensorKey) -> FloatArray:
        """The result of a rank that is alone: its gradient, or moving average, which all estimates become."""
        point = self._point(grad, key)
        mean = array_of(self._means, key, ESTIMATE_MEAN)
        np.copyto(mean, point)
        _core.zero_nonfinite(mean)
        self._own.pop(key.name, None)
        if not self._momentum:
            return point
        result = point.copy()
        _core.zero_nonfinite(point)
        return result

    def _estimate(self, key: TensorKey, device: Device = HOST) -> FloatArray:
        """This rank's estimate, on a device."""
        if self._shared:
            return array_of(self._means, key, ESTIMATE_MEAN, device)
        if key.name not in self._own and key.name in self._means:
            mean = self._means[key.name]
            self._own[key.name] = device_of(mean).to_host(mean).copy()
        return array_of(self._own, key, ESTIMATE, device)

    def _point(self, grad: FloatArray, key: TensorKey) -> FloatArray:
        """What the estimate follows: the gradient, flat, or its moving average, in its own memory."""
        flat = grad.reshape(-1)
        if not self._momentum:
            return flat
        first = key.name not in self._momenta
        if first and key.name in self._means:
            # Ranks have changed, or the tensor was dense: the mean is the best guess.
            self._momenta[key.name] = self._means[key.name].copy()
            first = False
        average = array_of(self._momenta, key, "momentum")
        _core.update_average(average, flat, self._momentum, first)
        return average
