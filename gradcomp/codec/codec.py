"""Codecs: gradients to bytes and back."""

from __future__ import annotations

import math
import operator
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gradcomp import _core
from gradcomp.codec.arrays import ByteArray, CodedArray, FloatArray, as_bytes, as_float32, room
from gradcomp.codec.correction import Correction
from gradcomp.codec.spec import checked_text, parse, stages
from gradcomp.errors import CapacityError, WireError
from gradcomp.stopwatch import timed

__all__ = ["Codec", "derive_stream", "get_codec", "list_algorithms", "list_codecs"]


class Codec:
    """An immutable pair of functions between gradients and bytes; safe to share between threads.

    The same payload has two forms. A *frame* (``encode``, ``decode``, ``decode_add``) describes
    itself. A bare *payload* (``encode_payload`` and so on) does not: it is for engines that add payloads
    of a summable codec, or for ends that agree on the rest beforehand.

    The bytes are a function of the input, the spec, and, for seeded codecs, of ``(seed, step,
    tensor_id)``: whole numbers in [0, 2**64). They do not depend on the number of threads or the
    instruction set.
    """

    __slots__ = ("caps", "carried", "core", "decodes_slowly", "name", "payload_dtype", "spec")

    def __init__(self, spec: str) -> None:
        parse(spec)  # registers a plug-in that the spec names
        self.core = _core.Codec(spec)
        """The codec of the C++ core; for this package."""
        self.spec: str = self.core.spec
        """The canonical spec."""
        self.name: str = self.core.name
        self.caps: frozenset[str] = frozenset(self.core.caps)
        """Capabilities. ``summable``: payloads of ranks may be added and decoded once;
        ``nonlinear``: summable, but the decode of a sum is not the sum of the decodes; ``seeded``:
        the bytes depend on seed, step and tensor_id; ``sparse``: decode_add costs O(payload);
        ``finite``: a finite input decodes to finite values; ``private_noise``: encoding draws noise
        that ranks should not share; ``whole_bucket``: the tensors of a bucket are looked at as a whole,
        see `gradcomp.encode_batch`; ``learns``: averages of past steps help, see `learn`.
        ``GRADCOMP_EACH_CAP`` in gradcomp.h lists them."""
        self.carried: int = self.core.carried
        """Number of float32 values per tensor that the encoder keeps from one step to the next, to
        shorten its search; see `gradcomp.EncodeItem`. Decoding never needs them."""
        self.decodes_slowly: bool = self.core.decodes_slowly
        """Whether decoding is so slow that a rank should keep the decode of the frame it has made; see
        `EncodeItem.decoded`."""
        self.payload_dtype: np.dtype[Any] = np.dtype(self.core.payload_dtype)
        """The elements of a payload: float32 or float16 for summable codecs, else uint8."""

    def __repr__(self) -> str:
        return f"get_codec({self.spec!r})"

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return get_codec, (self.spec,)

    def max_encoded_size(self, numel: int) -> int:
        """Upper bound of the bytes of a frame of ``numel`` elements.

        Raises:
            CapacityError: ``numel`` is negative, or 2**30 or more.
        """
        return self.core.max_frame_size(_check_numel(numel))

    def max_payload_size(self, numel: int) -> int:
        """Upper bound of the bytes of a bare payload of ``numel`` elements.

        Raises:
            CapacityError: ``numel`` is negative, or 2**30 or more.
        """
        return self.core.max_payload_size(_check_numel(numel))

    def basis_size(self, shape: tuple[int, ...]) -> int:
        """Number of float32 values that `learn` keeps for a tensor of this shape; 0 if it learns
        nothing."""
        return self.core.basis_size(math.prod(shape), _cols(shape))

    @timed("decode")
    def learn(self, average: FloatArray, shape: tuple[int, ...], basis: FloatArray) -> None:
        """Update a basis with the average of a step, for the frames of the next one.

        Args:
            average: C-contiguous float32, the same on every rank; then so is the basis.
            shape: of the tensor.
            basis: C-contiguous float32 of `basis_size` elements, at first zeros; updated in place.

        Raises:
            TypeError: ``basis`` is not such an array.
            ValueError: ``basis`` has another number of elements.
        """
        _check_out(basis, np.float32, self.basis_size(shape))
        self.core.learn(average, _cols(shape), basis)

    @timed("encode")
    def encode(
        self,
        x: Any,
        *,
        seed: int = 0,
        step: int = 0,
        tensor_id: int = 0,
        out: ByteArray | None = None,
    ) -> ByteArray:
        """Encode a tensor as a frame.

        Args:
            x: a tensor of any shape; see `gradcomp.codec.arrays.as_float32`. Some codecs see it as
                the matrix [shape[0], rest]. Or the array of a device, such as
                ``torch_compressors.device_array`` gives, which encodes it there to the same bytes.
            out: one-dimensional contiguous uint8 array of at least ``max_encoded_size(x.size)``
                elements to write to; the result is a view of it. By default a new one.

        Returns:
            The frame, a flat uint8 array.

        Raises:
            TypeError: ``x`` is not a float tensor in CPU memory, or ``out`` is not such an array. Or seed,
                step or tensor_id is not a whole number in [0, 2**64).
            CapacityError: ``x`` has 2**30 elements or more, or ``out`` is too small.
            SpecError: ``x`` is on a device that has no kernels for this codec.
        """
        if isinstance(x, CodedArray):
            if out is not None:
                raise TypeError(
                    "out is given for an array of a device, and its frame is a new array: leave it out"
                )
            return x.encode(self, seed, step, tensor_id)
        values = as_float32(x)
        capacity = self.max_encoded_size(values.size)
        if out is None:
            out = np.empty(capacity, np.uint8)
        else:
            _check_out(out, np.uint8)
            if out.ndim != 1:
                raise TypeError(f"out has {out.ndim} dimensions; it must have 1: out.reshape(-1)")
        stream = derive_stream(seed, step, tensor_id)
        return out[: self.core.encode_frame(values, stream, out)]

    @timed("decode")
    def decode(
        self, frame: Any, out: FloatArray | None = None, *, numel: int | None = None
    ) -> FloatArray:
        """Decode a frame.

        Args:
            frame: bytes, or a contiguous uint8 array. Every byte is checked, none is trusted.
            out: C-contiguous float32 array of any shape to write to. By default a new flat one.
            numel: the expected number of elements; other frames are refused before any memory is
                allocated. Give it, or ``out``, for a frame from an untrusted source: a few bytes
                may stand for up to 2**30 elements of a sparse codec, 4 GiB.

        Raises:
            WireError: the frame is damaged, was made by another codec or spec, or has another
                number of elements than ``out`` or ``numel`` says. ``out`` must be discarded.
            TypeError: ``frame`` does not hold bytes, or ``out`` is not such an array.
        """
        data = as_bytes(frame)
        if out is None:
            claimed = self.core.frame_numel(data)
            if numel is not None and claimed != numel:
                raise WireError(f"the frame holds {claimed} elements, not {numel}")
            try:
                out = np.empty(claimed, np.float32)
            except MemoryError as error:
                raise CapacityError(f"no memory for the {claimed} elements of the frame") from error
        else:
            _check_out(out, np.float32, numel)
        self.core.decode_frame(data, out)
        return out

    @timed("decode")
    def decode_add(self, frame: Any, out: FloatArray, weight: float = 1.0) -> None:
        """``out += weight * decode(frame)`` without a dense intermediate.

        Each element is rounded once for the product and once for the sum. On an error ``out`` is
        untouched.

        Args:
            frame: bytes, or a contiguous uint8 array.
            out: C-contiguous float32 array of as many elements as the frame, of any shape; or the
                array of a device, as in `encode`.
            weight: factor of the decoded elements.

        Raises:
            WireError: as in `decode`.
            TypeError: ``frame`` does not hold bytes, or ``out`` is not such an array.
            SpecError: ``out`` is on a device that has no kernels for this codec.
        """
        if isinstance(out, CodedArray):
            out.decode_add(self, as_bytes(frame), float(weight))
            return
        _check_out(out, np.float32)
        self.core.decode_frame_add(as_bytes(frame), float(weight), out)

    @timed("encode")
    def encode_payload(
        self, x: Any, *, seed: int = 0, step: int = 0, tensor_id: int = 0
    ) -> npt.NDArray[Any]:
        """The bare payload of a tensor, as a flat array of ``payload_dtype``.

        Arguments and errors are those of `encode`.
        """
        values = as_float32(x)
        out = room(self.max_payload_size(values.size), np.uint8)
        stream = derive_stream(seed, step, tensor_id)
        return out[: self.core.encode_payload(values, stream, out)].view(self.payload_dtype)

    @timed("encode")
    def encode_payload_with_residual(
        self,
        grad: FloatArray,
        residual: FloatArray,
        beta: float = 1.0,
        gamma: float = 1.0,
        *,
        correction: Correction | None = None,
        seed: int = 0,
        step: int = 0,
        tensor_id: int = 0,
    ) -> npt.NDArray[Any]:
        """Error feedback around `encode_payload`, in one or two passes over memory.

        Args:
            grad: C-contiguous float32.
            residual: of as many elements, updated in place: ``beta * residual + gamma * grad`` is
                encoded, and its decode is subtracted from it; then elements that are not finite are
                reset to 0.
            beta: weight of the residual.
            gamma: weight of the gradient.
            correction: replaces beta and gamma; masking needs a codec that sends indices.

        Returns:
            The payload, a flat array of ``payload_dtype``.
        """
        _check_out(residual, np.float32)
        out = room(self.max_payload_size(residual.size), np.uint8)
        stream = derive_stream(seed, step, tensor_id)
        written = self.core.encode_payload_with_residual(
            residual, grad, beta, gamma, correction, stream, out
        )
        return out[:written].view(self.payload_dtype)

    @timed("decode")
    def decode_payload(
        self,
        payload: npt.NDArray[Any],
        numel: int,
        *,
        seed: int = 0,
        step: int = 0,
        tensor_id: int = 0,
        out: FloatArray | None = None,
    ) -> FloatArray:
        """Decode a bare payload (or the sum of several, for a summable codec).

        Args:
            payload: a contiguous array of ``payload_dtype``.
            numel: number of elements, as encoded.
            seed, step, tensor_id: as encoded.
            out: C-contiguous float32 array of ``numel`` elements; by default a new flat array.

        Raises:
            WireError: the payload is damaged.
            ValueError: ``out`` has another number of elements.
        """
        if out is None:
            out = np.empty(_check_numel(numel), np.float32)
        else:
            _check_out(out, np.float32, numel)
        stream = derive_stream(seed, step, tensor_id)
        self.core.decode_payload(as_bytes(payload), stream, out)
        return out

    @timed("decode")
    def decode_payload_add(
        self,
        payload: npt.NDArray[Any],
        out: FloatArray,
        weight: float = 1.0,
        *,
        seed: int = 0,
        step: int = 0,
        tensor_id: int = 0,
    ) -> None:
        """``out += weight * decode_payload(payload, out.size)`` without a dense intermediate."""
        _check_out(out, np.float32)
        stream = derive_stream(seed, step, tensor_id)
        self.core.decode_payload_add(as_bytes(payload), stream, float(weight), out)


