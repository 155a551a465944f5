"""The tensors that a launch works on, and the table that tells kernels about them.

`Bucket` knows the sizes of its tensors; a `Table` gives the device a step's pointers and weights. The
order of kernels on the current stream is the only synchronization: the launches of a bucket and the copies
of its results belong on one stream.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from gradcomp.device_api import MAX_NUMEL
from gradcomp.errors import CapacityError
from gradcomp_torch.gpu.kernels import correct, value_types
from gradcomp_torch.gpu.kernels import table as field

__all__ = [
    "EXACT",
    "Bucket",
    "Kept",
    "LaunchItem",
    "Mode",
    "Momentum",
    "Payload",
    "Rows",
    "Table",
    "Work",
    "current",
    "divide",
    "spread",
    "upload",
]

Whole = npt.NDArray[np.int64]
Array = TypeVar("Array", torch.Tensor, npt.NDArray[Any])
"""On the device, or a copy of it on the host."""

GRAD_TYPES: dict[torch.dtype, int] = {
    torch.float32: value_types.FP32.value,
    torch.float16: value_types.FP16.value,
    torch.bfloat16: value_types.BF16.value,
}
"""Types of gradients that kernels read."""

_FLOAT = (torch.float32,)

EXACT = {"enable_fp_fusion": False}
"""Options of every launch: no arithmetic is contracted."""

VECTOR_BYTES = 16
"""Widest access of a GPU. Pointers of all tensors at multiples of it make accesses as wide."""


class Momentum(NamedTuple):
    """Momentum correction of a tensor; the fields are those of `gradcomp`'s `Correction`.

    Attributes:
        values: contiguous float32 of as many elements as the gradient, on its device, updated in place.
    """

    values: torch.Tensor
    factor: float
    scale: float = 1.0
    nesterov: bool = False
    masking: bool = True


class LaunchItem(NamedTuple):
    """One tensor of a bucket in a step.

    Attributes:
        grad: contiguous float32 on the bucket's device, of any shape; with a residual also float16 or bfloat16.
        residual: for error feedback, contiguous float32 of as many elements, updated in place.
        beta, gamma: weights, as in `gradcomp.EncodeItem`.
        momentum: instead of beta and gamma.
        stream: key of the random numbers, from seed, step and tensor_id, as in a seeded frame.
    """

    grad: torch.Tensor
    residual: torch.Tensor | None = None
    beta: float = 1.0
    gamma: float = 1.0
    momentum: Momentum | None = None
    stream: int = 0


class Kept(NamedTuple, Generic[Array]):
    """Elements of a tensor that travel. The core codes both, values by their wire type.

    Attributes:
        indices: int32, ascending.
        values: float32, as many, before they are rounded to the wire type.
    """

    indices: Array
    values: Array


class Payload(NamedTuple, Generic[Array]):
    """A tensor's payload: the uint8 that the core's `encode_payload` makes."""

    data: Array


class Mode(NamedTuple):
    """Properties that the tensors of a launch share; kernels are compiled for them.

    Attributes:
        mode: plain, feedback, correction or Nesterov's; a constant of kernels/correct.py.
        masking: momentum of sent elements becomes 0.
        aligned: all pointers are multiples of 16 bytes.
        grad_type: of the gradients' elements in memory, one of kernels/value_types.py.
    """

    mode: int
    masking: bool
    aligned: bool
    grad_type: int


class Work(NamedTuple):
    """Division of a bucket among programs: program p works on tensor ``tensors[p]``."""

    programs: int
    tensors: torch.Tensor
    first: Whole


def current(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Make a device the current one, on which kernels are launched."""
    return contextlib.nullcontext() if device.type == "cpu" else torch.cuda.device(device)


def upload(array: npt.NDArray[np.generic], device: torch.device) -> torch.Tensor:
    """Copy an array to a device without waiting for it; the pinned copy outlives the transfer."""
    # PyTorch warns of arrays that cannot be written to, such as frames of bytes.
    host = torch.from_numpy(array if array.flags.writeable else array.copy())
    if device.type == "cpu":
        return host.clone()
    return host.pin_memory().to(device, non_blocking=True)


def divide(counts: npt.ArrayLike, each: int, device: torch.device) -> Work:
    """Divide tensors of these sizes into programs of at most ``each``."""
    tensors, first = spread(counts, each)
    return Work(tensors.size, upload(tensors, device), first)


