"""All-reduce of sparse gradients: its volume does not grow with the number of ranks.

After Li, Hoefler: "Near-Optimal Sparse Allreduce for Distributed Deep Learning" (Ok-topk, PPoPP
2022). docs/exchange.md has the details, and where this differs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradcomp import _core
from gradcomp.codec.arrays import ByteArray, FloatArray, split
from gradcomp.codec.batch import decode_batch_add, encode_batch
from gradcomp.codec.batch_items import DecodeItem, EncodeItem
from gradcomp.codec.codec import Codec, get_codec
from gradcomp.codec.frame import split_frames
from gradcomp.codec.spec import Spec
from gradcomp.errors import WireError
from gradcomp.exchange.memory import Memory
from gradcomp.exchange.patterns.base import BucketAggregator, Context, Member
from gradcomp.exchange.patterns.gather import Gather, frames_of_rank
from gradcomp.exchange.rounds import AllGather, AllToAll, BucketRound

__all__ = [
    "BLOCK",
    "DESCRIPTION_BYTES",
    "MIN_SHARE",
    "SparseAllReduce",
    "decoded_together",
    "values_of",
]

BLOCK = 64
"""Consecutive elements in a block. Blocks are dealt out to the ranks in turn."""

MIN_SHARE = 4096
"""Minimum elements per rank; smaller buckets are gathered."""

_POINTS = 64
"""Number of magnitudes in a rank's description of its share."""

_LARGEST = np.finfo(np.float32).max

_EXACT = get_codec("identity")

DESCRIPTION_BYTES = _EXACT.max_encoded_size(2 + _POINTS)
"""Of a rank's description of its share, as a frame."""


class SparseAllReduce(BucketAggregator):
    """Each rank chooses elements of its gradients; shares of the sums are chosen from once more.

    Each rank sums one share of all elements: blocks dealt out in turn, so that shares are alike
    wherever large gradients lie. Ranks describe their shares to each other, and so agree on a
    threshold. About as many sums exceed it as a rank sends elements on average; these sums form the
    result.

    As with `Sra`, sums below the threshold stay in the residual of the rank that computed them,
    times the number of ranks.
    """

    def __init__(self, spec: Spec, memory: Memory, context: Context) -> None:
        self.codec = get_codec(spec.codec)
        self.memory = memory
        self.gather = Gather(self.codec, memory, context.seed, context.rank)
        # Sends nonzero elements only.
        self.carrier = get_codec(f"threshold(tau=0,values={values_of(spec)})")
        whole_bucket = "whole_bucket" in self.codec.caps
        self.bucket = self if whole_bucket else (SparseAllReduce, self.carrier.spec)
        self._rank = context.rank
        self._world_size = context.world_size

    def bucket_round(self, name: str, members: Sequence[Member]) -> BucketRound:
        """See `BucketAggregator.bucket_round`."""
        aggregators = [_checked(member) for member in members]
        sizes = [member.key.numel for member in members]
        ranks, carrier = self._world_size, self.carrier
        if ranks == 1 or sum(sizes) < MIN_SHARE * ranks:
            gathers = [
                member._replace(aggregator=aggregator.gather)
                for member, aggregator in zip(members, aggregators, strict=True)
            ]
            return (yield from self.gather.bucket_round(name, gathers))

        shares = _dealt(self._choose(aggregators, members), ranks)
        data, nbytes = encode_batch([EncodeItem(carrier, share) for share in shares])
        own_shares = np.empty_like(shares)
        for frame, share in zip(split_frames(data, ranks), own_shares, strict=True):
            carrier.decode(frame, share)
        sent = split(_collected(own_shares, sum(sizes)), sizes)
        for aggregator, member, values in zip(aggregators, members, sent, strict=True):
            aggregator.memory.update(member.key, values)
        count = int(np.count_nonzero(own_shares))
        replies: list[ByteArray] = yield AllToAll(f"{name}.scatter", data, nbytes)
        total = np.empty(shares.shape[1], np.float32)
        frames = [frames_of_rank(rank, reply, [name])[0] for rank, reply in enumerate(replies)]
        decode_batch_add([DecodeItem(name, carrier, frames, total, replaces=True)], 1.0 / ranks)

        magnitudes = np.where(np.isfinite(total), np.abs(total), np.float32(np.inf))
        replies = yield AllGather(f"{name}.choice", _EXACT.encode(_description(magnitudes, count)))
        least = _least_chosen(
            [_read(rank, reply, name, total.size, sum(sizes)) for rank, reply in enumerate(replies)]
        )
        frame = carrier.encode(np.where(magnitudes >= least, total, np.float32(0)))
        replies = yield AllGather(f"{name}.gather", frame)
        chosen = np.empty_like(shares)
        for rank, reply in enumerate(replies):
            try:
                carrier.decode(reply, chosen[rank])
            except WireError as error:
                raise WireError(f"rank {rank}'s sums of '{name}': {error}") from error
        lost = np.zeros_like(shares)
        with np.errstate(over="ignore", invalid="ignore"):
            lost[self._rank] = np.float32(ranks) * (total - chosen[self._rank])
            losses = split(_collected(lost, sum(sizes)), sizes)
            for aggregator, member, loss in zip(aggregators, members, losses, strict=True):
                residual = aggregator.memory.unsent(member.key)
                if residual is not None:
                    residual += loss
                    _core.zero_nonfinite(residual)
        return split(_collected(chosen, sum(sizes)), sizes)

    def _choose(
        self, aggregators: Sequence[SparseAllReduce], members: Sequence[Member]
    ) -> FloatArray:
        """All tensors, one after the other; elements that their codecs do not send are 0."""
        data, _ = encode_batch(
            [
                EncodeItem(
                    aggregator.codec,
                    aggregator.memory.compensate(member.grad, member.key),
                    aggregator.gather.seed,
                    member.step,
                    member.key.tensor_id,
                )
                for aggregator, member in zip(aggregators, members, strict=True)
            ]
        )
        return decoded_together(members, [aggregator.codec for aggregator in aggregators], data)


