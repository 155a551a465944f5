"""A device of torch as gradcomp's `Device`: kernels work on the tensors, the core makes the frames.

Run on CPU tensors with interpreted kernels; not run on any GPU so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from gradcomp import Codec, ToDecode, ToEncode, decode_batch_add
from gradcomp.adapter_api import (
    ByteArray,
    Encoded,
    FloatArray,
    KeptParts,
    PayloadParts,
    Spec,
    derive_stream,
    frames_of_parts,
    kept_of_frame,
    payload_of_frame,
)
from gradcomp.errors import WireError
from torch_compressors.devices import TensorArray
from torch_compressors.gpu import codecs
from torch_compressors.gpu.add import ToAdd, ToAddHalf, add_half, add_kept
from torch_compressors.gpu.bucket import Kept, Momentum, Payload, ToLaunch, upload
from torch_compressors.shared.host_copies import to_device
from torch_compressors.shared.staging import Staging

__all__ = ["TorchDevice"]

_KEPT, _HALF = frozenset({"topk", "randomk"}), frozenset({"fp16", "bf16"})
"""Names of codecs whose frames are added by kernels: as kept elements, or as 16-bit payloads."""


class TorchDevice:
    """One device of this process.

    Work for other ranks' sake runs on the current stream, encoding on a stream beside it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._staging = Staging(device)
        self._encoders: dict[tuple[object, ...], codecs.Encoder] = {}

    def array(self, tensor: torch.Tensor) -> Any:
        """A tensor of this device as an array; see `TensorArray`."""
        return TensorArray(self, tensor)

    def takes(self, spec: Spec, shape: tuple[int, ...]) -> bool:
        """Whether there are kernels for the codec; all memories that rounds hand over are known."""
        # An encoder keeps memory for its parameters, so they must not change from step to step.
        fixed = spec.algorithm is None and not spec.scheduled
        return fixed and 0 not in shape and codecs.takes(spec.codec)

    def zeros(self, numel: int) -> Any:
        """A new flat array."""
        return TensorArray(self, torch.zeros(numel, device=self._device))

    def encode(self, tensors: Sequence[ToEncode]) -> Encoded:
        """Launch one encoder for each codec and kind of error feedback."""
        groups: dict[tuple[object, ...], list[int]] = {}
        for place, tensor in enumerate(tensors):
            correction = tensor.correction
            mode = None if correction is None else (correction.nesterov, correction.masking)
            kind = (tensor.codec.spec, tensor.residual is None, mode)
            groups.setdefault(kind, []).append(place)
        parts: dict[int, Callable[[], KeptParts | PayloadParts]] = {}
        with self._staging.beside(_tensors_of(tensors)) as staged:
            for key, places in groups.items():
                encoder = self._encoder(key, [tensors[place] for place in places])
                launched: Sequence[Kept | Payload] = encoder.launch(
                    [_to_launch(tensors[place]) for place in places]
                )
                for place, part in zip(places, launched, strict=True):
                    parts[place] = _part(tensors[place], part, staged.fetch)

        def wait() -> tuple[ByteArray, list[int]]:
            staged.wait()
            return frames_of_parts([parts[place]() for place in range(len(tensors))])

        return wait

    def decode_add(self, tensors: Sequence[ToDecode], weight: float) -> None:
        """Add rank after rank, as the core does; frames without kernels are added on the host."""
        there = [one for one in tensors if one.codec.name in _KEPT | _HALF]
        for rank in range(max((len(tensor.frames) for tensor in there), default=0)):
            kept: list[ToAdd] = []
            halves: dict[str, list[ToAddHalf]] = {name: [] for name in sorted(_HALF)}
            for one in there:
                of_rank = one.codec, one.frames[rank], one.out, self._device
                with _named(one, rank):
                    if one.codec.name in _KEPT:
                        kept.append(_to_add(*of_rank))
                    else:
                        halves[one.codec.name].append(_to_add_half(*of_rank))
            add_kept(kept, weight)
            for name, half in halves.items():
                add_half(half, weight, bf16=name == "bf16")
        self._add_on_host([one for one in tensors if one.codec.name not in _KEPT | _HALF], weight)

    def add(self, codec: Codec, frame: ByteArray, out: FloatArray, weight: float) -> None:
        """Add a frame to elements of any value, on the host where it has no kernels."""
        if codec.name in _KEPT:
            add_kept([_to_add(codec, frame, out, self._device)], weight)
        elif codec.name in _HALF:
            half = [_to_add_half(codec, frame, out, self._device)]
            add_half(half, weight, bf16=codec.name == "bf16")
        else:
            host = self.to_host(out)
            codec.decode_add(frame, host, weight)
            _tensor(out).copy_(to_device(torch.from_numpy(host), self._device))

    def _add_on_host(self, tensors: Sequence[ToDecode], weight: float) -> None:
        pinned = self._device.type != "cpu"
        sums = [torch.zeros(tensor.out.size, pin_memory=pinned) for tensor in tensors]
        given = [
            tensor._replace(out=total.numpy()) for tensor, total in zip(tensors, sums, strict=True)
        ]
        decode_batch_add(given, weight)
        for tensor, total in zip(tensors, sums, strict=True):
            _tensor(tensor.out).copy_(total, non_blocking=True)

    def to_host(self, array: FloatArray) -> FloatArray:
        """A copy on the host, of the values after all that was launched."""
        self._staging.join()
        host: FloatArray = _tensor(array).cpu().numpy().copy()
        return host

    def from_host(self, array: FloatArray) -> Any:
        """A copy on this device."""
        return TensorArray(self, torch.from_numpy(array.copy()).to(self._device))

    def _encoder(self, kind: tuple[object, ...], tensors: Sequence[ToEncode]) -> codecs.Encoder:
        """The encoder of some tensors, which keeps its memory from step to step."""
        sizes = tuple(tensor.grad.size for tensor in tensors)
        key = (kind, sizes, tuple(tensor.tensor_id for tensor in tensors))
        encoder = self._encoders.get(key)
        if encoder is None:
            spec = tensors[0].codec.spec
            encoder = self._encoders[key] = codecs.encoder(spec, sizes, self._device)
        return encoder


