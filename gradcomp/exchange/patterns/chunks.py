"""Scatter-reduce-allgather: each rank averages a chunk of a bucket, and all gather the chunks."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from gradcomp.codec.arrays import ByteArray, FloatArray, room
from gradcomp.codec.batch import decode_batch_add, encode_batch
from gradcomp.codec.batch_items import DecodeItem, EncodeItem
from gradcomp.codec.codec import Codec, derive_stream
from gradcomp.errors import WireError
from gradcomp.exchange import pieces
from gradcomp.exchange.patterns.gather import frames_of_rank
from gradcomp.exchange.rounds import AllGather, AllToAll, Request, TensorKey

__all__ = ["Chunk", "Piece", "cut", "cut_rows", "encode_pieces", "scatter_reduce_allgather"]


class Piece(NamedTuple):
    """Consecutive elements of a tensor that lie in one chunk.

    Attributes:
        member: the tensor's position in its bucket.
        key: the tensor.
        begin, end: the range of the tensor's elements, [begin, end).
    """

    member: int
    key: TensorKey
    begin: int
    end: int

    @property
    def numel(self) -> int:
        """Number of elements."""
        return self.end - self.begin

    @property
    def shape(self) -> tuple[int, ...]:
        """The matrix of the piece's rows, if it has only whole ones; else it is a vector."""
        cols = self.key.cols
        if len(self.key.shape) < 2 or cols == 0 or self.begin % cols or self.end % cols:
            return (self.numel,)
        return self.numel // cols, cols

    def tensor_id(self, phase: int) -> int:
        """The id for seeded codecs: different for each piece and each phase."""
        return derive_stream(self.key.tensor_id, self.begin, phase)


Chunk = list[Piece]
"""The pieces that one rank averages."""