def spread(counts: npt.ArrayLike, each: int) -> tuple[npt.NDArray[np.int32], Whole]:
    """As `divide`, on the host: the tensor of each program, and each tensor's first program."""
    programs = -(-np.asarray(counts, np.int64) // each)
    return np.arange(programs.size, dtype=np.int32).repeat(programs), np.cumsum(programs) - programs


class Bucket:
    """Tensors of fixed sizes on one device.

    Attributes:
        sizes: number of elements of each tensor.
        rows: the fields that do not change, on the host: codecs fill in their own.
        tiles: programs of ``tile`` elements each.

    Raises:
        CapacityError: a tensor has 2**30 elements or more.
    """

    def __init__(self, sizes: Sequence[int], device: torch.device, tile: int) -> None:
        most = max(sizes, default=0)
        if most > MAX_NUMEL:
            raise CapacityError(
                f"a tensor has {most} elements; kernels take 0 to {MAX_NUMEL}: split the tensor"
            )
        self.sizes = tuple(sizes)
        self.device = device
        self.tiles = divide(sizes, tile, device)
        self.rows: Whole = np.zeros((len(sizes), field.FIELDS.value), np.int64)
        self.rows[:, field.NUMEL.value] = sizes
        self.rows[:, field.FIRST_TILE.value] = self.tiles.first

    def check(self, arrays: Sequence[Sequence[torch.Tensor]]) -> None:
        """Refuse arrays that are not those of the bucket's tensors.

        Raises:
            ValueError: naming the array.
        """
        for (grad, *others), numel in zip(arrays, self.sizes, strict=True):
            _check(grad, numel, self.device, _FLOAT if others[0] is grad else tuple(GRAD_TYPES))
            for array in others:
                _check(array, numel, self.device, _FLOAT)


class Rows:
    """Any other table, in one place of a device for all steps, and copied there where it changed.

    Attributes:
        host: int64, [tensors, fields].
        memory: on the device.
    """

    def __init__(self, count: int, fields: int, device: torch.device) -> None:
        self.host: Whole = np.zeros((count, fields), np.int64)
        self.memory = torch.zeros((count, fields), dtype=torch.int64, device=device)
        self._there = self.host.copy()

    def upload(self) -> None:
        """Copy the table on the current stream, if it changed."""
        if not np.array_equal(self.host, self._there):
            self._there = self.host.copy()
            self.memory.copy_(upload(self._there, self.memory.device))


class Table:
    """A bucket's table on the device, for tensors that mostly have the same memory in every step.

    Attributes:
        memory: of the table, int64; one place for all steps, as graphs read it.
    """

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._rows = bucket.rows.copy()
        self._given: list[tuple[object, ...]] = []
        self._streams: list[int] = []
        self._mode: Mode | None = None
        self.memory = torch.zeros(bucket.rows.shape, dtype=torch.int64, device=bucket.device)

    def fill(self, tensors: Sequence[LaunchItem], *, seeded: bool = False) -> Mode:
        """Tell kernels about a step's tensors; returns what these share. Copies only where it changed.

        Args:
            seeded: the codec draws random numbers; else the table does not change with the step.

        Raises:
            ValueError: the tensors are not those of the bucket, or no launch can work on all of them.
        """
        given = [_given(tensor) for tensor in tensors]
        streams = [tensor.stream for tensor in tensors] if seeded else []
        if self._mode is None or given != self._given:
            self._mode = self._fill(tensors)
            self._given = given
        elif streams == self._streams:
            return self._mode
        if seeded:
            self._rows[:, field.STREAM.value] = np.array(streams, np.uint64).view(np.int64)
        self._streams = streams
        self.memory.copy_(upload(self._rows, self._bucket.device))
        return self._mode

    def _fill(self, tensors: Sequence[LaunchItem]) -> Mode:
        """Fill the rows on the host, but for the streams."""
        arrays = [_arrays_of(tensor) for tensor in tensors]
        self._bucket.check(arrays)
        mode = _mode_of({_kind(tensor) for tensor in tensors}, tensors)
        addresses = np.array([[array.data_ptr() for array in each] for each in arrays])
        bits = np.array([_weights_of(tensor) for tensor in tensors], np.float32).view(np.int32)
        self._rows[:, : addresses.shape[1]] = addresses
        self._rows[:, field.BETA.value : field.GAMMA.value + 1] = bits
        return mode._replace(aligned=not (addresses % VECTOR_BYTES).any())


def _given(tensor: LaunchItem) -> tuple[object, ...]:
    """All of a tensor that a table says, but for the stream; made in each step, so it is short."""
    grad, residual, beta, gamma, momentum, _ = tensor
    memory = 0 if residual is None else residual.data_ptr()
    if momentum is None:
        return grad.data_ptr(), grad.numel(), grad.dtype, memory, beta, gamma
    return (
        grad.data_ptr(),
        grad.numel(),
        grad.dtype,
        memory,
        momentum.values.data_ptr(),
        momentum[1:],
    )


def _weights_of(tensor: LaunchItem) -> tuple[float, float]:
    if tensor.momentum is None:
        return tensor.beta, tensor.gamma
    return tensor.momentum.factor, tensor.momentum.scale


def _arrays_of(tensor: LaunchItem) -> list[torch.Tensor]:
    """Gradient, residual and momentum; kernels read the gradient where there is no residual."""
    arrays = [tensor.grad, tensor.grad if tensor.residual is None else tensor.residual]
    return arrays if tensor.momentum is None else [*arrays, tensor.momentum.values]


def _mode_of(kinds: set[tuple[object, ...]], tensors: Sequence[LaunchItem]) -> Mode:
    if len(kinds) != 1:
        raise ValueError(
            f"the bucket's tensors have {len(kinds)} kinds of error feedback or dtypes; launch each apart"
        )
    tensor = tensors[0]
    grad_type = GRAD_TYPES[tensor.grad.dtype]
    if tensor.momentum is None:
        mode = correct.PLAIN if tensor.residual is None else correct.FEEDBACK
        return Mode(mode.value, False, False, grad_type)
    if tensor.residual is None:
        raise ValueError("momentum correction needs a residual; give one of zeros")
    mode = correct.NESTEROV if tensor.momentum.nesterov else correct.CORRECTION
    return Mode(mode.value, tensor.momentum.masking, False, grad_type)


def _kind(tensor: LaunchItem) -> tuple[object, ...]:
    """Properties for which kernels are compiled."""
    momentum = tensor.momentum
    if momentum is None:
        return tensor.grad.dtype, tensor.residual is None
    return tensor.grad.dtype, tensor.residual is None, momentum.nesterov, momentum.masking


def _check(
    array: torch.Tensor, numel: int, device: torch.device, dtypes: Sequence[torch.dtype]
) -> None:
    if (
        array.dtype not in dtypes
        or array.device != device
        or array.numel() != numel
        or not array.is_contiguous()
    ):
        names = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise ValueError(
            f"a tensor of the bucket is {array.dtype} of {array.numel()} elements on "
            f"{array.device}; it must be contiguous {names} of {numel} elements on {device}"
        )
