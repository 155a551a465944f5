"""Many tensors in one call, each with its own codec, stream and residual."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gradcomp import _core
from gradcomp.codec.arrays import ByteArray, FloatArray
from gradcomp.codec.codec import Codec, derive_stream
from gradcomp.stopwatch import timed

__all__ = ["Correction", "ToDecode", "ToEncode", "decode_batch_add", "encode_batch"]


class Correction(NamedTuple):
    """Momentum correction: the residual (DGC's velocity) accumulates momenta, not gradients.

    ``momentum = factor * momentum + scale * grad``; ``residual += momentum``. With nesterov,
    ``momentum = factor * (momentum + scale * grad)``; ``residual += momentum + scale * grad``.
    Lin et al., "Deep Gradient Compression" (ICLR 2018), section 3.2.

    Attributes:
        momentum: C-contiguous float32 of as many elements as the gradient, updated in place.
        factor: in [0, 1).
        scale: of the gradient, as clipping demands.
        masking: elements that are sent leave the momentum, too (section 3.3, factor masking).
    """

    momentum: FloatArray
    factor: float
    scale: float = 1.0
    nesterov: bool = False
    masking: bool = True


class ToEncode(NamedTuple):
    """One tensor of a batch.

    Attributes:
        grad: C-contiguous float32, of any shape; some codecs see it as the matrix [shape[0], rest].
        seed, step, tensor_id: as in `Codec.encode`.
        residual: for error feedback, C-contiguous float32 of as many elements, updated in place:
            ``beta * residual + gamma * grad`` is encoded, and what decoding gives is subtracted
            from it; elements that are not finite then are reset to 0.
        beta: weight of the residual.
        gamma: weight of the gradient.
        correction: instead of beta and gamma, for codecs that send indices.
        carried: C-contiguous float32 of `Codec.carried` elements, zeros in the first step, that
            the encoder replaces by what it begins from in the next one. The bytes are then a
            function of the steps before, too. None: it begins anew.
        basis: C-contiguous float32 of `Codec.basis_size` elements that `Codec.learn` has made of
            past averages. The frame can then be decoded with the same basis alone. None: without.
    """

    codec: Codec
    grad: FloatArray
    seed: int = 0
    step: int = 0
    tensor_id: int = 0
    residual: FloatArray | None = None
    beta: float = 1.0
    gamma: float = 1.0
    correction: Correction | None = None
    carried: FloatArray | None = None
    basis: FloatArray | None = None


class ToDecode(NamedTuple):
    """One tensor of a batch.

    Attributes:
        name: what errors call it.
        frames: one of each rank.
        out: C-contiguous float32 array that the decoded frames are added to.
        basis: what the frames were encoded with.
    """

    name: str
    codec: Codec
    frames: Sequence[ByteArray]
    out: FloatArray
    basis: FloatArray | None = None


@timed("encode")
def encode_batch(tensors: Sequence[ToEncode]) -> tuple[ByteArray, list[int]]:
    """Encode all tensors of a bucket.

    Each frame is what `Codec.encode` makes of the tensor by itself, but for codecs that ``share``:
    ``globaltopk`` chooses among all elements of its tensors here, and ``adaptive`` gives all of
    them one step. Large tensors are worked on by
    all threads in turn, small ones by one thread each; the bytes do not depend on it.

    Returns:
        The frames, one after the other (`gradcomp.codec.frame.split_frames` cuts them apart), and the
        bytes of each.

    Raises:
        TypeError: an array is not C-contiguous float32.
        ValueError: a residual has another size than its gradient, or ``carried`` or ``basis`` than
            the codec's.
        CapacityError: a tensor has 2**30 elements or more.
    """
    room, sizes = _core.encode_batch(
        [
            (
                one.codec.core,
                one.grad,
                derive_stream(one.seed, one.step, one.tensor_id),
                one.residual,
                one.beta,
                one.gamma,
                one.correction,
                one.carried,
                one.basis,
            )
            for one in tensors
        ]
    )
    return room[: sum(sizes)], sizes


@timed("decode")
def decode_batch_add(tensors: Sequence[ToDecode], weight: float = 1.0) -> None:
    """``out += weight * decode(frame)`` for each frame of each tensor, in the order given.

    Raises:
        WireError: a frame is damaged, or was made by another codec, for another size or with
            another basis; the message names the rank (the frame's position) and the tensor. All
            ``out`` must be discarded.
        TypeError: an array is not C-contiguous, or of another dtype than float32 or uint8.
    """
    _core.decode_batch_add(
        [(one.name, one.codec.core, list(one.frames), one.out, one.basis) for one in tensors],
        weight,
    )
