"""Tensors beyond the limit of codecs, such as embedding tables: each is averaged in several pieces."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gradcomp import _core
from gradcomp.codec.arrays import FloatArray
from gradcomp.exchange.rounds import Round, TensorKey

__all__ = ["Piece", "is_cut", "pieces_of", "round_of_pieces"]

_PIECE_NUMEL = 2**28
"""Most elements of a piece: what a round needs besides the gradient and its memories is of that size."""


class Piece(NamedTuple):
    """Consecutive elements of a tensor, which are averaged as a tensor of their own.

    Attributes:
        key: of the piece: its name has its number, and its shape whole rows where there are any.
        begin, end: its elements.
    """

    key: TensorKey
    begin: int
    end: int


def is_cut(numel: int) -> bool:
    """Whether a tensor has more elements than a codec takes."""
    return numel > _core.MAX_NUMEL


def pieces_of(name: str, shape: tuple[int, ...]) -> list[Piece]:
    """The pieces of a tensor, in order and of about the same size; equal on all ranks."""
    numel = math.prod(shape)
    # Of whole rows, so that algorithms on matrices find some, unless a row is too large itself.
    row = numel // shape[0]
    unit = row if row <= _PIECE_NUMEL else 1
    units = numel // unit
    count = -(-units // (_PIECE_NUMEL // unit))
    pieces = []
    for number in range(count):
        begin, end = (unit * (units * place // count) for place in (number, number + 1))
        part = ((end - begin) // row, *shape[1:]) if unit == row else (end - begin,)
        pieces.append(Piece(TensorKey(f"{name}[{number}]", part, end - begin), begin, end))
    return pieces


def round_of_pieces(
    key: TensorKey,
    grad: FloatArray,
    out: FloatArray,
    begin: Callable[[TensorKey, FloatArray, FloatArray], Round],
) -> Round:
    """The rounds of a tensor's pieces, one after the other.

    Args:
        key: the tensor.
        grad: as in `Aggregator.round`.
        out: flat memory for the average; it may be the gradient's own.
        begin: makes the round of a piece, of its key, its gradient and its part of ``out``.
    """
    flat = grad.reshape(-1)
    for part, first, last in pieces_of(key.name, key.shape):
        room = out[first:last]
        average = yield from begin(part, flat[first:last].reshape(part.shape), room)
        if not np.shares_memory(average, room):
            room[:] = average
    return out
