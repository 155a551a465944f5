"""Reduce-scatter of frames: each rank gets the sum of its own rows of each tensor."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from gradcomp.codec.arrays import ByteArray, FloatArray
from gradcomp.codec.batch import decode_batch_add, differ_batch, give_batch
from gradcomp.codec.batch_items import DecodeItem, EncodeItem, GiveItem, PeerItem
from gradcomp.codec.codec import Codec
from gradcomp.codec.devices import PeerDevice, peer_device_of
from gradcomp.exchange.estimates import Estimates
from gradcomp.exchange.memory import Memory
from gradcomp.exchange.patterns.base import BucketAggregator, Context, Member
from gradcomp.exchange.patterns.chunks import Piece, cut_rows, encode_pieces
from gradcomp.exchange.patterns.gather import Gather, frames_of_rank
from gradcomp.exchange.rounds import AllToAll, BucketRound

__all__ = ["ReduceScatter"]


class ReduceScatter(BucketAggregator):
    """Every rank sends each other rank the frames of that rank's rows, and decodes those of its rows.

    It adds them in float32, in rank order, to its own part, which is not encoded. Rows belong to
    ranks as in `cut_rows`. Codecs see the rows of one rank as a separate matrix; a tensor that is not
    compressed travels in frames, too.

    The memory is the sender's and has the tensor's size: it does not depend on the ranks' number.
    The part of the rank's own rows is zero, except after a change of that number.

    Its rounds return sums, not averages, and of the rank's own rows alone: sharded models divide
    them by their own factor.

    Args:
        memory: of the spec.
        estimates: of EF21, which sends differences; ``memory`` then keeps what a step does not send.
    """

    def __init__(
        self, codec: Codec, memory: Memory, context: Context, estimates: Estimates | None = None
    ) -> None:
        self.bucket = ReduceScatter
        self.codec = codec
        self.memory = memory
        self.gather = Gather(codec, memory, context.seed, context.rank)
        self.estimates = estimates
        self.on_devices = estimates is None
        self._rank = context.rank
        self._world_size = context.world_size

    def bucket_round(self, name: str, members: Sequence[Member]) -> BucketRound:
        """See `BucketAggregator.bucket_round`; returns sums of this rank's rows, flat float32."""
        given = [_difference(member) for member in members]
        sums = yield from self._sums(name, given)
        begins = [0] * len(members)
        own_pieces = cut_rows([member.key for member in members], self._world_size)[self._rank]
        for piece in reversed(own_pieces):
            begins[piece.member] = piece.begin
        return [
            self._settle(member, total, begin)
            for member, total, begin in zip(given, sums, begins, strict=True)
        ]

    def _settle(self, member: Member, total: FloatArray, begin: int) -> FloatArray:
        """The sum of a tensor's rows, from what has been sent of them."""
        estimates = _checked(member).estimates
        if estimates is None:
            return total
        difference = member.grad.reshape(-1)
        return estimates.settle_rows(member.key, difference, total, begin, self._world_size)

    def _sums(self, name: str, members: Sequence[Member]) -> BucketRound:
        bucket = _Bucket(members, self._rank, self._world_size)
        groups = [[bucket.to_encode(piece) for piece in chunk] for chunk in bucket.chunks]
        device = peer_device_of(list(chain.from_iterable(groups)))
        if device is not None:
            return (yield from self._from_devices(name, bucket, groups, device))
        others = [rank for rank in range(self._world_size) if rank != self._rank]
        frames, sizes = encode_pieces([item for rank in others for item in groups[rank]])
        remaining = iter(sizes)
        splits = [
            0 if rank == self._rank else sum(next(remaining) for _ in chunk)
            for rank, chunk in enumerate(bucket.chunks)
        ]
        give_batch(bucket.given())
        bucket.sent()
        replies: list[ByteArray] = yield AllToAll(name, frames, splits)
        names = [piece.key.name for piece in bucket.own_pieces]
        of_ranks = [frames_of_rank(rank, replies[rank], names) for rank in others]
        decode_batch_add(
            [
                DecodeItem(
                    piece.key.name,
                    bucket.aggregators[piece.member].codec,
                    [of_rank[position] for of_rank in of_ranks],
                    bucket.room(piece),
                    senders=others,
                )
                for position, piece in enumerate(bucket.own_pieces)
            ]
        )
        return bucket.sums

    def _from_devices(
        self, name: str, bucket: _Bucket, groups: list[list[EncodeItem]], device: PeerDevice
    ) -> BucketRound:
        """Add from device to device: what travels never comes to the host.

        The message to this rank itself is encoded, too, as it tells how the others' are laid out.
        """
        groups[self._rank] = [item._replace(residual=None) for item in groups[self._rank]]
        messages: Any = device.begin_messages(name, groups)
        give_batch(bucket.given())
        bucket.sent()
        splits = messages.splits
        unused = splits[self._rank]
        replies: list[ByteArray] = yield AllToAll(name, messages, splits, unused=unused)
        device.add_messages(messages, self._rank, bucket.to_add(), replies, 1.0, exact=self._rank)
        return bucket.sums


