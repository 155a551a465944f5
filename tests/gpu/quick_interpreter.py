"""Makes Triton's interpreter faster, which repeats much work at each call and operation.

It computes the same: no operation on data changes. Imported after TRITON_INTERPRET is set: see interpreted.py.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from triton import language
from triton.language.core import block_type, tensor
from triton.runtime import interpreter

_patch = interpreter._patch_lang
_patched: set[int] = set()


def _patch_once(fn: Any) -> Any:
    """Patches Triton's language once for a launch, not at each call of a function."""
    if language.core.is_builtin(language.load):  # a new launch
        _patched.clear()
    modules = _modules_of(fn.__globals__["__name__"])
    if modules <= _patched:
        return interpreter._LangPatchScope()
    _patched.update(modules)
    return _patch(fn)


@functools.cache
def _modules_of(module: str) -> set[int]:
    """The modules of Triton's language that a module of kernels has as global names."""
    names = vars(sys.modules[module]).values()
    return {id(value) for value in names if value in (language, language.core)}


_new_type, _new_tensor = block_type.__init__, tensor.__init__
_types: dict[Any, dict[str, Any]] = {}
_tensors: dict[str, dict[str, Any]] = {}


def _init_type(self: Any, element_ty: Any, shape: Any) -> None:
    """All types of an element and a shape have the same attributes."""
    key = (element_ty.name, *shape)
    if key not in _types:
        _new_type(self, element_ty, shape)
        _types[key] = dict(vars(self))
    vars(self).update(_types[key])


def _init_tensor(self: Any, handle: Any, type: Any) -> None:
    """All tensors of a type have the same attributes, but for their handle."""
    if type.name not in _tensors:
        _new_tensor(self, None, type)
        _tensors[type.name] = dict(vars(self))
    vars(self).update(_tensors[type.name])
    self.handle = handle


_np_dtype = interpreter._get_np_dtype
_np_dtypes: dict[str, Any] = {}


def _known_np_dtype(type: Any) -> Any:
    if type.name not in _np_dtypes:
        _np_dtypes[type.name] = _np_dtype(type)
    return _np_dtypes[type.name]


interpreter._patch_lang = _patch_once
interpreter._get_np_dtype = _known_np_dtype
block_type.__init__, tensor.__init__ = _init_type, _init_tensor
# The overflow of each sum and product would be computed, but nobody reads it without debug mode.
assert not interpreter.interpreter_builder.options.debug
interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)
