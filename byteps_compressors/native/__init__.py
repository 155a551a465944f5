"""Python interface (ctypes) of the BytePS plug-in library, see plugin.cpp.

All functions act on the copy of the library in this process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from functools import lru_cache

import numpy as np

from byteps_compressors.build import plugin
from gradcomp import capi
from gradcomp.adapter_api import FloatArray
from gradcomp.errors import ConfigError, GradcompError

__all__ = ["Plugin", "Tensor", "load"]


class Tensor:
    """One tensor's state in this worker, kept in the library's memory."""

    def __init__(self, library: ctypes.CDLL, spec: str, numel: int) -> None:
        self._library = library
        self.numel = numel
        self.id: int = library.gradcomp_byteps_tensor(spec.encode(), numel)
        """Value for the argument ``gradcomp_tensor`` of `Plugin.declare`."""
        if self.id == 0:
            raise ConfigError(library.gradcomp_byteps_error().decode())

    def array(self, kind: str) -> FloatArray | None:
        """Return the "residual", "momentum" or "servers" array, a view of shape (numel,).

        None if the tensor has none. It may be read and written between steps.
        """
        address = self._library.gradcomp_byteps_array(self.id, kind.encode())
        return np.ctypeslib.as_array(address, (self.numel,)) if address else None

    def read_servers(self, push_pull: Callable[[], None]) -> FloatArray:
        """Return the servers' residual of this tensor, float32 of shape (numel,).

        All workers must call it between the same steps.

        Args:
            push_pull: pushes and pulls the tensor under its name, as in a step; values do not
                matter.
        """
        return self._exchange("read", push_pull, None)

    def write_servers(self, values: FloatArray | None, push_pull: Callable[[], None]) -> None:
        """Replace the servers' residual by worker 0's ``values``, None for 0; see `read_servers`."""
        self._exchange("write", push_pull, values)

    def _exchange(
        self, question: str, push_pull: Callable[[], None], values: FloatArray | None
    ) -> FloatArray:
        """Exchange all pieces of the servers' residual, one per push_pull; returns "servers"."""
        ask = self._library.gradcomp_byteps_ask
        piece = 0
        try:
            while True:
                ask(self.id, question.encode(), piece)
                array = self.array("servers")
                assert array is not None  # allocated by the call of ask
                if values is not None:
                    array[:] = values
                push_pull()
                piece += 1
                if piece >= ask(self.id, question.encode(), piece):
                    return array.copy()
        finally:
            ask(self.id, b"", 0)

    @property
    def steps(self) -> int:
        """Number of steps in which the tensor was compressed."""
        steps: int = self._library.gradcomp_byteps_steps(self.id)
        return steps

    @steps.setter
    def steps(self, value: int) -> None:
        self._library.gradcomp_byteps_set_steps(self.id, value)


class Plugin:
    """Typed access to the library's functions."""

    def __init__(self, library: ctypes.CDLL) -> None:
        text, number = ctypes.c_char_p, ctypes.c_uint64
        for name, result, arguments in (
            ("declare", ctypes.c_int, (text, text)),
            ("tensor", number, (text, ctypes.c_size_t)),
            ("error", text, ()),
            ("array", ctypes.POINTER(ctypes.c_float), (number, text)),
            ("steps", number, (number,)),
            ("set_steps", None, (number, number)),
            ("ask", ctypes.c_uint32, (number, text, ctypes.c_uint32)),
            ("epoch", number, ()),
            ("set_epoch", None, (number,)),
            ("totals", None, (ctypes.POINTER(number),)),
        ):
            function = getattr(library, f"gradcomp_byteps_{name}")
            function.restype, function.argtypes = result, arguments
        self._library = library

    def tensor(self, spec: str, numel: int) -> Tensor:
        """Make the state of a tensor with ``numel`` elements, compressed with ``spec``.

        Raises:
            ConfigError: the spec is invalid, or has an algorithm of several exchanges.
        """
        return Tensor(self._library, spec, numel)

    def declare(self, name: str, arguments: Mapping[str, str | int]) -> None:
        """Declare a tensor with a compressor to BytePS, before the tensor's first push_pull.

        Args:
            name: as in ``bps.declare``.
            arguments: keyword arguments of the compressor, such as ``{"compressor_type":
                "onebit"}``; plugin.cpp lists gradcomp's.

        Raises:
            ConfigError: an argument is empty or contains white space.
            GradcompError: this process is a server.
        """
        words = [str(len(arguments))]
        for key, value in arguments.items():
            words += [key, str(value)]
            if not str(value) or any(character.isspace() for character in f"{key}{value}"):
                raise ConfigError(
                    f"the argument {key}={value!r} of BytePS' compressor of '{name}' must be one "
                    "word without white space: BytePS passes arguments as a text separated by blanks"
                )
        if not self._library.gradcomp_byteps_declare(name.encode(), " ".join(words).encode()):
            raise GradcompError(
                "only BytePS' workers declare tensors, and this process is a server"
            )

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, counted from 0, for schedules that count epochs."""
        self._library.gradcomp_byteps_set_epoch(epoch)

    @property
    def epoch(self) -> int:
        """The epoch, counted from 0."""
        epoch: int = self._library.gradcomp_byteps_epoch()
        return epoch

    def totals(self) -> tuple[int, int, int]:
        """Return bytes so far: pushed, pulled, and the pushed gradients' uncompressed size."""
        out = (ctypes.c_uint64 * 3)()
        self._library.gradcomp_byteps_totals(out)
        return out[0], out[1], out[2]


@lru_cache(maxsize=1)
def load() -> Plugin:
    """Load the library; BytePS' own library of a worker or a server must be loaded already.

    Raises:
        GradcompError: the library cannot be built.
    """
    # Before the plug-in, which calls the core's codecs.
    ctypes.CDLL(str(capi.core_library()), mode=ctypes.RTLD_GLOBAL)
    return Plugin(ctypes.CDLL(str(plugin())))
