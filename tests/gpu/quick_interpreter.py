"""Makes Triton's interpreter faster, which repeats much work at each call and operation.

It computes the same: no operation on data changes. Imported after TRITON_INTERPRET is set: see interpreted.py.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from triton import language
from triton.language import core
from triton.language.core import block_type, dtype, tensor
from triton.language.semantic import TritonSemantic
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


def _patch_attribute(obj: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
    """A function of the language gets the interpreter's semantic, whichever it is called with."""

    def call(*args: Any, _semantic: Any = None, **kwargs: Any) -> Any:
        return member(*args, **kwargs, _semantic=interpreter.interpreter_semantic)

    scope.set_attr(obj, name, call)


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


_operands, _broadcast = (
    TritonSemantic.binary_op_type_checking_impl,
    TritonSemantic.broadcast_impl_value,
)
_constants: dict[Any, Any] = {}
_same_shapes: dict[tuple[str, str], bool] = {}


def _known_operands(self: Any, lhs: Any, rhs: Any, *flags: bool, **named: bool) -> Any:
    """Numbers of one type need no cast; a constant becomes the same tensor next to each tensor of a type."""
    is_first = isinstance(lhs, tensor)
    given, other = (lhs, rhs) if is_first else (rhs, lhs)
    if named or not isinstance(given, tensor):
        return _operands(self, lhs, rhs, *flags, **named)
    if isinstance(other, tensor):
        is_division = flags[3:] == (True,)
        if given.dtype.name == other.dtype.name and not (is_division or given.dtype.is_ptr()):
            return self.broadcast_impl_value(lhs, rhs)
        return _operands(self, lhs, rhs, *flags)
    key = (is_first, given.type.name, repr(other), flags)  # a zero's text tells its sign
    if key in _constants:
        return (lhs, _constants[key]) if is_first else (_constants[key], rhs)
    operands = _operands(self, lhs, rhs, *flags)
    same, constant = operands if is_first else operands[::-1]
    if same is given:
        constant.handle.data.flags.writeable = False
        _constants[key] = constant
    return operands


def _broadcast_unequal(self: Any, lhs: Any, rhs: Any) -> Any:
    """Two tensors of a shape stay as they are."""
    key = (lhs.type.name, rhs.type.name)
    if key not in _same_shapes:
        shapes = [list(one.shape) if one.type.is_block() else None for one in (lhs, rhs)]
        _same_shapes[key] = shapes[0] == shapes[1]
    return (lhs, rhs) if _same_shapes[key] else _broadcast(self, lhs, rhs)


_equal, _plain = dtype.__eq__, core._unwrap_if_constexpr
_PLAIN = {tensor, dtype, int, float, str, type(None)}


def _equal_types(self: Any, other: Any) -> Any:
    return self.name == other.name if isinstance(other, dtype) else _equal(self, other)


def _unwrapped(value: Any) -> Any:
    return value if type(value) in _PLAIN else _plain(value)


interpreter._patch_lang = _patch_once
interpreter._patch_attr = _patch_attribute
TritonSemantic.binary_op_type_checking_impl = _known_operands
TritonSemantic.broadcast_impl_value = _broadcast_unequal
interpreter._get_np_dtype = _known_np_dtype
block_type.__init__, tensor.__init__ = _init_type, _init_tensor
block_type.to_ir = lambda self, builder: self
dtype.__eq__ = _equal_types
core._unwrap_if_constexpr = _unwrapped
# The overflow of each sum and product would be computed, but nobody reads it without debug mode.
assert not interpreter.interpreter_builder.options.debug
interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)
