"""The lossless coders of levels, seen through a codec that uses them."""

from __future__ import annotations

import numpy as np
import pytest

import gradcomp
from support.levels_model import decode_symbols

CHUNK = 65536


def symbols_of(codec: gradcomp.Codec, x: np.ndarray, buckets: int, bits: int) -> np.ndarray:
    packed = gradcomp.get_codec(codec.spec.split("|")[0])
    payload = packed.encode_payload(x).tobytes()
    return decode_symbols(payload[4 * buckets :], "packed", bits, x.size)


def entropy_bytes(symbols: np.ndarray) -> float:
    total = 0.0
    for chunk in np.split(symbols, range(CHUNK, symbols.size, CHUNK)):
        counts = np.bincount(chunk)
        counts = counts[counts > 0]
        total -= float((counts * np.log2(counts / chunk.size)).sum()) / 8
    return total


@pytest.mark.parametrize("norm", ["max", "l2"])
@pytest.mark.parametrize("levels", [1, 4, 7, 31, 127])
@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_rans_is_within_two_percent_of_the_entropy(kind: str, levels: int, norm: str) -> None:
    rng = np.random.default_rng(levels)
    n = 4 * CHUNK
    x = (rng.normal(size=n) if kind == "gaussian" else rng.laplace(size=n)).astype(np.float32)
    codec = gradcomp.get_codec(f"qsgd(levels={levels},norm={norm})|rans")
    buckets = n // 512
    entropy = entropy_bytes(symbols_of(codec, x, buckets, (2 * levels).bit_length()))
    coded = codec.encode_payload(x).nbytes - 4 * buckets
    assert coded <= 1.02 * entropy


@pytest.mark.parametrize("coder", ["rans", "elias_delta"])
def test_what_cannot_be_shortened_costs_a_header_only(coder: str) -> None:
    x = np.random.default_rng(1).uniform(-1, 1, 2 * CHUNK).astype(np.float32)
    codec = gradcomp.get_codec(f"qsgd(levels=127,bucket=16)|{coder}")
    plain = gradcomp.get_codec("qsgd(levels=127,bucket=16)").encode_payload(x).nbytes
    assert codec.encode_payload(x).nbytes <= plain + 8
    assert codec.max_payload_size(x.size) == plain + 8


def test_elias_delta_is_short_where_most_levels_are_zero() -> None:
    x = np.random.default_rng(2).normal(size=CHUNK).astype(np.float32)
    sizes = {
        coder: gradcomp.get_codec(f"qsgd(levels=1,norm=l2)|{coder}").encode_payload(x).nbytes
        for coder in ("packed", "elias_delta", "rans")
    }
    assert sizes["rans"] < sizes["elias_delta"] < 0.6 * sizes["packed"]


def test_the_default_coder_is_not_part_of_the_canonical_spec() -> None:
    assert gradcomp.get_codec("qsgd|packed").spec == gradcomp.get_codec("qsgd").spec
    with pytest.raises(gradcomp.SpecError, match="indices"):
        gradcomp.get_codec("topk(k=1)|rans")
    with pytest.raises(gradcomp.SpecError, match="levels"):
        gradcomp.get_codec("qsgd|rice")


@pytest.mark.parametrize("coder", ["rans", "elias_delta"])
def test_damage_to_a_chunk_is_refused_and_leaves_the_accumulator(coder: str) -> None:
    x = np.random.default_rng(3).normal(size=CHUNK + 100).astype(np.float32)
    codec = gradcomp.get_codec(f"qsgd(levels=7,norm=l2)|{coder}")
    payload = codec.encode_payload(x)
    begin = 4 * -(-x.size // 512)
    second = begin + 4 + int(payload[begin : begin + 3].tobytes()[::-1].hex(), 16)
    acc = np.ones(x.size, np.float32)
    for at, value in [
        (begin, payload[begin] ^ 1),  # a length that does not fit
        (begin + 3, 2),  # no such mode
        (second + 3, 1 - payload[second + 3]),  # the other mode
        (second, payload[second] ^ 0x80),
    ]:
        damaged = payload.copy()
        damaged[at] = value
        with pytest.raises(gradcomp.WireError):
            codec.decode_payload_add(damaged, acc)
        assert (acc == 1).all()
    for size in (0, begin - 1, begin, begin + 3, second, second + 3, payload.size - 1):
        with pytest.raises(gradcomp.WireError):
            codec.decode_payload_add(payload[:size], acc)
    with pytest.raises(gradcomp.WireError, match="follow"):
        codec.decode_payload_add(np.append(payload, np.uint8(0)), acc)
    assert (acc == 1).all()
