"""A device whose results travel to other ranks' devices as they are: no frame is made on the host.

A message of some tensors has a fixed size, which follows from their codecs and sizes:

================  =====================================================================================
16 bytes          digest of codecs and sizes
for each tensor   the payload as in frames, filled up to a multiple of 16 bytes
for each tensor   the indices of kept elements: packed (kernels/packed.py), or int32 with ``|raw32``
for each tensor   their values: first those of 4 bytes, then those of 2; filled up to a multiple of 16
================  =====================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch

from gradcomp import ToEncode
from gradcomp.adapter_api import ByteArray, FloatArray, SharingDevice, ToAddShared
from gradcomp.errors import ProtocolError
from torch_compressors.devices import tensor_of
from torch_compressors.gpu import codecs
from torch_compressors.gpu.add import (
    Form,
    Place,
    SharedAddition,
    SharedTensor,
    form_of_shared,
)
from torch_compressors.gpu.bucket import VECTOR_BYTES, upload
from torch_compressors.gpu.device import TorchDevice
from torch_compressors.shared.direct import DeviceMessage
from torch_compressors.shared.staging import Staged

__all__ = ["HEADER", "DirectDevice"]

HEADER = 16
"""Bytes."""

Kinds = tuple[tuple[str, int], ...]
"""Codecs and sizes of tensors."""


class _Layout(NamedTuple):
    """A message.

    Attributes:
        header: of it, on the device.
        places: of the tensors' results.
        size: in bytes.
    """

    header: torch.Tensor
    places: list[Place]
    size: int


@dataclass(frozen=True)
class _Messages(DeviceMessage):
    """This rank's messages, one after the other."""

    name: str
    layouts: list[_Layout]

    @property
    def splits(self) -> list[int]:
        """Size of each message in bytes."""
        return [layout.size for layout in self.layouts]

    @property
    def numbers(self) -> DeviceMessage:
        """The payloads of a message of float16."""
        return DeviceMessage(self.data[HEADER:].view(torch.float16), self.staging)


class _Checked(NamedTuple):
    """What a device found in messages, on its way to the host.

    Attributes:
        damaged: for each rank, whether its message was another one than it should be.
        arrival: of ``damaged``.
    """

    damaged: torch.Tensor
    arrival: Staged


