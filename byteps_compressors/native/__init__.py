"""The plug-in library in this process."""

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
    """This worker's state of one tensor, in the library's own memory."""

    def __init__(self, library: ctypes.CDLL, spec: str, numel: int) -> None:
        self._library = library
        self.numel = numel
        self.id: int = library.gradcomp_byteps_tensor(spec.encode(), numel)
        """The value for `Plugin.declare`'s argument ``gradcomp_tensor``."""
        if self.id == 0:
            raise ConfigError(library.gradcomp_byteps_error().decode())

    def array(self, kind: str) -> FloatArray | None:
        """Its "residual" or "momentum", to read and write between steps; None if it has none."""
        address = self._library.gradcomp_byteps_array(self.id, kind.encode())
        return np.ctypeslib.as_array(address, (self.numel,)) if address else None

    def read_servers(self, push_pull: Callable[[], None]) -> FloatArray:
        """The servers' state of it. All workers must call it between the same steps.

        Args:
            push_pull: averages the tensor by its name, as in a step; values are of no concern.
        """
        return self._exchange("read", push_pull, None)

    def write_servers(self, values: FloatArray | None, push_pull: Callable[[], None]) -> None:
        """Replace the servers' state by worker 0's ``values``; see `read_servers`. None is zeros."""
        self._exchange("write", push_pull, values)

    def _exchange(
        self, question: str, push_pull: Callable[[], None], values: FloatArray | None
    ) -> FloatArray:
        """A piece at a time, as many as the tensor's partitions need; returns "servers"."""
        ask = self._library.gradcomp_byteps_ask
        piece = 0
        try:
            while True:
                ask(self.id, question.encode(), piece)
                array = self.array("servers")
                assert array is not None  # which was made for it
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
        """How often it was compressed."""
        steps: int = self._library.gradcomp_byteps_steps(self.id)
        return steps

    @steps.setter
    def steps(self, value: int) -> None:
        self._library.gradcomp_byteps_set_steps(self.id, value)


class Plugin:
    """The library's functions."""

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
            ("set_epoch", None, (number,)),
            ("totals", None, (ctypes.POINTER(number),)),
        ):
            function = getattr(library, f"gradcomp_byteps_{name}")
            function.restype, function.argtypes = result, arguments
        self._library = library

    def tensor(self, spec: str, numel: int) -> Tensor:
        """A tensor of ``numel`` elements that takes ``spec``.

        Raises:
            ConfigError: the spec is one of several phases.
        """
        return Tensor(self._library, spec, numel)

    def declare(self, name: str, arguments: Mapping[str, str | int]) -> None:
        """Declare a tensor to BytePS, before its first push_pull, with a compressor.

        Args:
            name: as in ``bps.declare``.
            arguments: BytePS' keyword arguments of the compressor, such as ``{"compressor_type":
                "onebit"}``; see plugin.cpp for ours.
        """
        words = [str(len(arguments))]
        for key, value in arguments.items():
            words += [key, str(value)]
            if not str(value) or any(character.isspace() for character in f"{key}{value}"):
                raise ConfigError(
                    f"the argument {key}={value!r} of BytePS' compressor of '{name}' must be one "
                    "word without blanks, as BytePS passes them on in a text with blanks between"
                )
        if not self._library.gradcomp_byteps_declare(name.encode(), " ".join(words).encode()):
            raise GradcompError("only BytePS' workers declare tensors, and this is a server")

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch begins, to schedules that count them."""
        self._library.gradcomp_byteps_set_epoch(epoch)

    def totals(self) -> tuple[int, int, int]:
        """Bytes pushed, pulled, and of the gradients pushed uncompressed, all so far."""
        out = (ctypes.c_uint64 * 3)()
        self._library.gradcomp_byteps_totals(out)
        return out[0], out[1], out[2]


@lru_cache(maxsize=1)
def load() -> Plugin:
    """Load the library; BytePS' own of a worker or a server must be loaded already.

    Raises:
        GradcompError: it cannot be built.
    """
    # Loaded first: it has the codecs that the plug-in calls.
    ctypes.CDLL(str(capi.core_library()), mode=ctypes.RTLD_GLOBAL)
    return Plugin(ctypes.CDLL(str(plugin())))
