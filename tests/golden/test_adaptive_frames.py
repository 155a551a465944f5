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
    frame = encoded(codec, x, basis)
    rng = random.Random(spec)
    outcomes = {True: 0, False: 0}
    for _ in range(250):
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
            expected = decoder.decode(damaged, spec, basis.tobytes())
        except decoder.FormatError:
            expected = None
        acc = np.ones(900, np.float32)
        try:
            found = decoded(codec, damaged, 900, basis)
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
    assert min(outcomes.values()) > 5, "some damage must be found, and some leave a valid frame"
