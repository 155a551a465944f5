"""A device of torch as gradcomp's `Device`: kernels work on the tensors, the core makes the frames."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import chain
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch

from gradcomp import Codec, DecodeItem, EncodeItem
from gradcomp.adapter_api import ByteArray, FloatArray, Spec
from gradcomp.device_api import (
    MAX_NUMEL,
    AdvanceItem,
    ApplyItem,
    DifferItem,
    Encoded,
    FactorDevice,
    GiveItem,
    KeptParts,
    MultiplyItem,
    PayloadParts,
    PeerDevice,
    derive_stream,
    frames_of_parts,
    kept_of_frames,
    payloads_of_frames,
)
from gradcomp.errors import WireError
from gradcomp_torch.compat import (
    foreach_add_,
    foreach_copy_,
    foreach_mul,
    foreach_mul_,
    foreach_sub_,
    foreach_zero_,
)
from gradcomp_torch.devices import Halves, TensorArray, array_of, convert, tensor_of
from gradcomp_torch.gpu import codecs, low_rank
from gradcomp_torch.gpu.add import HELD, KEPT, ZERO, AddItem, Addition, Form, form_of
from gradcomp_torch.gpu.bucket import Kept, LaunchItem, Momentum, Payload
from gradcomp_torch.gpu.encoders.encoder import Encoder, Launches
from gradcomp_torch.gpu.finite import Poison
from gradcomp_torch.host_copies import to_device
from gradcomp_torch.staging import Staged, Staging

__all__ = ["TorchDevice", "kind_of", "to_launch"]


KNOWN_BUCKETS = 4096
"""Number of buckets for which a device keeps launches: callers may give single tensors ever new ids."""


class TorchDevice:
    """One device of this process.

    It is a `ProductDevice`, too. Work that other ranks wait for runs on the current stream, encoding on a second one.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._staging = Staging(device)
        # Launches and messages keep their encoders: one is forgotten when its parameters have changed.
        self._encoders: WeakValueDictionary[tuple[object, ...], Encoder] = WeakValueDictionary()
        self._launches: dict[tuple[int, tuple[int, ...]], Launches] = {}
        self._poisons: dict[tuple[int, ...], Poison] = {}

    def array(
        self,
        tensor: torch.Tensor,
        computed: torch.Event | None = None,
        halves: Halves | None = None,
    ) -> Any:
        """See `TensorDevice`."""
        return TensorArray(self, tensor, computed, halves)

    def takes(self, spec: Spec, shape: tuple[int, ...]) -> bool:
        """Whether there are kernels for the codec; all memories that rounds hand over are known.

        Kernels add to indices of 32 bits, so a tensor has at most as many elements as codecs of the host take.
        """
        if not 0 < math.prod(shape) <= MAX_NUMEL:
            return False
        if spec.algorithm is not None:
            return spec.algorithm.name == "powersgd"
        return codecs.takes(spec.codec)

    def zeros(self, numel: int) -> Any:
        """A new flat array."""
        return self._shared(torch.zeros(numel, dtype=torch.float32, device=self._device))

    def encode(self, tensors: Sequence[EncodeItem]) -> Encoded:
        """Launch one encoder for each codec and kind of error feedback.

        Residuals and momenta are arrays that this device has made.
        """
        with self._beside(tensors) as staged:
            launched = []
            for places, encoder in self._encoders_of(tensors):
                group = [tensors[place] for place in places]
                launches = self._launches_of(encoder, group[0].tensor_id)
                launches.run([to_launch(item, seeded=encoder.seeded) for item in group])
                launched.append((places, encoder, staged.fetch(encoder.memory)))

        def wait() -> tuple[ByteArray, list[int]]:
            staged.wait()
            parts: dict[int, KeptParts | PayloadParts] = {}
            for places, encoder, memory in launched:
                results: Sequence[Kept[Any] | Payload[Any]] = encoder.results(memory.numpy())
                for place, result in zip(places, results, strict=True):
                    parts[place] = _part(tensors[place], result)
            return frames_of_parts([parts[place] for place in range(len(tensors))])

        return wait

    @contextmanager
    def _beside(self, tensors: Sequence[EncodeItem]) -> Iterator[Staged]:
        """Encode on the side stream, when the gradients are computed."""
        with self._after([tensor.grad for tensor in tensors]) as staged:
            # With a residual kernels read 16 bits.
            convert(tensor.grad for tensor in tensors if tensor.residual is None)
            yield staged

    def _after(
        self, grads: Sequence[FloatArray], others: Sequence[torch.Tensor] = ()
    ) -> AbstractContextManager[Staged]:
        """Work on the side stream, when the gradients are computed."""
        arrays = [array_of(grad) for grad in grads]
        computed = filter(None, (array.computed for array in arrays))
        memory = chain.from_iterable(array.memory for array in arrays)
        return self._staging.beside([*memory, *others], computed)

    def _encoders_of(self, tensors: Sequence[EncodeItem]) -> list[tuple[list[int], Encoder]]:
        """An encoder for each codec and kind of error feedback, and the places of its tensors."""
        groups: dict[tuple[object, ...], list[int]] = {}
        for place, tensor in enumerate(tensors):
            groups.setdefault(kind_of(tensor), []).append(place)
        return [
            (places, self._encoder(kind, tuple(tensors[place].grad.size for place in places)))
            for kind, places in groups.items()
        ]

    def _launches_of(self, encoder: Encoder, first: int) -> Launches:
        """The launches of an encoder for the bucket that begins with a tensor, given by its id."""
        key = first, encoder.bucket.sizes
        launches = self._launches.get(key)
        if launches is None or launches.encoder is not encoder:
            if len(self._launches) == KNOWN_BUCKETS:
                self._launches.clear()
            launches = self._launches[key] = Launches(encoder)
        return launches

    def to_peers(self, codec: Codec) -> PeerDevice | None:
        """None: frames travel through the host. See `DirectDevice`."""
        return None

    def factor_device(self) -> FactorDevice | None:
        """None: factors are on the host. See `DirectDevice`."""
        return None

    def decode_add(self, tensors: Sequence[DecodeItem], weight: float) -> None:
        """Add rank after rank, as the core does."""
        groups: dict[tuple[Form, bool], list[DecodeItem]] = {}
        for item in tensors:
            if item.replaces:
                array_of(item.out).discard()
            groups.setdefault((form_of(item.codec.spec), item.replaces), []).append(item)
        for (form, replaces), group in groups.items():
            ranks = range(len(group[0].frames))
            if replaces and (form is KEPT or not ranks):
                foreach_zero_([tensor_of(item.out) for item in group])
            for rank in ranks:
                start = ZERO if replaces and rank == 0 else HELD
                Addition(form, _opened(form, group, rank), weight, start).launch()

    def add(self, codec: Codec, frame: ByteArray, out: FloatArray, weight: float) -> None:
        """See `Device`."""
        form = form_of(codec.spec)
        [part] = _open(form, [(codec, frame, out.size)], [out])
        Addition(form, [part], weight).launch()

    def give(self, tensors: Sequence[GiveItem]) -> None:
        """See `Device`."""
        self._staging.join()
        outs = [tensor_of(item.out) for item in tensors]
        exact = [
            tensor_of(item.grad if item.residual is None else item.residual) for item in tensors
        ]
        fed = [item for item in tensors if item.residual is not None]
        residuals = [tensor_of(item.residual) for item in fed]
        if fed:
            scaled = foreach_mul(
                [tensor_of(item.grad) for item in fed], [item.gamma for item in fed]
            )
            foreach_mul_(residuals, [item.beta for item in fed])
            foreach_add_(residuals, scaled)
        foreach_copy_(outs, exact)
        if fed:
            foreach_zero_(residuals)

    def differ(self, tensors: Sequence[DifferItem]) -> None:
        """See `Device`; on the side stream, before encoding."""
        grads = [item.grad for item in tensors]
        estimates = [tensor_of(item.estimate) for item in tensors]
        differences = [tensor_of(item.difference) for item in tensors]
        with self._after(grads, [*estimates, *differences]):
            convert(grads)
            foreach_copy_(differences, [tensor_of(grad) for grad in grads])
            foreach_sub_(differences, estimates)
        self.poison([item.difference for item in tensors])

    def advance(self, tensors: Sequence[AdvanceItem]) -> None:
        """See `Device`; on the current stream, after encoding and the sum."""
        self._staging.join()
        for item in tensors:
            mean, out = tensor_of(item.mean), tensor_of(item.out)
            torch.add(mean, tensor_of(item.average), out=out)
            finite = torch.isfinite(out)
            mean.copy_(torch.where(finite, out, 0.0))
            if item.estimate is None:
                continue
            estimate = tensor_of(item.estimate)
            following = tensor_of(item.difference) - tensor_of(item.unsent)
            following += estimate
            kept = torch.where(torch.isfinite(following), following, estimate)
            estimate.copy_(torch.where(finite, kept, 0.0))

    def multiply(self, matrices: Sequence[MultiplyItem]) -> Callable[[], None]:
        """See `ProductDevice`; torch multiplies."""
        grads = [work.grad for work in matrices if work.grad is not None]
        sizes = [work.out.size for work in matrices]
        with self._after(grads, [tensor_of(work.m) for work in matrices]) as staged:
            convert(grads)
            factors = self._factors([work.factor for work in matrices])
            products = torch.empty(sum(sizes), dtype=torch.float32, device=self._device)
            parts = torch.split(products, sizes)
            low_rank.take_up(matrices)
            for work, factor, part in zip(matrices, factors, parts, strict=True):
                low_rank.multiply(tensor_of(work.m), factor, work.transposed, part)
            fetched = staged.fetch(products)

        def wait() -> None:
            staged.wait()
            for work, part in zip(matrices, torch.split(fetched, sizes), strict=True):
                work.out[:] = part.numpy()

        return wait

    def apply(self, matrices: Sequence[ApplyItem]) -> None:
        """See `ProductDevice`."""
        low_rank.apply(matrices, self._device)

    def _factors(self, factors: Sequence[FloatArray]) -> Sequence[torch.Tensor]:
        """Factors of the host on this device, by one copy."""
        flat = torch.from_numpy(np.concatenate(factors))
        return torch.split(to_device(flat, self._device), [factor.size for factor in factors])

    def copy(self, pairs: Sequence[tuple[FloatArray, FloatArray]]) -> None:
        """See `Device`; on the side stream, on which encoding changes the arrays."""
        sources, copies = ([tensor_of(pair[side]) for pair in pairs] for side in (0, 1))
        with self._staging.beside([*sources, *copies]):
            foreach_copy_(copies, sources)

    def scale(self, arrays: Sequence[FloatArray], factor: float) -> None:
        """See `Device`."""
        tensors = [tensor_of(array) for array in arrays]
        with self._staging.beside(tensors):
            foreach_mul_(tensors, factor)

    def poison(self, grads: Sequence[FloatArray]) -> Sequence[FloatArray]:
        """See `Device`; gradients themselves change."""
        sizes = tuple(grad.size for grad in grads)
        poison = self._poisons.get(sizes)
        if poison is None:
            poison = self._poisons[sizes] = Poison(sizes, self._device)
        with self._after(grads):
            convert(grads)
            poison.launch([tensor_of(grad) for grad in grads])
        return grads

    def to_host(self, array: FloatArray) -> FloatArray:
        """A copy on the host, of the values after all that was launched."""
        self._staging.join()
        host: FloatArray = tensor_of(array).cpu().numpy().copy()
        return host

    def from_host(self, array: FloatArray) -> Any:
        """A copy on this device."""
        return self._shared(torch.from_numpy(array.copy()).to(self._device))

    def _shared(self, tensor: torch.Tensor) -> Any:
        """An array that encoding may use for as long as it lives."""
        self._staging.share(tensor)
        return TensorArray(self, tensor)

    def _encoder(self, kind: tuple[object, ...], sizes: tuple[int, ...]) -> Encoder:
        """The encoder of tensors with these sizes, which keeps its memory from step to step."""
        key = (kind, sizes)
        encoder = self._encoders.get(key)
        if encoder is None:
            spec, *_ = kind
            encoder = self._encoders[key] = codecs.encoder(str(spec), sizes, self._device)
        return encoder


