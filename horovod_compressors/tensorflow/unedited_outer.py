"""Outer steps in unchanged scripts: ``fit`` of Keras with the callback of an `OuterStep`."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from horovod_compressors.tensorflow.outer import OuterStep

__all__ = ["with_outer_steps"]

_optimizers: WeakSet[Any] = WeakSet()
_outers: WeakKeyDictionary[Any, OuterStep] = WeakKeyDictionary()


def with_outer_steps(optimizer: Any, make: Callable[[Any], OuterStep]) -> Any:
    """The optimizer itself; ``fit`` of a model with it now makes outer steps.

    Args:
        make: called with each model in its first ``fit``.
    """
    _optimizers.add(optimizer)
    for library in ("keras", "tf_keras"):
        model = getattr(sys.modules.get(library), "Model", None)
        if model is not None and not getattr(model.fit, "makes_outer_steps", False):
            model.fit = _fit(model.fit, make)
    return optimizer


def _fit(stock: Callable[..., Any], make: Callable[[Any], OuterStep]) -> Callable[..., Any]:
    signature = inspect.signature(stock)

    @functools.wraps(stock)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        # A loss scale may have been put around the optimizer.
        if getattr(self.optimizer, "inner_optimizer", self.optimizer) in _optimizers:
            if self not in _outers:
                _outers[self] = make(self)
            call = signature.bind(self, *args, **kwargs)
            given = call.arguments.get("callbacks") or []
            given = given if isinstance(given, list | tuple) else [given]
            # Last: a callback that broadcasts all variables after the first batch comes before.
            call.arguments["callbacks"] = [*given, _outers[self].callback()]
            return stock(*call.args, **call.kwargs)
        return stock(self, *args, **kwargs)

    fit.makes_outer_steps = True  # type: ignore[attr-defined]
    return fit
