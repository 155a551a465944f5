"""Scatter-reduce-allgather of frames: a volume that does not grow with the number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np

from gradcomp import _core
from gradcomp.codec.arrays import ByteArray, FloatArray
from gradcomp.codec.batch_items import EncodeItem, PeerItem
from gradcomp.codec.codec import Codec
from gradcomp.codec.devices import HOST, PeerDevice, peer_device_of
from gradcomp.exchange.memory import Memory, Source
from gradcomp.exchange.patterns.base import BucketAggregator, Context, Member
from gradcomp.exchange.patterns.chunks import (
    Chunk,
    Piece,
    cut,
    encode_apart,
    encode_pieces,
    scatter_reduce_allgather,
)
from gradcomp.exchange.patterns.gather import Gather
from gradcomp.exchange.rounds import AllGather, AllToAll, BucketRound

__all__ = ["MIN_CHUNK", "Sra"]

MIN_CHUNK = 256
"""Minimum elements per rank. Smaller buckets are gathered: frame headers would outweigh the data."""

_SCATTER, _GATHER = 0, 1


class Sra(BucketAggregator):
    """Each rank averages one chunk of the bucket and encodes the average for all ranks.

    It decodes all ranks' frames of its chunk and adds them in rank order, in float32. Every rank
    decodes the same frames of all chunks.

    A rank sends and receives about two payloads, however many ranks there are; `Gather` receives
    one payload from each rank. The price is a second loss, when the average is encoded. The chunk's
    owner adds world_size times this second loss to its residual. So the mean of all residuals is
    again exactly the part that the averages lack.

    Codecs see pieces of tensors: a ``k`` counts within a piece, and a piece has its own scale. Codecs
    with ``whole_bucket`` choose within a chunk: each owner's part of the bytes is as large as its part of
    the elements, in both phases, on all ranks. Their chunks have whole rows, where these are small.
    """

    def __init__(self, codec: Codec, memory: Memory, context: Context) -> None:
        self._whole_bucket = "whole_bucket" in codec.caps
        self.on_peer_devices = not self._whole_bucket
        self.bucket = self if self._whole_bucket else Sra
        self.codec = codec
        self.memory = memory
        self.gather = Gather(codec, memory, context.seed, context.rank)
        self._rank = context.rank
        self._world_size = context.world_size

    def bucket_round(self, name: str, members: Sequence[Member]) -> BucketRound:
        """See `BucketAggregator.bucket_round`; the bucket as a whole is cut into chunks."""
        aggregators = [_checked(member) for member in members]
        keys = [member.key for member in members]
        if self._world_size == 1 or sum(key.numel for key in keys) < MIN_CHUNK * self._world_size:
            gathers = [
                member._replace(aggregator=aggregator.gather)
                for member, aggregator in zip(members, aggregators, strict=True)
            ]
            return (yield from self.gather.bucket_round(name, gathers))
        chunks = cut(keys, self._world_size, whole_rows=self._whole_bucket)
        device = peer_device_of(
            [
                EncodeItem(aggregator.codec, member.grad)
                for member, aggregator in zip(members, aggregators, strict=True)
            ]
        )
        if device is not None:
            bucket = _Bucket(members, aggregators, device.zeros)
            return (yield from self._from_devices(name, chunks, bucket, device))

        bucket = _Bucket([member.on_host() for member in members], aggregators, HOST.zeros)
        of_chunks = bucket.scattered(chunks)
        # One call for all, unless the codec takes each chunk as a bucket.
        groups = of_chunks if self._whole_bucket else [list(chain.from_iterable(of_chunks))]
        data = encode_apart(groups)
        bucket.sent()

        def settle(chunk: Chunk, averages: list[FloatArray]) -> ByteArray:
            tensors = bucket.gathered(chunk, averages)
            frames, _ = encode_pieces(tensors)
            for residual, lost in bucket.lost(chunk, tensors):
                with np.errstate(over="ignore", invalid="ignore"):
                    lost *= np.float32(self._world_size)
                    residual += lost
                _core.zero_nonfinite(residual)
            return frames

        codecs = [aggregator.codec for aggregator in aggregators]
        weight = 1.0 / self._world_size
        outputs = [member.out for member in bucket.members]
        return (
            yield from scatter_reduce_allgather(
                name, chunks, codecs, self._rank, data, weight, settle, outputs
            )
        )

    def _from_devices(
        self, name: str, chunks: Sequence[Chunk], bucket: _Bucket, device: PeerDevice
    ) -> BucketRound:
        """Average from device to device: what travels never comes to the host."""
        own_chunk = chunks[self._rank]
        scattered: Any = device.begin_messages(f"{name}.scatter", bucket.scattered(chunks))
        bucket.sent()
        splits = scattered.splits
        replies: list[ByteArray] = yield AllToAll(f"{name}.scatter", scattered, splits)
        outputs = [member.out for member in bucket.members]
        sums = [outputs[piece.member][piece.begin : piece.end] for piece in own_chunk]
        ranks = range(self._world_size)
        to_add = [
            bucket.to_add(piece, total, _SCATTER, ranks)
            for piece, total in zip(own_chunk, sums, strict=True)
        ]
        device.add_messages(scattered, self._rank, to_add, replies, 1.0 / self._world_size)
        tensors = bucket.gathered(own_chunk, sums)
        # The engine gathers messages of one size.
        gathered: Any = device.begin_messages(f"{name}.gather", [tensors], max(splits))
        for residual, lost in bucket.lost(own_chunk, tensors):
            device.add_lost(residual, lost, float(self._world_size))
        counts = [len(chunk) for chunk in chunks]
        replies = yield AllGather(f"{name}.gather", gathered, counts)
        decoded = [
            [
                bucket.to_add(
                    piece, outputs[piece.member][piece.begin : piece.end], _GATHER, [owner]
                )
                for piece in chunk
            ]
            for owner, chunk in enumerate(chunks)
        ]
        device.decode_messages(scattered, decoded, replies)
        return outputs


class _Bucket:
    """The tensors of a round, and the codec calls of their pieces.

    Args:
        zeros: makes arrays on the tensors' device.
    """

    def __init__(
        self,
        members: Sequence[Member],
        aggregators: Sequence[Sra],
        zeros: Callable[[int], FloatArray],
    ) -> None:
        self.members = members
        self._zeros = zeros
        self._aggregators = aggregators
        self._sources = [
            aggregator.memory.source(member.grad, member.key)
            for aggregator, member in zip(aggregators, members, strict=True)
        ]

    def scattered(self, chunks: Sequence[Chunk]) -> list[list[EncodeItem]]:
        """The pieces of all chunks, with their parts of the memories."""
        return [
            [
                self._piece(
                    piece, self._sources[piece.member].part(piece.begin, piece.end), _SCATTER
                )
                for piece in chunk
            ]
            for chunk in chunks
        ]

    def sent(self) -> None:
        """Report that all pieces have been encoded."""
        for aggregator, member in zip(self._aggregators, self.members, strict=True):
            aggregator.memory.sent(member.key)

    def gathered(self, chunk: Chunk, averages: Sequence[FloatArray]) -> list[EncodeItem]:
        """The averages of a chunk's pieces; residuals become what encoding them loses."""
        tensors = []
        for piece, average in zip(chunk, averages, strict=True):
            kept = self._sources[piece.member].residual is not None
            lost = self._zeros(piece.numel) if kept else None
            tensors.append(self._piece(piece, Source(average, lost, beta=0.0), _GATHER))
        return tensors

    def lost(
        self, chunk: Chunk, tensors: Sequence[EncodeItem]
    ) -> Iterator[tuple[FloatArray, FloatArray]]:
        """For each piece with a memory, its part of the residual, and what `gathered` has lost of it."""
        for piece, tensor in zip(chunk, tensors, strict=True):
            residual = self._sources[piece.member].residual
            if residual is not None and tensor.residual is not None:
                yield residual[piece.begin : piece.end], tensor.residual

    def to_add(self, piece: Piece, out: FloatArray, phase: int, ranks: Iterable[int]) -> PeerItem:
        """A piece of messages of some ranks."""
        gather = self._aggregators[piece.member].gather
        step = self.members[piece.member].step
        return PeerItem(gather.codec, out, gather.streams(piece.tensor_id(phase), step, ranks))

    def _piece(self, piece: Piece, source: Source, phase: int) -> EncodeItem:
        gather = self._aggregators[piece.member].gather
        step = self.members[piece.member].step
        item = source.to_encode(gather.codec, gather.seed, step, piece.tensor_id(phase))
        if "whole_bucket" in gather.codec.caps:  # it sees the matrix of the piece's rows
            return item._replace(grad=item.grad.reshape(piece.shape))
        return item


def _checked(member: Member) -> Sra:
    assert isinstance(member.aggregator, Sra)  # ensured by `bucket`
    return member.aggregator
