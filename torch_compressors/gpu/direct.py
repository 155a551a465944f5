"""A device whose results travel to other ranks' devices as they are: no frame is made on the host.

A message of a bucket has a fixed size, which follows from its codecs and the sizes of its tensors:

=============  =======================================================================================
16 bytes       digest of codecs and sizes
for each       payloads, as in frames, each at a multiple of 16 bytes; or the indices of all kept elements
codec          as int32, then their values, as fp32, fp16 or bf16
=============  =======================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import torch

from gradcomp import ToEncode
from gradcomp.adapter_api import ByteArray, ToAddShared, device_of
from gradcomp.errors import ProtocolError
from torch_compressors.devices import tensor_of
from torch_compressors.gpu import codecs
from torch_compressors.gpu.add import Form, SharedAddition, SharedTensor, form_of_shared
from torch_compressors.gpu.bucket import upload
from torch_compressors.gpu.codecs import Place
from torch_compressors.gpu.device import TorchDevice
from torch_compressors.shared.direct import DeviceMessage
from torch_compressors.shared.staging import Staged

__all__ = ["DirectDevice"]

HEADER = 16
"""Bytes."""


@dataclass(frozen=True)
class _Message(DeviceMessage):
    """This rank's message of a bucket.

    Attributes:
        bucket: its name.
        header: of the message, on the device.
        places: of the tensors' results in a message.
    """

    bucket: str
    header: torch.Tensor
    places: list[Place]


class _Received(NamedTuple):
    """What a device found in the messages of a bucket, on its way to the host.

    Attributes:
        damaged: for each rank, whether its message was none of the bucket's.
        arrival: of ``damaged``.
    """

    damaged: torch.Tensor
    arrival: Staged


class DirectDevice(TorchDevice):
    """As `TorchDevice`, for one job in which all ranks have one and an engine between them.

    Messages are checked on the device; a damaged one is an error of the bucket's next step, for which nobody
    waits. Until then its elements, of which none is outside of its tensor, are in the averages of all ranks.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._received: dict[str, _Received] = {}
        self._headers: dict[tuple[tuple[str, int], ...], torch.Tensor] = {}
        self._additions: dict[tuple[str, Form], SharedAddition] = {}

    def shares(self, tensors: Sequence[ToEncode]) -> bool:
        """Whether all tensors are here, and other devices can add up what their encoders make."""
        return all(
            device_of(tensor.grad) is self and codecs.shares(tensor.codec.spec)
            for tensor in tensors
        )

    def share(self, name: str, tensors: Sequence[ToEncode]) -> Any:
        """See `Device`."""
        self._check(name)
        kinds = tuple((tensor.codec.spec, tensor.grad.size) for tensor in tensors)
        places: list[Any] = [None] * len(tensors)
        with self._beside(tensors):
            header = self._header(kinds)
            parts = [header]
            begin = HEADER
            for own, encoder in self._launched(tensors):
                for number, place in zip(own, encoder.places(), strict=True):
                    values, indices, elements = place
                    places[number] = Place(begin + values, begin + indices, elements)
                results = encoder.shared()
                begin += sum(one.numel() for one in results)
                parts += results
            message = torch.cat(parts)
        return _Message(message, self._staging, name, header, places)

    def add_shared(
        self,
        own: Any,
        tensors: Sequence[ToAddShared],
        messages: Sequence[ByteArray],
        weight: float,
    ) -> None:
        """See `Device`."""
        assert isinstance(own, _Message)  # from `share`
        received = [_data(message) for message in messages]
        damaged = torch.zeros((len(received), 4), dtype=torch.int32, device=self._device)
        headers = torch.stack([message[:HEADER] for message in received])
        damaged[:, 0] = (headers != own.header).any(dim=1)
        groups: dict[Form, list[SharedTensor]] = {}
        for (codec, out, streams), place in zip(tensors, own.places, strict=True):
            shared = SharedTensor(tensor_of(out), place, streams)
            groups.setdefault(form_of_shared(codec.spec), []).append(shared)
        for form, members in groups.items():
            addition = self._additions.setdefault((own.bucket, form), SharedAddition(form))
            addition.launch(members, received, weight, damaged)
        with self._staging.beside([damaged]) as staged:
            self._received[own.bucket] = _Received(staged.fetch(damaged), staged)

    def _header(self, kinds: tuple[tuple[str, int], ...]) -> torch.Tensor:
        """The header of messages with tensors of these codecs and sizes."""
        header = self._headers.get(kinds)
        if header is None:
            digest = blake2b(repr(kinds).encode(), digest_size=HEADER).digest()
            header = upload(np.frombuffer(digest, np.uint8), self._device)
            self._headers[kinds] = header
        return header

    def _check(self, name: str) -> None:
        """Read what was found in the bucket's last messages.

        Raises:
            ProtocolError: a message was damaged.
        """
        last = self._received.pop(name, None)
        if last is None:
            return
        last.arrival.wait()
        ranks = [str(rank) for rank, wrong in enumerate(last.damaged[:, 0].tolist()) if wrong]
        if ranks:
            raise ProtocolError(
                f"a damaged message of rank {', '.join(ranks)} is in the averages of the last step of "
                f"'{name}': it is none of the bucket's, or has indices outside of its tensors. Start from a "
                "checkpoint before that step, and see whether all ranks run the same script and versions; "
                "with compress.device: auto, messages are checked before they are used"
            )


def _data(message: object) -> torch.Tensor:
    assert isinstance(message, DeviceMessage)  # other devices' messages are not given to this one
    return message.data