def cut(keys: Sequence[TensorKey], ranks: int, *, whole_rows: bool = False) -> list[Chunk]:
    """Chunks of about equal numbers of elements, one for each rank; some may be empty.

    The tensors are laid out one after the other. A piece ends with its tensor, so most tensors of a
    large bucket are one piece, and no piece mixes two of them.

    Args:
        whole_rows: borders move to the nearest border of two rows, if a chunk is larger than a row.
    """
    numel = sum(key.numel for key in keys)
    borders = [numel * rank // ranks for rank in range(ranks + 1)]
    if whole_rows:
        borders = _between_rows(keys, borders)
    chunks: list[Chunk] = [[] for _ in range(ranks)]
    first = 0
    for member, key in enumerate(keys):
        for chunk, (low, high) in zip(chunks, pairwise(borders), strict=True):
            begin, end = max(low - first, 0), min(high - first, key.numel)
            if begin < end:
                chunk.append(Piece(member, key, begin, end))
        first += key.numel
    return chunks


def _between_rows(keys: Sequence[TensorKey], borders: Sequence[int]) -> list[int]:
    """The borders, each moved by at most half a row; chunks of less than a row stay as they are."""
    moved, first, least = [], 0, borders[1]
    tensors = iter(keys)
    key = next(tensors)
    for border in borders:
        while border > first + key.numel:
            first += key.numel
            key = next(tensors)
        row = key.cols
        if 1 < row <= least:
            border = first + (border - first + row // 2) // row * row
        moved.append(border)
    return moved


def cut_rows(keys: Sequence[TensorKey], ranks: int) -> list[Chunk]:
    """The rows of each tensor, which must not be empty, for each rank; some chunks may be empty.

    As PyTorch shards: every rank has ``ceil(rows / ranks)`` of them, the last ones fewer or none. They are one
    piece, or several where they have more elements than codecs take.
    """
    chunks: list[Chunk] = [[] for _ in range(ranks)]
    for member, key in enumerate(keys):
        rows = key.shape[0]
        size = -(-rows // ranks) * (key.numel // rows)
        for chunk, begin in zip(chunks, range(0, key.numel, size), strict=False):
            end = min(begin + size, key.numel)
            chunk.extend(Piece(member, key, *borders) for borders in _within_limit(key, begin, end))
    return chunks


def _within_limit(key: TensorKey, begin: int, end: int) -> list[tuple[int, int]]:
    """The ranges of some rows, [begin, end), that codecs take."""
    if not pieces.is_cut(end - begin):
        return [(begin, end)]
    shape = ((end - begin) * key.shape[0] // key.numel, *key.shape[1:])
    return [(begin + part.begin, begin + part.end) for part in pieces.pieces_of(key.name, shape)]


def encode_pieces(tensors: Sequence[EncodeItem]) -> tuple[ByteArray, list[int]]:
    """As `encode_batch`, but also for no tensors: a rank's chunk may be empty."""
    return encode_batch(tensors) if tensors else (np.empty(0, np.uint8), [])


def encode_apart(groups: Sequence[Sequence[EncodeItem]]) -> tuple[ByteArray, list[int]]:
    """As `encode_pieces` of all tensors, but codecs with ``whole_bucket`` encode each group by itself."""
    if len(groups) == 1:
        return encode_pieces(groups[0])
    encoded = [encode_pieces(group) for group in groups]
    frames = np.concatenate([data for data, _ in encoded])
    return frames, [size for _, sizes in encoded for size in sizes]


def scatter_reduce_allgather(
    name: str,
    chunks: Sequence[Chunk],
    codecs: Sequence[Codec],
    rank: int,
    data: tuple[ByteArray, list[int]],
    weight: float,
    settle: Callable[[Chunk, list[FloatArray]], ByteArray],
    outputs: list[FloatArray],
) -> Generator[Request, Any, list[FloatArray]]:
    """Average the chunks, and give every rank all of them.

    Args:
        name: prefix of the requests' names.
        chunks: one for each rank, in rank order.
        codecs: one for each of the bucket's tensors.
        rank: this rank, in [0, len(chunks)).
        data: this rank's frames of the pieces of all chunks, in order, and their sizes in bytes.
        weight: factor of each rank's pieces in the sum.
        settle: a function of this rank's chunk and the weighted sums of its pieces. It returns the
            frames of the sums, one after the other, which all ranks decode.
        outputs: memory for the averages, one flat float32 array for each of the bucket's tensors.

    Returns:
        The outputs.

    Raises:
        WireError: a frame is damaged; the message names the rank and the tensor.
    """
    frames, sizes = data
    remaining = iter(sizes)
    splits = [sum(next(remaining) for _ in chunk) for chunk in chunks]
    replies: list[ByteArray] = yield AllToAll(f"{name}.scatter", frames, splits)
    own_chunk = chunks[rank]
    of_ranks = [_frames(source, reply, own_chunk) for source, reply in enumerate(replies)]
    sums = [room(piece.numel) for piece in own_chunk]
    decode_batch_add(
        [
            DecodeItem(piece.key.name, codecs[piece.member], list(of_piece), total, replaces=True)
            for piece, total, *of_piece in zip(own_chunk, sums, *of_ranks, strict=True)
        ],
        weight,
    )
    counts = [len(chunk) for chunk in chunks]
    replies = yield AllGather(f"{name}.gather", settle(own_chunk, sums), counts)
    for owner, (reply, chunk) in enumerate(zip(replies, chunks, strict=True)):
        for piece, frame in zip(chunk, _frames(owner, reply, chunk), strict=True):
            out = outputs[piece.member][piece.begin : piece.end]
            try:
                codecs[piece.member].decode(frame, out)
            except WireError as error:
                raise WireError(f"rank {owner}'s average of '{piece.key.name}': {error}") from error
    return outputs


def _frames(rank: int, data: ByteArray, chunk: Chunk) -> list[ByteArray]:
    return frames_of_rank(rank, data, [piece.key.name for piece in chunk])
