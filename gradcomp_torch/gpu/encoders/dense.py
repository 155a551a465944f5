"""Codecs that send all elements, and `identity`, `fp16` and `bf16` among them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import torch

from gradcomp_torch.gpu.bucket import EXACT, VECTOR_BYTES, Array, Mode, Payload, Table
from gradcomp_torch.gpu.encoders import tiling
from gradcomp_torch.gpu.encoders.encoder import Encoder, PeerResult
from gradcomp_torch.gpu.encoders.params import FLOAT_TYPES, Params
from gradcomp_torch.gpu.kernels import quantize
from gradcomp_torch.gpu.kernels import table as field

__all__ = ["Dense", "Floats"]


class Dense(Encoder):
    """A codec that sends all elements; the payloads lie in one array, at multiples of 16 bytes."""

    def __init__(self, params: Params, sizes: Sequence[int], device: torch.device) -> None:
        super().__init__(params, sizes, device)
        self.bytes = [self.payload_bytes(n) for n in sizes]
        rooms = [-(-size // VECTOR_BYTES) * VECTOR_BYTES for size in self.bytes]
        self.memory = torch.zeros(sum(rooms), dtype=torch.uint8, device=device)
        self.begins = (np.cumsum(rooms) - rooms).tolist()
        self.bucket.rows[:, field.OUT.value] = self.memory.data_ptr() + np.array(self.begins)

    def results(self, memory: Array) -> list[Payload[Array]]:
        """See `Encoder`."""
        return [
            Payload(memory[begin : begin + size])
            for begin, size in zip(self.begins, self.bytes, strict=True)
        ]

    def peer_results(self, table: Table, *, packs: bool) -> list[PeerResult]:
        """See `Encoder`."""
        ends = [*self.begins[1:], self.memory.numel()]
        return [
            PeerResult(self.memory[begin:end], None, numel)
            for begin, end, numel in zip(self.begins, ends, self.bucket.sizes, strict=True)
        ]

    @abstractmethod
    def payload_bytes(self, numel: int) -> int:
        """Bytes of the payload of a tensor of ``numel`` elements."""


class Floats(Dense):
    """`identity`, `fp16` and `bf16`: one kernel. 14 bytes per element with error feedback, 16 of `identity`.

    Args:
        type_: one of `FLOAT_TYPES`.
    """

    seeded = False

    def __init__(
        self, type_: int, params: Params, sizes: Sequence[int], device: torch.device
    ) -> None:
        self.type = type_
        self.saturate = params.get("overflow") == "saturate"
        super().__init__(params, sizes, device)

    def payload_bytes(self, numel: int) -> int:
        """See `Dense`."""
        return (4 if self.type == FLOAT_TYPES["identity"] else 2) * numel

    def _launch(self, table: torch.Tensor, mode: Mode) -> None:
        quantize.floats_kernel[(self.bucket.tiles.programs,)](
            table,
            self.bucket.tiles.tensors,
            TYPE=self.type,
            SATURATE=self.saturate,
            MODE=mode.mode,
            GRAD_TYPE=mode.grad_type,
            ALIGNED=mode.aligned,
            TILE=tiling.TILE,
            **EXACT,
        )
