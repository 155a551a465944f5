"""Reduce-scatter of frames: each rank gets the sum of its own rows of each tensor."""

from __future__ import annotations

from collections.abc import Sequence

from gradcomp.codec.arrays import ByteArray
from gradcomp.codec.batch import decode_batch_add, give_batch
from gradcomp.codec.codec import Codec
from gradcomp.codec.items import ToDecode, ToEncode, ToGive
from gradcomp.exchange.memory import Memory
from gradcomp.exchange.patterns.base import BucketAggregator, Context, Member
from gradcomp.exchange.patterns.chunks import Piece, cut_rows, encode_pieces
from gradcomp.exchange.patterns.gather import frames_of_rank, rank_seed
from gradcomp.exchange.rounds import AllToAll, BucketRound

__all__ = ["ReduceScatter"]


class ReduceScatter(BucketAggregator):
    """Every rank sends each other rank the frames of that rank's rows, and decodes those of its own.

    It adds them in float32, in rank order, to its own part, which is not encoded. Rows belong to
    ranks as in `cut_rows`. Codecs see the rows of one rank as a matrix of their own; a tensor that
    is not compressed travels in frames, too.

    The memory is the sender's and has the tensor's size: it does not depend on the ranks' number.
    The part of the rank's own rows is zero, except after a change of that number.

    Its rounds return sums, not averages, and of the rank's own rows alone: sharded models divide by
    a factor of their own.
    """

    on_devices = True

    def __init__(self, codec: Codec, memory: Memory, context: Context) -> None:
        self.bucket = ReduceScatter
        self.codec = codec
        self.memory = memory
        self._seed = rank_seed(context.seed, context.rank)
        self._rank = context.rank
        self._world_size = context.world_size

    def bucket_round(self, name: str, members: Sequence[Member]) -> BucketRound:
        """See `BucketAggregator.bucket_round`; returns sums of this rank's rows, flat float32."""
        aggregators = [_checked(member) for member in members]
        chunks = cut_rows([member.key for member in members], self._world_size)
        sources = [
            aggregator.memory.source(member.grad, member.key)
            for aggregator, member in zip(aggregators, members, strict=True)
        ]

        def to_encode(piece: Piece) -> ToEncode:
            source = sources[piece.member].part(piece.begin, piece.end)
            step = members[piece.member].step
            codec = aggregators[piece.member].codec
            item = source.to_encode(codec, self._seed, step, piece.tensor_id(0))
            rows = piece.numel // (piece.key.numel // piece.key.shape[0])
            return item._replace(grad=item.grad.reshape((rows, -1)))

        others = [rank for rank in range(self._world_size) if rank != self._rank]
        frames, sizes = encode_pieces(
            [to_encode(piece) for rank in others for piece in chunks[rank]]
        )
        remaining = iter(sizes)
        splits = [
            0 if rank == self._rank else sum(next(remaining) for _ in chunk)
            for rank, chunk in enumerate(chunks)
        ]
        sums = [member.out[:0] for member in members]
        own = chunks[self._rank]
        to_give = []
        for piece in own:
            out = sums[piece.member] = members[piece.member].out[piece.begin : piece.end]
            source = sources[piece.member].part(piece.begin, piece.end)
            to_give.append(ToGive(source.grad, source.residual, source.beta, source.gamma, out))
        give_batch(to_give)
        for aggregator, member in zip(aggregators, members, strict=True):
            aggregator.memory.sent(member.key)

        replies: list[ByteArray] = yield AllToAll(name, frames, splits)
        names = [piece.key.name for piece in own]
        of_ranks = [frames_of_rank(rank, replies[rank], names) for rank in others]
        decode_batch_add(
            [
                ToDecode(
                    piece.key.name,
                    aggregators[piece.member].codec,
                    [of_rank[position] for of_rank in of_ranks],
                    sums[piece.member],
                    senders=others,
                )
                for position, piece in enumerate(own)
            ]
        )
        return sums


def _checked(member: Member) -> ReduceScatter:
    assert isinstance(member.aggregator, ReduceScatter)  # ensured by `bucket`
    return member.aggregator
