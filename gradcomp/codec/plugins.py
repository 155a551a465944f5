"""Codecs of plug-ins: Python classes, and shared libraries built with gradcomp.h; docs/plugins.md.

A package names its codecs under the entry point group ``gradcomp.codecs``. They are looked up when
a spec names an unknown stage, or when stages are listed, and not before.
"""

from __future__ import annotations

import math
import os
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from gradcomp import _core
from gradcomp.codec.arrays import FloatArray
from gradcomp.errors import GradcompError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["GROUP", "CodecPlugin", "PluginParam", "discover", "load_plugin", "register_codec"]

GROUP = "gradcomp.codecs"
"""The entry point group. An entry is a `CodecPlugin`, class or object, or the path of a library."""

_LARGEST = {int: float(2**53), float: math.inf}


@dataclass(frozen=True)
class PluginParam:
    """A parameter of a plug-in's codec.

    Attributes:
        name: lower-case letters, digits and underscores; a letter first.
        default: a bool, int or float, which is the parameter's type. Floats may have schedules.
        doc: one line.
        min: the least value allowed; ignored for a bool.
        max: the largest value allowed; ignored for a bool.
    """

    name: str
    default: bool | int | float
    doc: str
    min: float | None = None
    max: float | None = None

    def row(self) -> tuple[str, str, float, float, float, str]:
        """The parameter as the core takes it."""
        kind = type(self.default)
        most = _LARGEST.get(kind, 1.0)
        least = -most if self.min is None else float(self.min)
        most = most if self.max is None else float(self.max)
        return self.name, kind.__name__, float(self.default), least, most, self.doc


class CodecPlugin(ABC):
    """A codec in Python.

    Several threads may call its methods, one at a time. They keep no state between calls, and give
    the same result for the same arguments on every rank. All randomness comes from ``stream``, such
    as ``np.random.Generator(np.random.Philox(key=stream))``. Tensors of 0 elements never reach them.
    An exception becomes a `GradcompError` that names the codec; in ``decode``, a `WireError`.

    Attributes:
        name: its name in specs: lower-case letters, digits and underscores; a letter first.
        id: codec id of its frames, in [0x8000, 0xFFFF]; unique among the plug-ins of a job.
        version: version of its payloads. Raise it when the bytes change: ranks refuse another
            version.
        summary: one line.
        nonfinite: treatment of NaN and Inf, one line.
        caps: a subset of "summable", "seeded", "finite" and "private_noise"; see `gradcomp.Codec`.
            ``decode`` gets the encoder's ``stream`` only with "seeded". With "summable", payloads
            are exactly ``max_payload_size`` bytes of float32, which engines add up.
        matrices: whether ``encode`` gets a tensor of two dimensions or more as a matrix [shape[0], rest].
            ``decode`` gets the number of elements alone: what else it needs is in the payload.
        params: parameters of its specs.
    """

    name: ClassVar[str]
    id: ClassVar[int]
    version: ClassVar[int] = 1
    summary: ClassVar[str]
    nonfinite: ClassVar[str] = "as the plug-in has it"
    caps: ClassVar[frozenset[str]] = frozenset({"finite"})
    matrices: ClassVar[bool] = False
    params: ClassVar[Sequence[PluginParam]] = ()

    @abstractmethod
    def max_payload_size(self, numel: int, params: Mapping[str, Any]) -> int:
        """Upper bound of the bytes of a payload of ``numel`` elements."""

    @abstractmethod
    def encode(self, x: FloatArray, params: Mapping[str, Any], stream: int) -> Any:
        """The payload of ``x``, a copy of the gradient, flat or a matrix (`matrices`): bytes, or a contiguous array."""

    @abstractmethod
    def decode(
        self, payload: bytes, numel: int, params: Mapping[str, Any], stream: int
    ) -> FloatArray:
        """``numel`` float32 elements. The payload comes from a network: check all of it."""


def register_codec(plugin: CodecPlugin) -> None:
    """Make a codec known to this process, until it ends. Every rank must do it.

    Raises:
        GradcompError: its description is wrong, or its name or id is taken.
        TypeError: it is not a `CodecPlugin`.
    """
    if not isinstance(plugin, CodecPlugin):
        raise TypeError(f"a plug-in is a gradcomp.CodecPlugin, not a {type(plugin).__name__}")
    try:
        reason = _core.register_codec(
            plugin,
            name=plugin.name,
            id=plugin.id,
            version=plugin.version,
            summary=plugin.summary,
            nonfinite=plugin.nonfinite,
            caps=sorted(plugin.caps),
            params=[param.row() for param in plugin.params],
        )
    except (AttributeError, TypeError, ValueError) as error:
        raise GradcompError(f"{type(plugin).__name__} is not a codec: {error}") from error
    if reason:
        raise GradcompError(reason)


def load_plugin(path: str | os.PathLike[str]) -> None:
    """Load a shared library and register its codecs; to load it again has no effect.

    Raises:
        GradcompError: the library cannot be loaded, or the description of a codec is wrong, or its
            name or id is taken.
    """
    if reason := _core.load_plugin(os.path.abspath(path)):
        raise GradcompError(reason)


_lock = threading.RLock()  # reentrant: a plug-in's module may list stages while it is imported
_discovered = False


def discover() -> None:
    """Register the plug-ins of GRADCOMP_PLUGINS and of installed packages, at the first call.

    A plug-in that fails is left out with a warning; later errors about unknown stages repeat it.
    """
    global _discovered
    with _lock:
        if _discovered:
            return
        _discovered = True
        from importlib.metadata import entry_points  # slow to import, and rarely needed

        _core.load_environment_plugins()
        for entry in entry_points(group=GROUP):
            try:
                _register(entry.load())
            except Exception as error:
                _core.report_plugin_fault(_fault(entry, error))
        for fault in _core.plugin_faults():
            warnings.warn(f"gradcomp: {fault}", RuntimeWarning, stacklevel=2)


def _register(plugin: Any) -> None:
    if isinstance(plugin, type) and issubclass(plugin, CodecPlugin):
        plugin = plugin()
    if isinstance(plugin, str | os.PathLike):
        load_plugin(plugin)
    else:
        register_codec(plugin)


def _fault(entry: EntryPoint, error: Exception) -> str:
    package = f"the package '{entry.dist.name}'" if entry.dist else "an unknown package"
    first = next(iter(str(error).splitlines()), "")
    return f"the plug-in '{entry.name}' of {package} failed: {type(error).__name__}: {first}"
