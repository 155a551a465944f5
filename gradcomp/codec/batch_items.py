"""Tensors of a batch.

The core reads the fields of the named tuples by their names (csrc/bindings/batch.cpp).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gradcomp.codec.arrays import ByteArray, FloatArray
from gradcomp.codec.codec import Codec
from gradcomp.codec.correction import Correction

__all__ = ["AdvanceItem", "DecodeItem", "DifferItem", "EncodeItem", "GiveItem", "PeerItem"]


class EncodeItem(NamedTuple):
    """One tensor of a batch; its arrays are in the memory of one `Device`.

    Attributes:
        grad: C-contiguous float32, of any shape; some codecs see it as the matrix [shape[0], rest].
        seed, step, tensor_id: as in `Codec.encode`.
        residual: for error feedback, C-contiguous float32 of as many elements, updated in place:
            ``beta * residual + gamma * grad`` is encoded, and its decode is subtracted from it;
            then elements that are not finite are reset to 0.
        beta: weight of the residual.
        gamma: weight of the gradient.
        correction: replaces beta and gamma; masking needs a codec that sends indices.
        carried: C-contiguous float32 of `Codec.carried` elements, zeros in the first step. The
            encoder starts its search from them and replaces them for the next step. The bytes then
            depend on earlier steps, too. None: each search starts from the beginning.
        basis: C-contiguous float32 of `Codec.basis_size` elements, made by `Codec.learn` from past
            averages. Decoding the frame then needs the same basis. None: without.
        decoded: with a residual, C-contiguous float32 of as many elements, which receives the decoded
            frame; for codecs that `Codec.decodes_slowly`. None: the residual alone needs it.
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
    decoded: FloatArray | None = None


class DecodeItem(NamedTuple):
    """One tensor of a batch; ``out`` may be in the memory of a `Device`.

    Attributes:
        name: of the tensor, for error messages.
        frames: one from each rank, or each of ``senders``, in rank order.
        out: C-contiguous float32 array of the tensor's size; the decoded frames are added to it.
        basis: the basis with which the frames were encoded; None: without.
        senders: the ranks of the frames, for error messages; None: 0, 1, ...
        over_senders: ``out``, which holds zeros, becomes each element's sum over the number of frames
            that carry it, whatever its values; for codecs with the capability ``sparse``.
        clips: frames with an L2 norm above the median of the norms are scaled down to it, the lower
            middle one of an even number. Their mean is added, unless ``over_senders``.
        replaces: ``out`` need not hold zeros, as its former elements do not count.
        known: the place of a frame, and its `EncodeItem.decoded`: it is checked, but not decoded again.
            Without effect where ``over_senders`` or ``clips``. None: no frame is known.
    """

    name: str
    codec: Codec
    frames: Sequence[ByteArray]
    out: FloatArray
    basis: FloatArray | None = None
    senders: Sequence[int] | None = None
    over_senders: bool = False
    clips: bool = False
    replaces: bool = False
    known: tuple[int, FloatArray] | None = None


class PeerItem(NamedTuple):
    """One tensor of a bucket that came in messages of devices; see `PeerDevice.add_messages`.

    Attributes:
        out: in the memory of the device, of any content; it becomes the sum.
        streams: key of each rank's random numbers, in rank order; 0 for codecs that are not ``seeded``.
    """

    codec: Codec
    out: FloatArray
    streams: Sequence[int]


class GiveItem(NamedTuple):
    """A tensor that is not encoded: its exact gradient is written to ``out``; arrays are flat.

    Attributes:
        residual: ``beta * residual + gamma * grad`` is written, and the residual becomes 0; None: the
            gradient itself is.
        out: float32; it may be the gradient's own memory.
    """

    grad: FloatArray
    residual: FloatArray | None
    beta: float
    gamma: float
    out: FloatArray


class DifferItem(NamedTuple):
    """A tensor with EF21: ``difference = grad - estimate``, all NaN if an element is not finite; flat."""

    difference: FloatArray
    grad: FloatArray
    estimate: FloatArray


class AdvanceItem(NamedTuple):
    """A tensor with EF21 after an average of differences; arrays are flat.

    Attributes:
        mean: of all ranks' estimates; ``mean += average``, and elements that are not finite become 0.
        average: of what was sent.
        out: gets the sum as it is; it may be ``average``.
        estimate: of this rank; ``estimate += difference - unsent``. Elements become 0 where the sum is not
            finite, and stay where this is not. None: it is ``mean``.
        difference, unsent: of this step; None without ``estimate``.
    """

    mean: FloatArray
    average: FloatArray
    out: FloatArray
    estimate: FloatArray | None = None
    difference: FloatArray | None = None
    unsent: FloatArray | None = None
