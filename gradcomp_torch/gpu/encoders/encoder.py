"""An encoder makes the results of one codec for tensors of fixed sizes, and `Launches` run it for a bucket."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch

from gradcomp_torch.gpu.bucket import (
    Array,
    Bucket,
    Kept,
    LaunchItem,
    Mode,
    Payload,
    Table,
    current,
)
from gradcomp_torch.gpu.encoders import tiling
from gradcomp_torch.gpu.encoders.params import Params
from gradcomp_torch.gpu.graphs import Replayed

__all__ = ["Encoder", "Launches", "PeerResult"]


class PeerResult(NamedTuple):
    """A tensor's result as other devices get it.

    Attributes:
        values: uint8: a payload, filled up to a multiple of 16 bytes; or kept values of 2 or 4 bytes.
        indices: of kept elements, packed or as int32, as uint8; None with a payload.
        elements: number of kept elements; with a payload that of all elements.
        present: uint8 of an int32, how many of the kept elements there are; None: all.
    """

    values: torch.Tensor
    indices: torch.Tensor | None
    elements: int
    present: torch.Tensor | None = None


class Encoder(ABC):
    """One codec for tensors of fixed sizes on one device.

    Attributes:
        memory: flat uint8 on the device, with the results of all tensors.
        seeded: whether the codec draws random numbers.
    """

    memory: torch.Tensor
    seeded = True

    def __init__(self, params: Params, sizes: Sequence[int], device: torch.device) -> None:
        self.bucket = Bucket(sizes, device, self.tile(params))

    def tile(self, params: Params) -> int:
        """Elements of a program."""
        return tiling.TILE

    def start(self, table: Table, mode: Mode) -> None:
        """Launch what corrects, encodes and subtracts the tensors of a table; allocates nothing."""
        if self.bucket.tiles.programs:
            self._launch(table.memory, mode)

    @abstractmethod
    def _launch(self, table: torch.Tensor, mode: Mode) -> None: ...

    @abstractmethod
    def results(self, memory: Array) -> list[Kept[Array]] | list[Payload[Array]]:
        """The tensors' results in the encoder's memory, or in a copy of it on the host."""

    @abstractmethod
    def peer_results(self, table: Table, *, packs: bool) -> list[PeerResult]:
        """The tensors' results as other devices get them; launches, and allocates the first time only.

        All sizes follow from the sizes of the tensors. Results hold as long as those of the launch.

        Args:
            table: of the last launch.
            packs: indices are packed; see kernels/packed.py.
        """


class Launches:
    """The launches of an encoder for a bucket: their table, and a graph that replays them."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self._table = Table(encoder.bucket)
        self._replayed = Replayed(encoder.bucket.device)

    def run(self, tensors: Sequence[LaunchItem]) -> None:
        """Correct, encode and subtract, without waiting: results and residuals are the core's.

        Args:
            tensors: of the encoder's sizes, all with the same kind of error feedback.

        Raises:
            ValueError: a tensor has another size, dtype or device, or is not contiguous.
        """
        encoder = self.encoder
        with current(encoder.bucket.device):
            mode = self._table.fill(tensors, seeded=encoder.seeded)
            self._replayed.run(mode, lambda: encoder.start(self._table, mode))
