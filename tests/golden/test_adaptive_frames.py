"""Matrices of `adaptive`: both decoders agree on them, and on the damage that they refuse.

Specs with preset=basis have a basis that has learned from a matrix of the same directions.
"""

from __future__ import annotations

import random
import struct

import decoder
import numpy as np
import pytest

import gradcomp
from gradcomp import DecodeItem, EncodeItem, decode_batch_add, encode_batch
from support.codecs import settings_of_the_core
from support.frames import sealed

SPECS = [
    gradcomp.get_codec(f"adaptive({params})").spec
    for params in (
        "rate=0.5,rank=auto",
        "rate=2,rank=4",
        "rate=4,rank=0",
        "rate=1,rank=2,coder=polar",
        "rate=4,rank=0,coder=polar",
        "rate=1,preset=basis",
        "rate=4,rank=2,preset=basis,coder=polar",
    )
]


def matrix(rows: int, cols: int, seed: int = 0) -> np.ndarray:
    """A gradient of rank 2 in the main, with heavy tails."""
    rng = np.random.default_rng([seed, rows, cols])
    pairs = rng.normal(size=(rows, 2)) @ rng.normal(size=(2, cols))
    return (pairs + rng.standard_t(2, size=(rows, cols))).astype(np.float32)


def learned(codec: gradcomp.Codec, x: np.ndarray) -> np.ndarray:
    basis = np.zeros(codec.basis_size(x.shape), np.float32)
    if basis.size:
        codec.learn(x[::-1].copy(), x.shape, basis)
    return basis


def encoded(codec: gradcomp.Codec, x: np.ndarray, basis: np.ndarray) -> bytes:
    return encode_batch([EncodeItem(codec, x, basis=basis)])[0].tobytes()


def decoded(codec: gradcomp.Codec, frame: bytes, n: int, basis: np.ndarray) -> np.ndarray:
    if basis.size == 0:
        return codec.decode(frame, numel=n)
    return added(codec, frame, np.zeros(n, np.float32), basis)


def added(codec: gradcomp.Codec, frame: bytes, acc: np.ndarray, basis: np.ndarray) -> np.ndarray:
    data = np.frombuffer(frame, np.uint8)
    decode_batch_add([DecodeItem("matrix", codec, [data], acc, basis)])
    return acc


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("shape", [(2, 32), (9, 31), (20, 64), (65, 33), (1, 700), (150, 40)])
def test_both_decoders_agree_on_matrices(spec: str, shape: tuple[int, int]) -> None:
    codec = gradcomp.get_codec(spec)
    for seed in range(3):
        x = matrix(*shape, seed)
        basis = learned(codec, x)
        frame = encoded(codec, x, basis)
        found = decoded(codec, frame, x.size, basis)
        np.testing.assert_array_equal(found, decoder.decode(frame, spec, basis.tobytes()))


@pytest.mark.parametrize("spec", SPECS)
def test_both_decoders_refuse_the_same_damaged_matrices(spec: str) -> None:
    codec = gradcomp.get_codec(spec)
    x = matrix(20, 45)
    basis = learned(codec, x)
    check_damage(codec, encoded(codec, x, basis), x.size, basis)


def check_damage(
    codec: gradcomp.Codec, frame: bytes, n: int, basis: np.ndarray, trials: int = 250
) -> None:
    """Check that both decoders refuse the same damaged frames, and agree on the others."""
    rng = random.Random(codec.spec)
    outcomes = {True: 0, False: 0}
    for _ in range(trials):
        data = bytearray(frame[:-4])
        for _ in range(rng.choice([1, 1, 2])):
            # Most of the payload's head, where the fields are, and its end, where the states are.
            last = len(data) - 1
            at = rng.choice([min(24 + rng.randrange(40), last), rng.randrange(24, last), last])
            data[at] = rng.choice([data[at] ^ 1 << rng.randrange(8), rng.randrange(256)])
        if rng.random() < 0.2:
            data = data[: rng.randrange(24, len(data))]
        struct.pack_into("<I", data, 12, len(data) - 24)
        damaged = sealed(bytes(data))
        try:
            expected = decoder.decode(damaged, codec.spec, basis.tobytes())
        except decoder.FormatError:
            expected = None
        acc = np.ones(n, np.float32)
        try:
            found = decoded(codec, damaged, n, basis)
            added(codec, damaged, acc, basis)
        except gradcomp.WireError:
            found = None
            with pytest.raises(gradcomp.WireError):
                added(codec, damaged, acc, basis)
            assert (acc == 1).all()
        assert (found is None) == (expected is None), damaged.hex(" ")
        if found is not None:
            np.testing.assert_array_equal(found, expected)
        outcomes[found is None] += 1
    assert min(outcomes.values()) > trials // 50, "some damage must be found, and some not"