def _checked(member: Member) -> SparseAllReduce:
    assert isinstance(member.aggregator, SparseAllReduce)  # ensured by `bucket`
    return member.aggregator


def values_of(spec: Spec) -> str:
    """The type of sent values: as in the spec, or "fp32"."""
    values = [stage.params["values"] for stage in spec.stages if "values" in stage.params]
    return str(values[0]) if values else "fp32"


def _dealt(flat: FloatArray, ranks: int) -> FloatArray:
    """The shares of all ranks, as rows; the last blocks are padded with 0."""
    turns = -(-flat.size // (ranks * BLOCK))
    padded = np.zeros(turns * ranks * BLOCK, np.float32)
    padded[: flat.size] = flat
    blocks = padded.reshape(turns, ranks, BLOCK).transpose(1, 0, 2)
    return np.ascontiguousarray(blocks).reshape(ranks, -1)


def _collected(shares: FloatArray, numel: int) -> FloatArray:
    """The inverse of `_dealt`."""
    ranks = len(shares)
    return shares.reshape(ranks, -1, BLOCK).transpose(1, 0, 2).reshape(-1)[:numel]


def _places(count: int) -> FloatArray:
    """Positions of the magnitudes that describe a share, in descending order: denser at the top."""
    if count == 0:
        return np.empty(0, np.float32)
    return np.unique(np.rint(np.geomspace(1, count, _POINTS))).astype(np.float32)


def _description(magnitudes: FloatArray, count: int) -> FloatArray:
    """A share's description, [2 + _POINTS]: ``count``, the elements that its rank has sent; the
    number of nonzero sums; the magnitudes at `_places`, descending; zeros."""
    ordered = np.sort(magnitudes[magnitudes > 0])[::-1]
    result = np.zeros(2 + _POINTS, np.float32)
    result[:2] = count, ordered.size
    places = _places(ordered.size)
    result[2 : 2 + places.size] = ordered[places.astype(np.intp) - 1]
    return result


def _read(rank: int, reply: ByteArray, name: str, share: int, numel: int) -> FloatArray:
    """A rank's description of its share of ``share`` elements, of ``numel`` in all."""
    try:
        description = _EXACT.decode(reply, numel=2 + _POINTS)
    except WireError as error:
        raise WireError(f"rank {rank}'s description of '{name}': {error}") from error
    # Float32 rounds counts above 2**24.
    for count, most in zip(description[:2], np.array([numel, share], np.float32), strict=True):
        if not 0 <= count <= most or count != np.floor(count):
            raise WireError(
                f"rank {rank}'s description of '{name}' has the count {count}; it must be a whole "
                f"number in [0, {most:.0f}]"
            )
    known = description[2:]
    if not (np.all(known >= 0) and np.all(known[:-1] >= known[1:])):  # also refuses NaN
        raise WireError(
            f"rank {rank}'s description of '{name}' has magnitudes that are negative, NaN or not in "
            "descending order"
        )
    return description


def _least_chosen(descriptions: Sequence[FloatArray]) -> np.float32:
    """The magnitude above which there are about as many sums as a rank has sent on average.

    Each known magnitude represents its neighbours, up to halfway to the next known magnitudes.
    """
    target = np.mean([description[0] for description in descriptions])
    magnitudes, weights = [np.zeros(1)], [np.zeros(1)]  # the least magnitude
    for _, count, *known in descriptions:
        places = _places(int(count))
        if places.size:
            ends = np.concatenate([[0.0], (places[1:] + places[:-1]) / 2, [count]])
            weights.append(np.diff(ends))
            magnitudes.append(np.minimum(known[: places.size], _LARGEST))
    every, weight = np.concatenate(magnitudes), np.concatenate(weights)
    order = np.argsort(-every, kind="stable")
    above = np.cumsum(weight[order]) - weight[order] / 2
    return np.float32(np.interp(target, above, every[order]))


def decoded_together(
    members: Sequence[Member], codecs: Sequence[Codec], data: ByteArray
) -> FloatArray:
    """The elements that a rank's own frames hold, of all tensors one after the other; others are 0.

    Args:
        codecs: of the members.
        data: their frames, one after the other.
    """
    sizes = [member.key.numel for member in members]
    together = np.empty(sum(sizes), np.float32)
    decode_batch_add(
        [
            DecodeItem(member.key.name, codec, [frame], part, replaces=True)
            for member, codec, frame, part in zip(
                members,
                codecs,
                split_frames(data, len(members)),
                split(together, sizes),
                strict=True,
            )
        ]
    )
    return together
