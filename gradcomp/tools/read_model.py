"""Shapes of a model: by name, from a file, or from a function that makes the model."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from gradcomp.errors import GradcompError
from gradcomp.tools.model_shapes import MODELS, model_shapes

__all__ = ["read_model"]

_EXPECTED = (
    f"one of {', '.join(MODELS)}, a YAML or JSON file with the shape of each parameter, such as "
    "{fc.weight: [10, 512]}, or MODULE:FUNCTION that returns a torch.nn.Module"
)


def read_model(model: str) -> dict[str, tuple[int, ...]]:
    """Parameter name -> shape, in the model's own order.

    Args:
        model: a name of `MODELS`, the path of a YAML or JSON file, or ``module:function``: a function
            without arguments that returns an object with ``named_parameters()``. The present folder is
            searched for the module first.

    Raises:
        GradcompError: there is no such model, or it has no parameters.
    """
    if model in MODELS:
        return model_shapes(model)
    if Path(model).is_file():
        return _of_file(Path(model))
    module, _, function = model.partition(":")
    if module and function and "/" not in model:
        return _of_function(model, module, function)
    raise GradcompError(f"model {model!r}: expected {_EXPECTED}")


def _of_file(path: Path) -> dict[str, tuple[int, ...]]:
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise GradcompError(f"model {str(path)!r} is not a YAML or JSON file: {error}") from error
    if not isinstance(found, Mapping) or not found:
        raise GradcompError(f"model {str(path)!r} is not a mapping: expected {_EXPECTED}")
    return {str(name): _shape(f"{path}: {name}", shape) for name, shape in found.items()}


def _shape(where: str, shape: Any) -> tuple[int, ...]:
    sizes = [shape] if isinstance(shape, int) and not isinstance(shape, bool) else shape
    if not isinstance(sizes, list) or not all(type(size) is int and size > 0 for size in sizes):
        raise GradcompError(
            f"{where}: the shape is {shape!r}; expected a list of whole numbers above 0, such as "
            "[10, 512]"
        )
    return tuple(sizes)


def _of_function(model: str, module: str, function: str) -> dict[str, tuple[int, ...]]:
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        make = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise GradcompError(f"model {model!r}: {error}; expected {_EXPECTED}") from error
    try:
        made = make()
    except Exception as error:
        raise GradcompError(
            f"model {model!r}: {function}() failed: {type(error).__name__}: {error}; it must work "
            "without arguments"
        ) from error
    if not hasattr(made, "named_parameters"):
        raise GradcompError(
            f"model {model!r}: {function}() returned a {type(made).__name__}, which has no "
            f"named_parameters(); expected {_EXPECTED}"
        )
    shapes = {
        name: tuple(parameter.shape)
        for name, parameter in made.named_parameters()
        if parameter.requires_grad
    }
    if not shapes:
        raise GradcompError(f"model {model!r} has no parameters that are trained")
    return shapes