def _tensor(array: object) -> torch.Tensor:
    assert isinstance(array, TensorArray)  # other devices' arrays are not given to this one
    return array.tensor


def _tensors_of(tensors: Sequence[ToEncode]) -> list[torch.Tensor]:
    arrays: list[object] = []
    for tensor in tensors:
        arrays.append(tensor.grad)
        if tensor.residual is not None:
            arrays.append(tensor.residual)
        if tensor.correction is not None:
            arrays.append(tensor.correction.momentum)
    return [_tensor(array) for array in arrays]


def _to_launch(tensor: ToEncode) -> ToLaunch:
    momentum = None
    if tensor.correction is not None:
        values, factor, scale, nesterov, masking = tensor.correction
        momentum = Momentum(_tensor(values), factor, scale, nesterov, masking)
    residual = None if tensor.residual is None else _tensor(tensor.residual)
    return ToLaunch(
        _tensor(tensor.grad), residual, tensor.beta, tensor.gamma, momentum, _stream(tensor)
    )


def _stream(tensor: ToEncode) -> int:
    return derive_stream(tensor.seed, tensor.step, tensor.tensor_id)


def _part(
    tensor: ToEncode, part: Kept | Payload, fetch: Callable[[torch.Tensor], torch.Tensor]
) -> Callable[[], KeptParts | PayloadParts]:
    """Start copies of a result; the function makes the core's part of them, when they are there."""
    numel, stream = tensor.grad.size, _stream(tensor)
    if isinstance(part, Payload):
        data = fetch(part.data)
        return lambda: PayloadParts(tensor.codec, data.numpy(), numel, stream)
    indices, values = fetch(part.indices), fetch(part.values)
    return lambda: KeptParts(
        tensor.codec, indices.numpy().view(np.uint32), values.numpy(), numel, stream
    )


def _to_add(codec: Codec, frame: ByteArray, out: FloatArray, device: torch.device) -> ToAdd:
    indices, values = kept_of_frame(codec, frame, out.size)
    return ToAdd(_tensor(out), upload(indices.view(np.int32), device), upload(values, device))


def _to_add_half(
    codec: Codec, frame: ByteArray, out: FloatArray, device: torch.device
) -> ToAddHalf:
    return ToAddHalf(_tensor(out), upload(payload_of_frame(codec, frame, out.size), device))


@contextmanager
def _named(tensor: ToDecode, place: int) -> Iterator[None]:
    """Name the rank and the tensor of a frame that the core refuses, as the core does for batches."""
    try:
        yield
    except WireError as error:
        sender = place if tensor.senders is None else tensor.senders[place]
        raise WireError(f"the frame of rank {sender} for '{tensor.name}': {error}") from error
