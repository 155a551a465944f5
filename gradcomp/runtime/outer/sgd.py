"""The outer optimizer of training with outer steps: it steps on averages of pseudo-gradients.

Every rank trains alone for some inner steps. Its pseudo-gradient is the change since the last outer
step, negated; the ranks average it, and all make the same outer step. docs/outer.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gradcomp.codec.arrays import FloatArray
from gradcomp.exchange.arrays_of_state import arrays_like

__all__ = ["OuterSGD"]


class OuterSGD:
    """SGD on averaged pseudo-gradients, with momentum as in ``torch.optim.SGD``: ::

        v = momentum * v + average
        start -= lr * (average + momentum * v)    with nesterov, else
        start -= lr * v

    Douillard et al.: "DiLoCo: Distributed Low-Communication Training of Language Models"
    (arXiv:2311.08105), algorithm 1, with Nesterov's momentum. All arithmetic is elementwise in
    float32, so that ranks with equal averages have equal bits.

    Args:
        values: parameters at the beginning, flat float32 by name, equal on all ranks; copied.
        lr: outer learning rate.
        momentum: outer momentum; 0 for none.
        nesterov: Nesterov's momentum.

    Attributes:
        start: parameters at the beginning of the round, by name; equal on all ranks.
    """

    def __init__(
        self, values: Mapping[str, FloatArray], lr: float, momentum: float, nesterov: bool
    ) -> None:
        self.start = {name: value.copy() for name, value in values.items()}
        self._momenta = {name: np.zeros_like(value) for name, value in self.start.items()}
        # New memory of a tensor's size costs more than the arithmetic.
        self._work = np.empty(max((value.size for value in values.values()), default=0), np.float32)
        self._lr = np.float32(lr)
        self._momentum = np.float32(momentum)
        self._nesterov = nesterov

    def step(self, name: str, average: FloatArray) -> FloatArray:
        """Make the outer step of a tensor; returns its new values, which stay in `start`."""
        step, work = average, self._work[: average.size]
        if self._momentum:
            momentum = self._momenta[name]
            momentum *= self._momentum
            momentum += average
            step = momentum
            if self._nesterov:
                step = np.multiply(momentum, self._momentum, out=work)
                step += average
        start = self.start[name]
        if self._lr != 1:
            step = np.multiply(step, self._lr, out=work)
        start -= step
        return start

    def state_dict(self) -> dict[str, Any]:
        """``start`` and ``momentum``, by tensor name; equal on all ranks."""
        return {
            "start": {name: value.copy() for name, value in self.start.items()},
            "momentum": {name: momentum.copy() for name, momentum in self._momenta.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a result of `state_dict`.

        Raises:
            StateError: the state is not of these tensors; nothing has changed.
        """
        start, momenta = self.checked(state, "start"), self.checked(state, "momentum")
        self.start, self._momenta = start, momenta

    def checked(self, state: Any, kind: str) -> dict[str, FloatArray]:
        """Copies of one kind of arrays in a state: one for each tensor, of its size.

        Raises:
            StateError: they are not those of these tensors.
        """
        return arrays_like(state, kind, {name: value.size for name, value in self.start.items()})
