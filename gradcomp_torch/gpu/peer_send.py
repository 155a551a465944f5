"""Messages from device to device: their layout, and the launches that make them.

A message of some tensors has a fixed size, which follows from their codecs and sizes:

================  =====================================================================================
16 bytes          digest of codecs and sizes
for each tensor   the payload as in frames, filled up to a multiple of 16 bytes
for each tensor   of `sampled_topk`: the number of kept elements, as int32
for each tensor   the indices of kept elements: packed (kernels/packed.py), or int32 with ``|raw32``
for each tensor   their values: first those of 4 bytes, then those of 2; filled up to a multiple of 16
================  =====================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import torch

from gradcomp_torch.gpu.bucket import VECTOR_BYTES, LaunchItem, Mode, Table, current, upload
from gradcomp_torch.gpu.codecs import packs_indices
from gradcomp_torch.gpu.encoders.encoder import Encoder, PeerResult
from gradcomp_torch.gpu.graphs import Replayed
from gradcomp_torch.gpu.peer_sums import Place

__all__ = ["HEADER", "Kinds", "Layout", "Part", "Sender", "header_of"]

HEADER = 16
"""Bytes."""

Kinds = tuple[tuple[str, int], ...]
"""Codec and size of each tensor."""


class Part(NamedTuple):
    """Tensors of one encoder.

    Attributes:
        spec: of their codec.
        places: their numbers among the tensors of all messages.
    """

    spec: str
    places: list[int]
    encoder: Encoder


class Layout(NamedTuple):
    """A message.

    Attributes:
        header: of it, on the device.
        places: of the tensors' results.
        size: in bytes.
    """

    header: torch.Tensor
    places: list[Place]
    size: int


class Sender:
    """Messages for some groups of tensors, one after the other: in one place of memory in all steps.

    Args:
        groups: the tensors of each message.
        size: least size of all messages in bytes; what is missing is 0.

    Attributes:
        data: the messages, flat uint8; empty before the first launch.
        layouts: of each message; likewise.
        seeded: of each tensor, whether its codec draws random numbers.
    """

    def __init__(
        self, groups: Sequence[Kinds], parts: Sequence[Part], size: int, device: torch.device
    ) -> None:
        self._device = device
        self._headers = [header_of(kinds, device) for kinds in groups]
        self._counts = [len(kinds) for kinds in groups]
        self._parts = [(part, Table(part.encoder.bucket)) for part in parts]
        self.seeded = [False] * sum(self._counts)
        for _, places, encoder in parts:
            for place in places:
                self.seeded[place] = encoder.seeded
        self._filling = torch.zeros(VECTOR_BYTES, dtype=torch.uint8, device=device)
        self._least = size
        self._replayed = Replayed(device)
        self._modes: Sequence[Mode] = ()
        self.data = self._filling[:0]
        self.layouts: list[Layout] = []

    def launch(self, tensors: Sequence[LaunchItem]) -> None:
        """Encode all tensors into the messages, on the current stream; the host waits for nothing."""
        with current(self._device):
            modes = tuple(
                table.fill([tensors[place] for place in places], seeded=encoder.seeded)
                for (_, places, encoder), table in self._parts
            )
            self._modes = modes
            self._replayed.run(modes, lambda: self._launch(modes))

    def launch_again(self) -> None:
        """As the last `launch`, of tensors in the same memory with the same weights."""
        with current(self._device):
            self._replayed.run(self._modes, lambda: self._launch(self._modes))

    def _launch(self, modes: Sequence[Mode]) -> None:
        results: dict[int, PeerResult] = {}
        for ((spec, places, encoder), table), mode in zip(self._parts, modes, strict=True):
            encoder.start(table, mode)
            new = encoder.peer_results(table, packs=packs_indices(spec))
            results.update(zip(places, new, strict=True))
        pieces: list[torch.Tensor] = []
        layouts = []
        first = 0
        for header, count in zip(self._headers, self._counts, strict=True):
            message_results = [results[number] for number in range(first, first + count)]
            layouts.append(self._lay_out(header, message_results, pieces))
            first += count
        total = sum(layout.size for layout in layouts)
        if not self.layouts:
            size = max(total, self._least)
            self.data = torch.zeros(size, dtype=torch.uint8, device=self._device)
            self.layouts = layouts
        torch.cat(pieces, out=self.data[:total])

    def _lay_out(
        self, header: torch.Tensor, results: Sequence[PeerResult], pieces: list[torch.Tensor]
    ) -> Layout:
        """Add the pieces of a message."""
        begins: dict[tuple[int, str], int] = {}
        size = HEADER
        pieces.append(header)

        def put(number: int, piece: torch.Tensor, what: str) -> None:
            nonlocal size
            begins[number, what] = size
            size += piece.numel()
            pieces.append(piece)

        kept = [number for number, result in enumerate(results) if result.indices is not None]
        for number, result in enumerate(results):
            if result.indices is None:
                put(number, result.values, "values")
        for number in kept:
            if (present := results[number].present) is not None:
                put(number, present, "present")
        for number in kept:
            indices = results[number].indices
            assert indices is not None
            put(number, indices, "indices")
        for each in (4, 2):
            for number in kept:
                values, elements = results[number].values, results[number].elements
                if values.numel() == each * elements:
                    put(number, values, "values")
        if size % VECTOR_BYTES:
            missing = VECTOR_BYTES - size % VECTOR_BYTES
            pieces.append(self._filling[:missing])
            size += missing
        places = [
            Place(
                begins[number, "values"],
                begins.get((number, "indices"), 0),
                result.elements,
                begins.get((number, "present"), 0),
            )
            for number, result in enumerate(results)
        ]
        return Layout(header, places, size)


def header_of(kinds: Kinds, device: torch.device) -> torch.Tensor:
    """The header of messages with tensors of these codecs and sizes."""
    digest = blake2b(repr(kinds).encode(), digest_size=HEADER).digest()
    return upload(np.frombuffer(digest, np.uint8), device)
