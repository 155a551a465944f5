"""No compression."""

from __future__ import annotations

from gradcomp.arrays import FloatArray
from gradcomp.rounds import AllReduce, Round, TensorKey

__all__ = ["Dense"]


class Dense:
    """The gradient itself is averaged, without a copy."""

    linear = True

    def round(self, grad: FloatArray, key: TensorKey, step: int) -> Round:
        """See `Aggregator.round`."""
        average: FloatArray = yield AllReduce(key.name, grad.reshape(-1))
        return average