class DirectDevice(TorchDevice):
    """As `TorchDevice`, for one job in which all ranks have one and an engine between them.

    Messages are checked on the device; a damaged one is an error of the next step, as nobody waits for the
    check. Until then its elements, of which none is outside of its tensor, are in the averages.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._checked: dict[str, list[_Checked]] = {}
        self._headers: dict[Kinds, torch.Tensor] = {}
        self._additions: dict[tuple[str, int, bool, Form], SharedAddition] = {}
        self._filling = torch.zeros(VECTOR_BYTES, dtype=torch.uint8, device=device)

    def sharing(self, codec: str) -> SharingDevice | None:
        """This device, if others can add what the codec's encoder makes."""
        return self if codecs.takes(codec) and codecs.shares(codec) else None

    def share(self, name: str, groups: Sequence[Sequence[ToEncode]], size: int = 0) -> Any:
        """See `SharingDevice`."""
        self._raise_found(name)
        tensors = list(chain.from_iterable(groups))
        shared: dict[int, codecs.Shared] = {}
        parts: list[torch.Tensor] = []
        layouts = []
        with self._beside(tensors):
            for places, encoder in self._launched(tensors):
                packs = codecs.packs_indices(tensors[places[0]].codec.spec)
                shared.update(zip(places, encoder.shared(packs=packs), strict=True))
            first = 0
            for group in groups:
                own = [shared[place] for place in range(first, first + len(group))]
                kinds = tuple((tensor.codec.spec, tensor.grad.size) for tensor in group)
                layouts.append(self._lay_out(self._header(kinds), own, parts))
                first += len(group)
            missing = size - sum(layout.size for layout in layouts)
            if missing > 0:
                parts.append(parts[0].new_zeros(missing))
            data = torch.cat(parts)
        return _Messages(data, self._staging, name, layouts)

    def add_shared(
        self,
        own: Any,
        group: int,
        tensors: Sequence[ToAddShared],
        messages: Sequence[ByteArray],
        weight: float,
    ) -> None:
        """See `SharingDevice`."""
        received = [_data(message) for message in messages]
        damaged = self._compared(received, [own.layouts[group]] * len(received))
        places = own.layouts[group].places
        self._add(own.name, group, places, tensors, received, weight, damaged)
        self._fetch(own.name, damaged)

    def decode_shared(
        self, own: Any, groups: Sequence[Sequence[ToAddShared]], messages: Sequence[ByteArray]
    ) -> None:
        """See `SharingDevice`."""
        received = [_data(message) for message in messages]
        damaged = self._compared(received, own.layouts)
        for group, tensors in enumerate(groups):
            places, flag = own.layouts[group].places, damaged[group : group + 1]
            self._decode(own.name, group, places, tensors, received[group], flag)
        self._fetch(own.name, damaged)

    def decode_numbers(self, own: Any, tensors: Sequence[ToAddShared], numbers: object) -> None:
        """See `SharingDevice`."""
        (layout,) = own.layouts
        places = [place._replace(values=place.values - HEADER) for place in layout.places]
        message = _data(numbers).view(torch.uint8)
        unused = torch.zeros((1, 4), dtype=torch.int32, device=self._device)
        self._decode(own.name, 0, places, tensors, message, unused)

    def add_lost(self, residual: FloatArray, lost: FloatArray, times: float) -> None:
        """See `SharingDevice`."""
        self._staging.join()
        whole = tensor_of(residual)
        whole.add_(tensor_of(lost).mul_(times))  # two roundings
        whole.copy_(torch.where(whole.isfinite(), whole, 0.0))

    def _lay_out(
        self, header: torch.Tensor, shared: Sequence[codecs.Shared], parts: list[torch.Tensor]
    ) -> _Layout:
        """Add the parts of a message."""
        begins: dict[tuple[int, bool], int] = {}
        size = HEADER
        parts.append(header)

        def put(number: int, part: torch.Tensor, *, indices: bool) -> None:
            nonlocal size
            begins[number, indices] = size
            size += part.numel()
            parts.append(part)

        kept = [number for number, one in enumerate(shared) if one.indices is not None]
        for number, one in enumerate(shared):
            if one.indices is None:
                put(number, one.values, indices=False)
        for number in kept:
            indices = shared[number].indices
            assert indices is not None
            put(number, indices, indices=True)
        for each in (4, 2):
            for number in kept:
                values, _, elements = shared[number]
                if values.numel() == each * elements:
                    put(number, values, indices=False)
        if size % VECTOR_BYTES:
            missing = VECTOR_BYTES - size % VECTOR_BYTES
            parts.append(self._filling[:missing])
            size += missing
        places = [
            Place(begins[number, False], begins.get((number, True), 0), one.elements)
            for number, one in enumerate(shared)
        ]
        return _Layout(header, places, size)

    def _header(self, kinds: Kinds) -> torch.Tensor:
        """The header of messages with tensors of these codecs and sizes."""
        header = self._headers.get(kinds)
        if header is None:
            digest = blake2b(repr(kinds).encode(), digest_size=HEADER).digest()
            header = upload(np.frombuffer(digest, np.uint8), self._device)
            self._headers[kinds] = header
        return header

    def _decode(
        self,
        name: str,
        group: int,
        places: Sequence[Place],
        tensors: Sequence[ToAddShared],
        message: torch.Tensor,
        damaged: torch.Tensor,
    ) -> None:
        for codec, out, _ in tensors:
            if not form_of_shared(codec.spec).sparse:
                # Then the sum is the decoded number, also where that is -0.
                tensor_of(out).fill_(-0.0)
        self._add(name, group, places, tensors, [message], None, damaged)

    def _add(
        self,
        name: str,
        group: int,
        places: Sequence[Place],
        tensors: Sequence[ToAddShared],
        messages: Sequence[torch.Tensor],
        weight: float | None,
        damaged: torch.Tensor,
    ) -> None:
        """Add messages; without a weight, kept elements are assigned."""
        forms: dict[Form, list[SharedTensor]] = {}
        for (codec, out, streams), place in zip(tensors, places, strict=True):
            form = form_of_shared(codec.spec, assigns=weight is None)
            forms.setdefault(form, []).append(SharedTensor(tensor_of(out), place, streams))
        for form, own in forms.items():
            key = name, group, weight is None, form
            addition = self._additions.setdefault(key, SharedAddition(form))
            addition.launch(own, messages, 1.0 if weight is None else weight, damaged)

    def _compared(
        self, messages: Sequence[torch.Tensor], layouts: Sequence[_Layout]
    ) -> torch.Tensor:
        """For each message, whether its header is another one than that of its layout: int32 [ranks, 4]."""
        damaged = torch.zeros((len(messages), 4), dtype=torch.int32, device=self._device)
        found = torch.stack([message[:HEADER] for message in messages])
        expected = torch.stack([layout.header for layout in layouts])
        damaged[:, 0] = (found != expected).any(dim=1)
        return damaged

    def _fetch(self, name: str, damaged: torch.Tensor) -> None:
        with self._staging.beside([damaged]) as staged:
            checked = _Checked(staged.fetch(damaged), staged)
        self._checked.setdefault(name, []).append(checked)

    def _raise_found(self, name: str) -> None:
        """Read what was found in the messages of this name in the last step.

        Raises:
            ProtocolError: a message was damaged.
        """
        wrong: set[int] = set()
        for damaged, arrival in self._checked.pop(name, ()):
            arrival.wait()
            wrong.update(rank for rank, flag in enumerate(damaged[:, 0].tolist()) if flag)
        if wrong:
            ranks = ", ".join(map(str, sorted(wrong)))
            raise ProtocolError(
                f"a damaged message of rank {ranks} is in the averages of the last step, in the exchange "
                f"'{name}': it is none of these tensors, or has indices outside of them. Start from a "
                "checkpoint before that step, and see whether all ranks run the same script and versions; "
                "with compress.device: auto, messages are checked before they are used"
            )


def _data(message: object) -> torch.Tensor:
    assert isinstance(message, DeviceMessage)  # other devices' messages are not given to this one
    return message.data