def kind_of(tensor: EncodeItem) -> tuple[object, ...]:
    """Codec and kind of error feedback: tensors of one kind are launched together."""
    correction = tensor.correction
    mode = None if correction is None else (correction.nesterov, correction.masking)
    return tensor.codec.spec, tensor.residual is None, mode, array_of(tensor.grad).given.dtype


def to_launch(tensor: EncodeItem, *, seeded: bool) -> LaunchItem:
    """A tensor as encoders take it; its gradient and memories are arrays that a device of torch has made.

    Args:
        seeded: whether the codec draws random numbers; else the stream is 0.
    """
    momentum = None
    if tensor.correction is not None:
        values, factor, scale, nesterov, masking = tensor.correction
        momentum = Momentum(tensor_of(values), factor, scale, nesterov, masking)
    residual = None if tensor.residual is None else tensor_of(tensor.residual)
    stream = _stream(tensor) if seeded else 0
    return LaunchItem(
        array_of(tensor.grad).given, residual, tensor.beta, tensor.gamma, momentum, stream
    )


def _stream(tensor: EncodeItem) -> int:
    return derive_stream(tensor.seed, tensor.step, tensor.tensor_id)


def _part(tensor: EncodeItem, result: Kept[Any] | Payload[Any]) -> KeptParts | PayloadParts:
    """The core's part of a result on the host."""
    numel, stream = tensor.grad.size, _stream(tensor)
    if isinstance(result, Payload):
        return PayloadParts(tensor.codec, result.data, numel, stream)
    indices = result.indices.view(np.uint32)
    return KeptParts(tensor.codec, indices, result.values, numel, stream)


