"""Sums of messages from devices, and their checks: in a CUDA graph where a step has the memory of the last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from gradcomp_torch.gpu.add import Form
from gradcomp_torch.gpu.bucket import EXACT, current, upload
from gradcomp_torch.gpu.graphs import Replayed
from gradcomp_torch.gpu.kernels.add import compare_headers_kernel
from gradcomp_torch.gpu.peer_sums import KeptForm, PeerSums, PeerTensor, sums_of
from gradcomp_torch.staging import computed_by_now, room

__all__ = ["Receiver", "SumItem"]

FLAGS = 4
"""Numbers of a message; the first one says whether it is damaged: 16 bytes."""


class SumItem(NamedTuple):
    """Tensors that become the sum of their results in some messages.

    Attributes:
        forms: the tensors, by the form of their codecs.
        messages: numbers of the first message and of the one after the last.
        weight: of each message; None where the one message is decoded.
        begun: results are added to what the tensors hold; the same in each step.
    """

    forms: dict[Form | KeptForm, list[PeerTensor]]
    messages: tuple[int, int]
    weight: float | None
    begun: bool = False


class Receiver:
    """Sums of the same tensors in each step.

    Args:
        count: of messages.

    Attributes:
        given: what the caller has summed up last, to compare.
    """

    def __init__(self, count: int, device: torch.device) -> None:
        self._device = device
        self._damaged = torch.zeros((count, FLAGS), dtype=torch.int32, device=device)
        self._found = room(count * FLAGS, torch.int32, device).view(count, FLAGS)
        self._flags = self._found.numpy()[:, 0]
        self._pointers = torch.zeros((count, 2), dtype=torch.int64, device=device)
        self._compared: list[tuple[int, int]] = []
        self._additions: dict[tuple[int, Form | KeptForm], PeerSums] = {}
        self._replayed = Replayed(device)
        self._headers = 0
        self._prepared: list[tuple[PeerSums, torch.Tensor]] = []
        self._done: torch.Event | None = None
        self.given: object = None

    def launch(
        self,
        sums: Sequence[SumItem],
        messages: Sequence[torch.Tensor],
        headers: Sequence[torch.Tensor],
    ) -> None:
        """Check messages and sum them up, rank after rank, on the current stream.

        Args:
            messages: flat uint8; those without a header are not checked.
            headers: of the messages that have one.
        """
        with current(self._device):
            self._compare(messages, headers)
            self._headers = len(headers)
            self._prepared = [
                self._prepare(number, form, tensors, messages, item)
                for number, item in enumerate(sums)
                for form, tensors in item.forms.items()
            ]
        self.launch_again()

    def launch_again(self) -> None:
        """As the last `launch`, of tensors and messages in the same memory."""
        key = (self._headers, *(addition.version for addition, _ in self._prepared))
        with current(self._device):
            self._replayed.run(key, self._launch)
            self._done = computed_by_now(self._device)

    @property
    def checks(self) -> bool:
        """Whether the last messages had headers."""
        return self._headers > 0

    def damaged(self) -> list[int]:
        """Wait for the last launch; the numbers of messages that were damaged."""
        if self._done is not None:
            self._done.synchronize()
        return [number for number, flag in enumerate(self._flags.tolist()) if flag]

    def _compare(self, messages: Sequence[torch.Tensor], headers: Sequence[torch.Tensor]) -> None:
        """Tell the kernel where messages and the headers are that they should have."""
        pointers = [
            (message.data_ptr(), header.data_ptr())
            for message, header in zip(messages, headers, strict=False)
        ]
        if pointers and pointers != self._compared:
            self._pointers.copy_(upload(np.array(pointers, np.int64), self._device))
            self._compared = pointers

    def _prepare(
        self,
        number: int,
        form: Form | KeptForm,
        tensors: Sequence[PeerTensor],
        messages: Sequence[torch.Tensor],
        item: SumItem,
    ) -> tuple[PeerSums, torch.Tensor]:
        """An addition, and the flags of its messages."""
        first, end = item.messages
        addition = self._additions.get((number, form))
        if addition is None:
            addition = sums_of(form, begun=item.begun, decodes=item.weight is None)
            self._additions[number, form] = addition
        addition.prepare(tensors, messages[first:end], 1.0 if item.weight is None else item.weight)
        return addition, self._damaged[first:end]

    def _launch(self) -> None:
        if self._headers:
            compare_headers_kernel[(self._headers,)](self._pointers, self._damaged, **EXACT)
        for addition, damaged in self._prepared:
            addition.launch(damaged)
        if self._headers:
            self._found.copy_(self._damaged, non_blocking=True)
