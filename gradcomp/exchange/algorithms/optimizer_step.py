"""Base class of algorithms with rounds that return a step of an optimizer."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, ClassVar

from gradcomp.codec.spec import Spec
from gradcomp.exchange.algorithms.base import Algorithm
from gradcomp.exchange.patterns.base import Context

__all__ = ["OptimizerStep"]


class OptimizerStep(Algorithm):
    """The round returns a step of an optimizer, not an average of the gradients.

    The ranks exchange parts of their momenta, which replace the optimizer's. The optimizer multiplies
    the step by its learning rate and subtracts it from the parameter. The size of a step does not
    depend on the size of the gradients, so it must not be divided by a loss scale. Tensors that the
    algorithm does not take have averages, as with every other algorithm.

    State, by tensor name: ``momentum``, each rank's own.

    Args:
        spec, context: see `Algorithm`.
    """

    momentum_of: ClassVar[str]
    """The momentum's name. An algorithm continues from another one's momentum if the names are equal."""

    @classmethod
    def state_of(cls, params: Mapping[str, Any]) -> dict[str, Hashable]:
        """See `Algorithm.state_of`: the momentum fits all parameters."""
        return {"momentum": cls.momentum_of}

    def __init__(self, spec: Spec, context: Context) -> None:
        assert spec.algorithm is not None
        self._params: dict[str, Any] = dict(spec.algorithm.params)
        self._momenta = context.state.setdefault("momentum", {})
        self.bucket = self

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Tensors of two or more dimensions; the optimizers `Dion` and `DeMo` have Lion for others."""
        return len(shape) >= 2 and 0 not in shape
