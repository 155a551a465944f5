"""Messages for the owners of shares, and averages of all shares: the launches of kernels/shares.py.

A message has the layout of peer_send.py, with a share as its only tensor: the number of elements, their packed
positions in the share, and their values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from gradcomp.device_api import SHARE_BLOCK, Shares
from gradcomp_torch.devices import tensor_of
from gradcomp_torch.gpu.bucket import EXACT, VECTOR_BYTES, LaunchItem, Mode, Rows, current, divide
from gradcomp_torch.gpu.encoders import tiling
from gradcomp_torch.gpu.encoders.params import VALUE_TYPES
from gradcomp_torch.gpu.encoders.topk import TopK
from gradcomp_torch.gpu.kernels import packed, select
from gradcomp_torch.gpu.kernels import shares as kernels
from gradcomp_torch.gpu.kernels import table as field
from gradcomp_torch.gpu.packed import packed_size
from gradcomp_torch.gpu.peer_send import HEADER, Kinds, Layout, Part, Sender, header_of
from gradcomp_torch.gpu.peer_sums import KeptForm, Place

__all__ = ["ShareSender"]

_NUMBER = 4
"""Bytes of a message's number of elements."""


class ShareSender(Sender):
    """Messages of a bucket's kept elements, one for the owner of each share.

    Args:
        kinds: of the bucket's tensors.
        parts: their encoders, those of `topk` or `sampled_topk`, with one type of values.
        rank: this rank.
        total, lost: memory for the average of its share, and what is not sent of it.
        averages: memory for the averages of all shares until they are collected, which senders may share.

    Attributes:
        form: of messages.
    """

    def __init__(
        self,
        kinds: Kinds,
        parts: Sequence[Part],
        shares: Shares,
        rank: int,
        total: Any,
        lost: Any,
        averages: torch.Tensor,
        device: torch.device,
    ) -> None:
        super().__init__([kinds], parts, 0, device)
        self._headers = [header_of((*kinds, ("shares", shares.ranks)), device)]
        self._shares, self._rank = shares, rank
        self.total, self.lost = total, lost
        self._late = torch.zeros(shares.size, dtype=torch.float32, device=device)
        self.averages = averages
        encoders = [_top_k(part) for part in parts]
        self._type = encoders[0].type
        self.form = KeptForm(self._type, counted=True, packed=True, fewest=0)
        self._lay_out_shares()
        sizes = [numel for _, numel in kinds]
        kept = [0] * len(sizes)
        rows = Rows(len(sizes), kernels.FIELDS.value, device)
        for part, encoder in zip(parts, encoders, strict=True):
            begins = np.cumsum(encoder.kept) - encoder.kept
            for number, (place, begin) in enumerate(zip(part.places, begins, strict=True)):
                kept[place] = encoder.kept[number]
                state = select.STATE.value * number + select.COUNT.value
                rows.host[place, kernels.INDICES.value] = encoder.indices[begin:].data_ptr()
                rows.host[place, kernels.VALUES.value] = encoder.values[begin:].data_ptr()
                rows.host[place, kernels.NUMBER.value] = encoder.state[state:].data_ptr()
        self._work = divide(kept, tiling.BLOCK, device)
        rows.host[:, kernels.BASE.value] = np.cumsum(sizes) - sizes
        rows.host[:, kernels.FIRST.value] = self._work.first
        self._sent = rows
        self._spread = divide(sizes, tiling.BLOCK, device)
        self._received = Rows(len(sizes), kernels.FIELDS.value, device)
        self._received.host[:] = rows.host
        self._received.host[:, kernels.FIRST.value] = self._spread.first
        self._received.host[:, kernels.NUMEL.value] = sizes
        counts = self._work.programs * shares.ranks

        def zeros(numel: int) -> torch.Tensor:
            return torch.zeros(numel, dtype=torch.int32, device=device)

        self._before, self._not_finite, self._spoiled = (
            zeros(numel) for numel in (counts, counts, shares.ranks)
        )
        self._positions = zeros(shares.ranks * shares.slots)
        self._state = zeros(shares.ranks * select.STATE.value)

    def _lay_out_shares(self) -> None:
        """Make the messages, and the table of the launch that packs their positions."""
        device, (ranks, slots) = self._device, (self._shares.ranks, self._shares.slots)
        sizes = packed_size(self._shares.size, slots)
        indices = HEADER + _NUMBER
        values = indices + 4 * sizes.words
        each = 4 if self._type == VALUE_TYPES["fp32"] else 2
        self._size = -(-(values + each * slots) // VECTOR_BYTES) * VECTOR_BYTES
        self.data = torch.zeros(ranks * self._size, dtype=torch.uint8, device=device)
        (header,) = self._headers
        messages = self.data.view(ranks, self._size)
        messages[:, :HEADER] = header
        self._words = messages[:, indices:values]
        self._values = self.data[values:]
        self._numbers = self.data[HEADER:].view(torch.int32)
        place = Place(values, indices, slots, HEADER)
        self.layouts = [Layout(header, [place], self._size) for _ in range(ranks)]
        self._packing = divide([slots] * ranks, tiling.BLOCK, device)
        self._lists = Rows(ranks, field.FIELDS.value, device)
        rows, share = self._lists.host, np.arange(ranks)
        rows[:, field.OUT.value] = share * slots
        rows[:, field.FIRST_BLOCK.value] = self._packing.first
        rows[:, field.PACKED.value] = (share * self._size + indices) // 4
        rows[:, field.LOW.value] = sizes.low_bits
        rows[:, field.UPPER.value] = sizes.upper
        self._lists.upload()

    def launch(self, tensors: Sequence[LaunchItem]) -> None:
        """See `Sender`."""
        residuals = [
            0 if tensor.residual is None else tensor.residual.data_ptr() for tensor in tensors
        ]
        with current(self._device):
            for rows in (self._sent, self._received):
                rows.host[:, kernels.RESIDUAL.value] = residuals
            self._sent.upload()
        super().launch(tensors)

    def _launch(self, modes: Sequence[Mode]) -> None:
        for (part, table), mode in zip(self._parts, modes, strict=True):
            part.encoder.start(table, mode)
        shares, programs = self._shares, self._work.programs
        ranks, size, slots = shares.ranks, self._size, shares.slots
        of = (self._sent.memory, self._work.tensors)
        constants = {
            "TYPE": self._type,
            "BLOCK": SHARE_BLOCK,
            "B": tiling.BLOCK,
            **EXACT,
        }
        kernels.count_shares_kernel[(programs,)](
            *(*of, self._before, self._not_finite, ranks),
            OWNERS=max(256, 1 << (ranks - 1).bit_length()),
            **constants,
        )
        kernels.scan_shares_kernel[(ranks,)](
            *(self._before, self._not_finite, self._state, self._spoiled, self._numbers),
            *(size, slots, programs, self._rank, ranks),
            B=tiling.BLOCK,
            **EXACT,
        )
        self._late.zero_()
        kernels.place_kernel[(programs,)](
            *(*of, self._before, self._spoiled, self._positions, self._values, self._late),
            *(size, slots, self._rank, ranks),
            **constants,
            num_warps=8,  # with 4, a thread of sm_100 has too few registers
        )
        self._words.zero_()
        packed.pack_kernel[(self._packing.programs,)](
            *(self._lists.memory, self._packing.tensors, self._state, self._positions),
            self.data.view(torch.int32),
            B=tiling.BLOCK,
            **EXACT,
        )

    def add_late(self) -> None:
        """Add this rank's elements of its share for which there was no slot to the average, on the current stream."""
        tensor_of(self.total).add_(self._late.mul_(1.0 / self._shares.ranks))  # two roundings

    def collect(self, outputs: Sequence[torch.Tensor]) -> None:
        """Write `averages` to the bucket's tensors, and add what was lost to residuals, on the current stream."""
        shares = self._shares
        with current(self._device):
            self._received.host[:, kernels.OUT.value] = [out.data_ptr() for out in outputs]
            self._received.upload()
            kernels.collect_shares_kernel[(self._spread.programs,)](
                *(self._received.memory, self._spread.tensors, self.averages, tensor_of(self.lost)),
                *(shares.size, self._rank, shares.ranks),
                BLOCK=SHARE_BLOCK,
                B=tiling.BLOCK,
                **EXACT,
            )


def _top_k(part: Part) -> TopK:
    assert isinstance(part.encoder, TopK)  # no other codec goes to peers and keeps elements
    return part.encoder
