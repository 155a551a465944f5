"""All-reduce of sparse gradients whose messages have one size on all ranks, as devices send them to each other.

As `gradcomp.exchange.patterns.sparse_allreduce`, but no number travels through the host; docs/exchange.md has both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gradcomp import _core
from gradcomp.codec.arrays import ByteArray, FloatArray, split
from gradcomp.codec.batch import decode_batch_add, encode_batch
from gradcomp.codec.batch_items import DecodeItem, EncodeItem
from gradcomp.codec.codec import Codec, get_codec
from gradcomp.codec.devices import PeerDevice, peer_device_of
from gradcomp.codec.frame_parts import kept_count
from gradcomp.codec.shares import SHARE_BLOCK, Shares
from gradcomp.codec.spec import Spec
from gradcomp.errors import WireError
from gradcomp.exchange.memory import Memory
from gradcomp.exchange.patterns.base import BucketAggregator, Context, Member
from gradcomp.exchange.patterns.gather import Gather, frames_of_rank
from gradcomp.exchange.patterns.sparse_allreduce import MIN_SHARE, decoded_together, values_of
from gradcomp.exchange.rounds import AllGather, AllToAll, BucketRound

__all__ = ["PeerSparseAllReduce"]

_MOST = 2**31
"""Kernels count the elements of a bucket in 32 bits; a larger one is gathered."""


class PeerSparseAllReduce(BucketAggregator):
    """Each rank chooses elements of its gradients; each share's owner chooses from their sums once more.

    Of the elements of a share that a rank has chosen, other than 0, the first `Shares.slots` travel; the others are
    back in its residual. An owner adds those of its own share to the sums, as they need no message: there its
    residual is largest. It sends the `Shares.chosen` largest sums to all ranks, and its residual gets the rest of
    them, times the number of ranks. If a rank's elements of another share are too many, and one of them is NaN or
    Inf, the last one that travels is NaN.

    Rounds through the host, of buckets that devices do not take, have the same averages and residuals.

    Args:
        spec: its codec keeps a number of elements that follows from a tensor's size.
    """

    on_peer_devices = True

    def __init__(self, spec: Spec, memory: Memory, context: Context) -> None:
        self.codec = get_codec(spec.codec)
        self.memory = memory
        self.gather = Gather(self.codec, memory, context.seed, context.rank)
        self.values = values_of(spec)
        self.bucket = (PeerSparseAllReduce, self.values)
        (stage,) = (stage for stage in spec.stages if stage.kind == "codec")
        self._params = stage.params
        self._rank = context.rank
        self._world_size = context.world_size

    def bucket_round(self, name: str, members: Sequence[Member]) -> BucketRound:
        """See `BucketAggregator.bucket_round`."""
        aggregators = [_checked(member) for member in members]
        ranks = self._world_size
        numel = sum(member.key.numel for member in members)
        if ranks == 1 or not MIN_SHARE * ranks <= numel < _MOST:
            gathers = [
                member._replace(aggregator=aggregator.gather)
                for member, aggregator in zip(members, aggregators, strict=True)
            ]
            return (yield from self.gather.bucket_round(name, gathers))
        device = peer_device_of(
            [
                EncodeItem(aggregator.codec, member.grad)
                for member, aggregator in zip(members, aggregators, strict=True)
            ]
        )
        if device is None:
            members = [member.on_host() for member in members]
        kept = sum(
            kept_count(aggregator._params, member.key.numel)
            for member, aggregator in zip(members, aggregators, strict=True)
        )
        shares = Shares(numel, kept, ranks)
        tensors = [
            aggregator.gather.to_encode(
                aggregator.memory.source(member.grad, member.key), member.key, member.step
            )
            for member, aggregator in zip(members, aggregators, strict=True)
        ]
        choice = get_codec(f"topk(k={shares.chosen},values={self.values})")
        if device is None:
            return (yield from self._through_host(name, members, tensors, shares, choice))
        return (yield from self._from_devices(name, members, tensors, shares, choice, device))

    def _from_devices(
        self,
        name: str,
        members: Sequence[Member],
        tensors: Sequence[EncodeItem],
        shares: Shares,
        choice: Codec,
        device: PeerDevice,
    ) -> BucketRound:
        """Average from device to device: what travels never comes to the host."""
        scattered: Any = device.begin_shares(f"{name}.scatter", tensors, shares, self._rank)
        _report_sent(members)
        replies: list[ByteArray] = yield AllToAll(f"{name}.scatter", scattered, scattered.splits)
        total, lost = device.add_shares(scattered, replies)
        gathered: Any = device.begin_messages(f"{name}.gather", [[_to_choose(choice, total, lost)]])
        replies = yield AllGather(f"{name}.gather", gathered)
        outputs = [member.out for member in members]
        device.collect_shares(scattered, gathered, choice, replies, outputs)
        return outputs

    def _through_host(
        self,
        name: str,
        members: Sequence[Member],
        tensors: Sequence[EncodeItem],
        shares: Shares,
        choice: Codec,
    ) -> BucketRound:
        """The same with arrays on the host; frames have only what is not 0."""
        ranks, sizes = shares.ranks, [member.key.numel for member in members]
        carrier = get_codec(f"threshold(tau=0,values={self.values})")
        dealt = _dealt(_encoded(members, tensors), shares)
        beyond = _take_overflow(dealt, shares.slots, self._rank)
        late = beyond[self._rank].copy()
        beyond[self._rank] = 0
        unsent = split(_collected(beyond, shares), sizes)
        for tensor, part in zip(tensors, unsent, strict=True):
            _add_at(tensor.residual, part, part != 0)
        data, nbytes = encode_batch([EncodeItem(carrier, share) for share in dealt])
        replies: list[ByteArray] = yield AllToAll(f"{name}.scatter", data, nbytes)
        total, lost = np.empty(shares.size, np.float32), np.zeros(shares.size, np.float32)
        frames = [frames_of_rank(rank, reply, [name])[0] for rank, reply in enumerate(replies)]
        decode_batch_add([DecodeItem(name, carrier, frames, total, replaces=True)], 1.0 / ranks)
        with np.errstate(invalid="ignore"):
            total += np.float32(1.0 / ranks) * late

        frame, _ = encode_batch([_to_choose(choice, total, lost)])
        replies = yield AllGather(f"{name}.gather", frame)
        chosen = np.empty((ranks, shares.size), np.float32)
        for rank, reply in enumerate(replies):
            try:
                choice.decode(reply, chosen[rank])
            except WireError as error:
                raise WireError(f"rank {rank}'s sums of '{name}': {error}") from error
        losses, owned = np.zeros_like(chosen), np.zeros(chosen.shape, np.bool_)
        owned[self._rank] = True
        with np.errstate(over="ignore", invalid="ignore"):
            losses[self._rank] = np.float32(ranks) * lost
            for tensor, loss, own in zip(
                tensors,
                split(_collected(losses, shares), sizes),
                split(_collected(owned, shares), sizes),
                strict=True,
            ):
                _add_at(tensor.residual, loss, own)
        return split(_collected(chosen, shares), sizes)


def _checked(member: Member) -> PeerSparseAllReduce:
    assert isinstance(member.aggregator, PeerSparseAllReduce)  # ensured by `bucket`
    return member.aggregator


def _report_sent(members: Sequence[Member]) -> None:
    for member in members:
        _checked(member).memory.sent(member.key)


def _to_choose(choice: Codec, total: FloatArray, lost: FloatArray) -> EncodeItem:
    """The codec call for the sums of a share; ``lost`` becomes what it leaves out."""
    return EncodeItem(choice, total, residual=lost, beta=0.0)


def _encoded(members: Sequence[Member], tensors: Sequence[EncodeItem]) -> FloatArray:
    """What codecs keep of all tensors, one after the other; other elements are 0."""
    data, _ = encode_batch(tensors)
    _report_sent(members)
    return decoded_together(members, [tensor.codec for tensor in tensors], data)


def _owners(shares: Shares) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Of each block of each share, [ranks, turns]: its turn, and its place among the blocks of the turn."""
    turn = np.arange(shares.size // SHARE_BLOCK)
    owner = np.arange(shares.ranks)[:, None]
    return np.broadcast_to(turn, (shares.ranks, turn.size)), (owner - turn) % shares.ranks


def _dealt(flat: FloatArray, shares: Shares) -> FloatArray:
    """The shares of a bucket, [ranks, size]; the last turn is filled up with 0."""
    padded = np.zeros(shares.ranks * shares.size, np.float32)
    padded[: flat.size] = flat
    blocks = padded.reshape(-1, shares.ranks, SHARE_BLOCK)
    return blocks[_owners(shares)].reshape(shares.ranks, -1)


def _collected(of_shares: npt.NDArray[Any], shares: Shares) -> npt.NDArray[Any]:
    """The inverse of `_dealt`, for arrays of any dtype."""
    blocks = np.empty((shares.size // SHARE_BLOCK, shares.ranks, SHARE_BLOCK), of_shares.dtype)
    blocks[_owners(shares)] = of_shares.reshape(shares.ranks, -1, SHARE_BLOCK)
    return blocks.reshape(-1)[: shares.numel]


def _take_overflow(dealt: FloatArray, slots: int, rank: int) -> FloatArray:
    """Take from shares the elements beyond the first ``slots`` other than 0, and return them in their places."""
    taken = np.zeros_like(dealt)
    for owner, (share, rest) in enumerate(zip(dealt, taken, strict=True)):
        present = np.flatnonzero(share)
        late = present[slots:]
        if late.size:
            finite = np.isfinite(share[present]).all()
            rest[late] = share[late]
            share[late] = 0
            if not finite and owner != rank:
                share[present[slots - 1]] = np.nan
    return taken


def _add_at(residual: FloatArray | None, values: FloatArray, places: npt.NDArray[np.bool_]) -> None:
    """Add values to a residual, if there is one, at some places; NaN and Inf then become 0."""
    if residual is not None:
        residual[places] += values[places]
        _core.zero_nonfinite(residual)
