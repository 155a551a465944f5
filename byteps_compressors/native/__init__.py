"""Python interface (ctypes) of the BytePS plug-in library, see plugin.cpp.

All functions act on the copy of the library in this process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from byteps_compressors.build import plugin
from gradcomp import capi
from gradcomp.adapter_api import FloatArray
from gradcomp.errors import ConfigError, GradcompError

__all__ = ["Plugin", "Progress", "Tensor", "load"]


class _Progress(ctypes.Structure):
    """The structure Progress of tensors.hpp."""

    _fields_ = (
        ("steps", ctypes.c_uint64),
        ("loss_scale", ctypes.c_double),
        ("lr", ctypes.c_float),
        ("fresh", ctypes.c_int),
    )


@dataclass(frozen=True)
class Progress:
    """Numbers of a tensor that outlive a step.

    Attributes:
        steps: number of steps in which the tensor was compressed.
        loss_scale: factor of the loss, to which residual and momentum belong.
        lr: learning rate of the residual's last step, with ``lr=scale``; 0 if there was none.
        fresh: memories are still 0: no step, or only steps that all workers skipped.
    """

    steps: int = 0
    loss_scale: float = 1.0
    lr: float = 0.0
    fresh: bool = True


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
    def progress(self) -> Progress:
        """The tensor's numbers; may be set between steps."""
        record = _Progress()
        self._library.gradcomp_byteps_progress(self.id, ctypes.byref(record))
        return Progress(record.steps, record.loss_scale, record.lr, bool(record.fresh))

    @progress.setter
    def progress(self, value: Progress) -> None:
        record = _Progress(value.steps, value.loss_scale, value.lr, value.fresh)
        self._library.gradcomp_byteps_set_progress(self.id, ctypes.byref(record))

    @property
    def steps(self) -> int:
        """Number of steps in which the tensor was compressed."""
        return self.progress.steps


class Plugin:
    """Typed access to the library's functions."""

    def __init__(self, library: ctypes.CDLL) -> None:
        text, number = ctypes.c_char_p, ctypes.c_uint64
        numbers = ctypes.POINTER(number)
        for name, result, arguments in (
            ("declare", ctypes.c_int, (text, text)),
            ("tensor", number, (text, ctypes.c_size_t)),
            ("error", text, ()),
            ("array", ctypes.POINTER(ctypes.c_float), (number, text)),
            ("progress", None, (number, ctypes.POINTER(_Progress))),
            ("set_progress", None, (number, ctypes.POINTER(_Progress))),
            ("set_lr", None, (numbers, ctypes.POINTER(ctypes.c_float), ctypes.c_size_t)),
            ("set_loss_scale", None, (numbers, ctypes.c_size_t, ctypes.c_double)),
            ("keep_steps", None, (numbers, ctypes.c_size_t)),
            ("discard_step", ctypes.c_size_t, (numbers, ctypes.c_size_t)),
            ("ask", ctypes.c_uint32, (number, text, ctypes.c_uint32)),
            ("epoch", number, ()),
            ("set_epoch", None, (number,)),
            ("totals", None, (numbers,)),
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

    def set_lr(self, rates: Mapping[Tensor, float]) -> None:
        """Set the learning rates of the coming step; a negative one is unknown."""
        values = (ctypes.c_float * len(rates))(*rates.values())
        self._library.gradcomp_byteps_set_lr(_ids(rates), values, len(rates))

    def set_loss_scale(self, tensors: Collection[Tensor], scale: float) -> None:
        """Begin a step with this loss scale; a smaller one undoes the last step."""
        self._library.gradcomp_byteps_set_loss_scale(_ids(tensors), len(tensors), scale)

    def keep_steps(self, tensors: Collection[Tensor]) -> None:
        """Keep what each step from now on changes, for `discard_step`."""
        self._library.gradcomp_byteps_keep_steps(_ids(tensors), len(tensors))

    def discard_step(self, tensors: Collection[Tensor]) -> int:
        """Undo the last step; returns the number of tensors that had one."""
        undone: int = self._library.gradcomp_byteps_discard_step(_ids(tensors), len(tensors))
        return undone

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


def _ids(tensors: Collection[Tensor]) -> ctypes.Array[ctypes.c_uint64]:
    return (ctypes.c_uint64 * len(tensors))(*(tensor.id for tensor in tensors))


@lru_cache(maxsize=1)
def load() -> Plugin:
    """Load the library; BytePS' own library of a worker or a server must be loaded already.

    Raises:
        GradcompError: the library cannot be built.
    """
    # Before the plug-in, which calls the core's codecs.
    ctypes.CDLL(str(capi.core_library()), mode=ctypes.RTLD_GLOBAL)
    return Plugin(ctypes.CDLL(str(plugin())))