def _opened(form: Form, tensors: Sequence[DecodeItem], rank: int) -> list[AddItem]:
    """Parts of the frames of one rank."""
    frames = [(item.codec, item.frames[rank], item.out.size) for item in tensors]
    try:
        return _open(form, frames, [item.out for item in tensors])
    except WireError:
        for item, frame in zip(tensors, frames, strict=True):  # find the frame
            with _named(item, rank):
                _open(form, [frame], [item.out])
        raise


def _open(
    form: Form, frames: Sequence[tuple[Codec, ByteArray, int]], outs: Sequence[FloatArray]
) -> list[AddItem]:
    """Parts of frames, which are added to ``outs``."""
    if form is KEPT:
        kept = kept_of_frames(frames)
        return [
            AddItem(tensor_of(out), values, indices.view(np.int32))
            for out, (indices, values) in zip(outs, kept, strict=True)
        ]
    return [
        AddItem(tensor_of(out), payload.data, stream=payload.stream)
        for out, payload in zip(outs, payloads_of_frames(frames), strict=True)
    ]


@contextmanager
def _named(tensor: DecodeItem, place: int) -> Iterator[None]:
    """Name the rank and the tensor of a frame that the core refuses, as the core does for batches."""
    try:
        yield
    except WireError as error:
        sender = place if tensor.senders is None else tensor.senders[place]
        raise WireError(f"the frame of rank {sender} for '{tensor.name}': {error}") from error