def _cols(shape: tuple[int, ...]) -> int:
    """Elements of a row of the matrix [shape[0], rest]; 0 for a vector."""
    return math.prod(shape[1:]) if len(shape) > 1 else 0


def get_codec(spec: str) -> Codec:
    """The codec of a spec such as ``"topk(ratio=0.01)"``.

    Raises:
        SpecError: the spec is wrong, or names a memory (a codec holds no state).
        TypeError: ``spec`` is not a string.
    """
    return _make_codec(checked_text(spec))


@lru_cache(maxsize=1024)
def _make_codec(spec: str) -> Codec:
    return Codec(spec)


def list_codecs() -> list[str]:
    """The names of all registered codecs."""
    return [stage.name for stage in stages() if stage.kind == "codec"]


def list_algorithms() -> list[str]:
    """The names of all registered algorithms: reductions of several phases, instead of a codec."""
    return [stage.name for stage in stages() if stage.kind == "algorithm"]


def _check_numel(numel: int) -> int:
    if 0 <= operator.index(numel) <= _core.MAX_NUMEL:
        return numel
    raise CapacityError(f"numel is {numel}; allowed are 0 to {_core.MAX_NUMEL}: split the tensor")


def _check_out(out: Any, dtype: npt.DTypeLike, numel: int | None = None) -> None:
    if not isinstance(out, np.ndarray):
        fault = f"of type {type(out).__name__}"
    elif out.dtype != dtype:
        fault = f"of dtype {out.dtype}"
    elif not out.flags.c_contiguous:
        fault = "not contiguous"
    elif not out.flags.writeable:
        fault = "read-only"
    elif numel is not None and out.size != numel:
        raise ValueError(f"out has {out.size} elements and numel says {numel}")
    else:
        return
    raise TypeError(
        f"out must be a C-contiguous, writeable numpy array of dtype {np.dtype(dtype)}; "
        f"it is {fault}"
    )


def derive_stream(seed: int, step: int, tensor_id: int) -> int:
    """The key of one tensor's random numbers in one step.

    Raises:
        TypeError: an argument is not a whole number in [0, 2**64).
    """
    return _core.derive_stream(seed, step, tensor_id)