class _Bucket:
    """The tensors of a round, cut into the ranks' rows.

    Attributes:
        aggregators: of the tensors.
        chunks: the rows of each rank.
        own_pieces: the rows of this rank, which are one piece of a tensor, or several that follow one another.
        sums: memory for the sums of the own rows of each tensor; empty where there are none.
    """

    def __init__(self, members: Sequence[Member], rank: int, ranks: int) -> None:
        self._members = members
        self._ranks = ranks
        self.aggregators = [_checked(member) for member in members]
        self.chunks = cut_rows([member.key for member in members], ranks)
        self.own_pieces = self.chunks[rank]
        self._sources = [
            aggregator.memory.source(member.grad, member.key)
            for aggregator, member in zip(self.aggregators, members, strict=True)
        ]
        self.sums: list[FloatArray] = [member.out[:0] for member in members]
        begins: dict[int, int] = {}
        for piece in self.own_pieces:
            begin = begins.setdefault(piece.member, piece.begin)
            self.sums[piece.member] = members[piece.member].out[begin : piece.end]

    def room(self, piece: Piece) -> FloatArray:
        """Memory for the sums of a piece of this rank's rows."""
        return self._members[piece.member].out[piece.begin : piece.end]

    def to_encode(self, piece: Piece) -> EncodeItem:
        """The codec call for the rows of a rank."""
        gather = self.aggregators[piece.member].gather
        step = self._members[piece.member].step
        source = self._sources[piece.member].part(piece.begin, piece.end)
        item = source.to_encode(gather.codec, gather.seed, step, piece.tensor_id(0))
        row = piece.key.numel // piece.key.shape[0]
        if piece.numel % row:  # a part of a row that is too large itself
            return item
        return item._replace(grad=item.grad.reshape((-1, row)))

    def given(self) -> list[GiveItem]:
        """This rank's own rows, which stay exact."""
        parts = [
            self._sources[piece.member].part(piece.begin, piece.end) for piece in self.own_pieces
        ]
        return [
            GiveItem(part.grad, part.residual, part.beta, part.gamma, self.room(piece))
            for piece, part in zip(self.own_pieces, parts, strict=True)
        ]

    def sent(self) -> None:
        """Report that all rows have been encoded or given."""
        for aggregator, member in zip(self.aggregators, self._members, strict=True):
            aggregator.memory.sent(member.key)

    def to_add(self) -> list[PeerItem]:
        """This rank's own rows in the messages of all ranks."""
        tensors = []
        for piece in self.own_pieces:
            gather = self.aggregators[piece.member].gather
            step = self._members[piece.member].step
            streams = gather.streams(piece.tensor_id(0), step, range(self._ranks))
            tensors.append(PeerItem(gather.codec, self.room(piece), streams))
        return tensors


def _difference(member: Member) -> Member:
    """A tensor with what it sends: its gradient, or with EF21 a difference."""
    estimates = _checked(member).estimates
    if estimates is None:
        return member
    item = estimates.differ(member.grad, member.key)
    differ_batch([item])
    estimates.differed(item)
    return member._replace(grad=item.difference.reshape(member.key.shape))


def _checked(member: Member) -> ReduceScatter:
    assert isinstance(member.aggregator, ReduceScatter)  # ensured by `bucket`
    return member.aggregator
