"""The engine of this process, chosen once at the start."""

from __future__ import annotations

import importlib

from training.engines.base import Engine

__all__ = ["choose", "engine"]

_MODULES = {
    ("horovod", "torch"): "horovod",
    ("byteps", "torch"): "byteps",
    ("torch", "torch"): "torch",
    ("horovod", "tensorflow"): "tensorflow",
}

_chosen: Engine | None = None


def choose(name: str, framework: str) -> None:
    """Set the engine of this process; to be called once, before `engine`.

    Imports only the module of that engine, as importing an engine needs its packages.
    """
    global _chosen
    module = importlib.import_module(f"training.engines.{_MODULES[name, framework]}")
    _chosen = module.ENGINE


def engine() -> Engine:
    """The engine of this process: Horovod for PyTorch, unless another was chosen."""
    if _chosen is None:
        choose("horovod", "torch")
    assert _chosen is not None
    return _chosen
