"""The exchange pattern of `auto` for codecs with payloads that cannot be added.

A gather is a single round, and its average is not rounded once more, but its bytes grow with the
ranks. So `auto` gathers while that costs little. The choice depends on nothing but the spec and the
number of ranks: no data is measured, and all ranks choose alike.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from gradcomp.codec.codec import get_codec
from gradcomp.codec.frame_parts import kept_count
from gradcomp.codec.shares import Shares
from gradcomp.codec.spec import Spec, Stage, parse
from gradcomp.exchange.link import dense_link_bytes, link_bytes
from gradcomp.exchange.patterns.sparse_allreduce import DESCRIPTION_BYTES, MIN_SHARE
from gradcomp.exchange.patterns.sra import MIN_CHUNK

__all__ = ["NUMEL", "Choice", "automatic_choice", "share_link_bytes", "spec_link_bytes"]

NUMEL = 2**20
"""Elements of a default bucket, for which bytes are compared."""

_OF_DENSE = 0.751
"""Share of the bytes of an uncompressed all-reduce that a gather may pass: three quarters, and headers
of frames."""

_OF_GATHER = 0.26
"""Share of a gather's bytes at which another pattern is worth its second loss: a quarter, and headers.
`sra` passes 2 / n of them, so this is from 8 ranks on."""

_MOST_RATE = 4.0
"""Bits of an element, at most, where `adaptive` has an error to reach and no max_rate."""

_FRAME_BYTES = get_codec("identity").max_encoded_size(0)


class Choice(NamedTuple):
    """An exchange pattern.

    Attributes:
        reason: why `auto` takes it; empty if there was no choice.
    """

    pattern: str
    reason: str = ""


@lru_cache(maxsize=4096)
def automatic_choice(spec: Spec, ranks: int, between_devices: bool = False) -> Choice:
    """The pattern of a spec with a codec, which is not summable, at a number of ranks.

    Args:
        spec: without schedules; a memory has no effect.
        between_devices: messages travel from device to device.
    """
    gather = spec_link_bytes(spec, "gather", ranks)
    dense = dense_link_bytes(4 * NUMEL, ranks)
    few = Choice("gather", "it is one round, and its average is not coded again")
    other = _other(spec, ranks)
    if ranks <= 2 or other is None:
        return few
    nbytes = spec_link_bytes(spec, other, ranks, between_devices=between_devices)
    # The sra of a sparse codec keeps far less of uneven gradients.
    keeps_less = between_devices and other == "sra" and "sparse" in get_codec(spec.codec).caps
    if nbytes <= _OF_GATHER * gather and not keeps_less:
        return Choice(other, f"it passes {nbytes / gather:.1%} of a gather's bytes")
    if gather > _OF_DENSE * dense and nbytes < gather:
        return Choice(other, f"a gather passes {gather / dense:.0%} of the uncompressed bytes")
    return few


def _other(spec: Spec, ranks: int) -> str | None:
    """The alternative to the gather: the pattern with the bytes that grow least with the ranks."""
    caps = get_codec(spec.codec).caps
    if "learns" in caps:  # from averages of whole tensors
        return None
    if "sparse" not in caps:
        return "sra"
    # With about equal bytes, one choice from all sums keeps far more of uneven gradients than sra,
    # which chooses in each piece (benchmarks/exchange_bytes.py).
    if MIN_SHARE * ranks <= NUMEL:
        return "sparse_allreduce"
    # Random elements of random elements are nearly none.
    return None if "seeded" in caps else "sra"


def spec_link_bytes(
    spec: Spec, pattern: str, ranks: int, numel: int = NUMEL, *, between_devices: bool = False
) -> float:
    """Bytes that pass a rank's link for a tensor, by the sizes of `_expected_size`.

    Args:
        spec: without schedules; a memory has no effect.
        pattern: "reduce", "gather", "sra" or "sparse_allreduce".
        numel: the tensor's elements.
        between_devices: "sparse_allreduce" is that of messages from device to device.
    """
    if pattern == "reduce":
        return link_bytes("allreduce", get_codec(spec.codec).max_payload_size(numel), ranks)
    whole = _expected_size(spec, numel)
    if pattern == "sra" and numel >= MIN_CHUNK * ranks:
        piece = _expected_size(spec, math.ceil(numel / ranks))
        return link_bytes("alltoall", ranks * piece, ranks) + link_bytes("allgather", piece, ranks)
    if pattern == "sparse_allreduce" and numel >= MIN_SHARE * ranks:
        if between_devices:
            params = _codec_stage(spec).params
            shares = Shares(numel, kept_count(params, numel), ranks)
            return share_link_bytes(shares, str(params["values"]))
        frames = _expected_size(_as_topk(spec), numel) + ranks * _FRAME_BYTES
        return (
            link_bytes("alltoall", frames, ranks)
            + link_bytes("allgather", DESCRIPTION_BYTES, ranks)
            + link_bytes("allgather", frames / ranks, ranks)
        )
    return link_bytes("allgather", whole, ranks)


def share_link_bytes(shares: Shares, values: str) -> float:
    """Bytes that pass a rank's link in `PeerSparseAllReduce`: a message for each share, and one for all ranks.

    Args:
        values: type of sent values, as in a spec.
    """
    ranks = shares.ranks
    scattered, gathered = (
        get_codec(f"topk(k={kept},values={values})").max_encoded_size(shares.size)
        for kept in (shares.slots, shares.chosen)
    )
    return link_bytes("alltoall", ranks * scattered, ranks) + link_bytes(
        "allgather", gathered, ranks
    )


@lru_cache(maxsize=4096)
def _expected_size(spec: Spec, numel: int) -> int:
    """Bytes of a frame: the most, or the size that the codec aims at if that is known."""
    codec = get_codec(spec.codec)
    most = codec.max_encoded_size(numel)
    params = _codec_stage(spec).params
    rate = params.get("max_rate", _MOST_RATE) if "error" in params else params.get("rate")
    if isinstance(rate, float):
        return min(most, math.ceil(rate * numel / 8) + _FRAME_BYTES)
    if "whole_bucket" in codec.caps:
        # A bucket has as many elements as `topk` sends; a single tensor may get all or none.
        return get_codec(_as_topk(spec).codec).max_encoded_size(numel)
    return most


def _as_topk(spec: Spec) -> Spec:
    """The `topk` of as many elements as a sparse codec sends; the spec itself if that is unknown."""
    stage = _codec_stage(spec)
    params = stage.params
    for name in ("ratio", "k"):
        if name in params and stage.name != "blocktopk":  # its k counts in a block
            return parse(f"topk({name}={params[name]},values={params.get('values', 'fp32')})")
    return spec


def _codec_stage(spec: Spec) -> Stage:
    (stage,) = (stage for stage in spec.stages if stage.kind == "codec")
    return stage