# Byte 0 of a payload: bits 0 to 2 are this where zero groups have no symbols.
ZERO_GROUPS = 6


def grouped_frames(shape: tuple[int, ...], rate: float) -> list[bytes]:
    """Frames of four training steps; all but the first have no symbols of zero groups.

    The rows of the gradients differ in size by orders of magnitude. The residual of a step is what
    its frame does not carry.
    """
    codec = gradcomp.get_codec(f"adaptive(rate={rate})")
    rng = np.random.default_rng([int(100 * rate), *shape])
    carried, frames = np.zeros(codec.carried, np.float32), []
    residual = np.zeros(np.prod(shape), np.float32)
    for _ in range(4):
        x = rng.standard_t(2, size=shape) * np.exp(2 * rng.normal(size=(shape[0], 1)[: len(shape)]))
        item = EncodeItem(codec, x.astype(np.float32), residual=residual, carried=carried)
        corrected = residual + item.grad.reshape(-1)
        frames.append(encode_batch([item])[0].tobytes())
        np.testing.assert_array_equal(residual, corrected - codec.decode(frames[-1]))
    assert [frame[24] & 7 == ZERO_GROUPS for frame in frames] == [False, True, True, True]
    return frames


@pytest.mark.parametrize(
    ("shape", "rate"),
    [((64, 300), 0.1), ((33, 513), 1), ((9000,), 0.25), ((256, 128), 0.5), ((300, 31), 1)],
)
def test_both_decoders_agree_on_zero_groups(shape: tuple[int, ...], rate: float) -> None:
    codec = gradcomp.get_codec(f"adaptive(rate={rate})")
    for frame in grouped_frames(shape, rate)[1:]:
        np.testing.assert_array_equal(codec.decode(frame), decoder.decode(frame, codec.spec))


def test_both_decoders_refuse_the_same_damaged_zero_groups() -> None:
    codec = gradcomp.get_codec("adaptive(rate=0.1)")
    frame = grouped_frames((70, 150), 0.1)[-1]
    check_damage(codec, frame, 70 * 150, np.zeros(0, np.float32), trials=100)


def test_zero_groups_have_the_same_bytes_and_values_on_all_levels() -> None:
    """Two bands; the last columns are no whole group."""
    codec = gradcomp.get_codec("adaptive(rate=0.2)")
    found = set()
    for _ in settings_of_the_core(threads=(1, 3)):
        frames = grouped_frames((1300, 890), 0.2)
        values = codec.decode(frames[-1])
        added_up = added(codec, frames[-1], values.copy(), np.zeros(0, np.float32))
        np.testing.assert_array_equal(added_up, 2 * values)
        found.add((*frames, values.tobytes()))
    assert len(found) == 1


def test_zero_groups_are_refused_with_lattice_points() -> None:
    spec = gradcomp.get_codec("adaptive(rate=1,coder=polar)").spec
    frame = bytearray(encoded(gradcomp.get_codec(spec), matrix(20, 45), np.zeros(0, np.float32)))
    frame[24] = frame[24] & 0xF8 | ZERO_GROUPS
    with pytest.raises(gradcomp.WireError, match="states"):
        gradcomp.get_codec(spec).decode(sealed(bytes(frame[:-4])))
