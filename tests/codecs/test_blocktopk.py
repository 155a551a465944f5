"""blocktopk: tiles, values and sizes against numpy, and payloads that must be refused."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

import gradcomp
from support.codecs import check_refused, magnitudes, roundtrip, same_bits, settings_of_the_core
from support.gradients import normal

FloatArray = npt.NDArray[np.float32]

SHAPES = [
    *[(1,), (5,), (4096,), (4097,), (70_000,)],
    *[(64, 64), (65, 65), (130, 200), (3, 5000), (5000, 3), (1000, 9), (7, 1), (20, 3, 3, 3)],
]


def tiles_of(shape: tuple[int, ...]) -> list[npt.NDArray[np.int64]]:
    """The elements of each tile, in order."""
    numbers = np.arange(math.prod(shape)).reshape(shape[0] if len(shape) > 1 else 1, -1)
    rows, cols = numbers.shape
    height = min(rows, 64)
    width = min(cols, 4096 // height)
    height = min(rows, 4096 // width)
    return [
        numbers[y : y + height, x : x + width].ravel()
        for y in range(0, rows, height)
        for x in range(0, cols, width)
    ]


def kept_of(x: FloatArray, k: int) -> npt.NDArray[np.int64]:
    """The kept elements, in tile order."""
    flat = magnitudes(x.ravel())
    kept = []
    for tile in tiles_of(x.shape):
        count = max(1, (tile.size * k + 2048) // 4096)
        largest = np.argsort(-flat[tile], kind="stable")[:count]
        kept.append(tile[np.sort(largest)])
    return np.concatenate(kept)


def two_bits(values: FloatArray) -> FloatArray:
    """SparseLoCo's quantizer, in float64."""
    c = values.astype(np.float64)
    mean = np.cumsum(c)[-1] / c.size
    squares = np.cumsum((c - mean) ** 2)[-1]
    deviation = math.sqrt(squares / (c.size - 1)) if c.size > 1 else 0.0
    width = 6 * deviation / 4 if deviation > 0 else 1.0
    bins = np.clip((c - mean) / width + 2, 0, 3).round().astype(int)
    table = np.zeros(4, np.float32)
    for b in set(bins):
        table[b] = np.cumsum(c[bins == b])[-1] / (bins == b).sum()
    return table[bins]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_each_tile_keeps_its_largest_elements(shape: tuple[int, ...]) -> None:
    x = normal(math.prod(shape)).reshape(shape)
    ties = np.sign(x)
    infinite = np.where(np.arange(x.size).reshape(shape) % 11 == 3, -np.inf, x).astype(np.float32)
    infinite.ravel()[::101] = np.nan
    for k in (1, 64, 4096):
        for grad in (x, ties, infinite):
            kept = kept_of(grad, k)
            for coder in ("auto", "raw32", "rice"):
                decoded = roundtrip(f"blocktopk(k={k})|{coder}", grad)
                expected = np.zeros(x.size, np.float32)
                expected[kept] = grad.ravel()[kept]
                np.testing.assert_array_equal(decoded, expected)


@pytest.mark.parametrize("shape", [(1,), (4096,), (300, 200), (6000,)], ids=str)
@pytest.mark.parametrize("kind", ["normal", "heavy", "negative", "equal", "tiny"])
def test_two_bit_values_are_the_means_of_their_bins(kind: str, shape: tuple[int, ...]) -> None:
    x = normal(math.prod(shape)).reshape(shape)
    x = {
        "normal": x,
        "heavy": x**9,
        "negative": -abs(x) - 3,
        "equal": np.full_like(x, -0.3),
        "tiny": x * np.float32(1e-40),
    }[kind]
    kept = kept_of(x, 64)
    decoded = roundtrip("blocktopk(values=2bit)", x)
    assert same_bits(decoded[kept], two_bits(x.ravel()[kept]))
    assert np.count_nonzero(decoded) <= kept.size


@pytest.mark.parametrize("spec", ["topk(k=300,{})", "threshold(tau=2,{})|rice", "randomk(k=90,{})"])
def test_other_sparse_codecs_have_these_values_too(spec: str) -> None:
    x = normal(5000)
    exact = roundtrip(spec.format("values=fp32"), x)
    kept = np.flatnonzero(exact)
    assert same_bits(roundtrip(spec.format("values=2bit"), x)[kept], two_bits(exact[kept]))
    means = roundtrip(spec.format("values=means"), x)[kept]
    for below in (True, False):
        own = exact[kept] < 0 if below else exact[kept] >= 0
        np.testing.assert_allclose(means[own], exact[kept][own].mean(), rtol=1e-6)


def test_a_value_that_is_not_finite_makes_all_values_nan() -> None:
    x = normal(5000)
    for bad in (np.nan, np.inf):
        x[17] = bad
        decoded = roundtrip("blocktopk(values=2bit)", x)
        assert np.isnan(decoded).sum() == kept_of(x, 64).size


@pytest.mark.parametrize(
    ("spec", "side", "most"),
    [
        # log2 C(4096, 64) / 64 = 7.364 bits an index, log2 C(4096, 4) / 4 = 10.853
        ("blocktopk(k=64,values=2bit)", 512, 9.6),
        ("blocktopk(k=64,values=2bit)", 2048, 1.01 * (7.364 + 2)),
        ("blocktopk(k=64,values=means)", 2048, 1.01 * (7.364 + 1)),
        ("blocktopk(k=4,values=sign)", 2048, 12.2),
        ("blocktopk(k=512,values=fp16)", 1024, 1.01 * (4.338 + 16)),
    ],
)
def test_bits_per_kept_value_are_near_the_bound(spec: str, side: int, most: float) -> None:
    x = normal(side * side).reshape(side, side)
    frame = gradcomp.get_codec(spec).encode(x)
    kept = int(spec.split("k=")[1].split(",")[0]) * side * side // 4096
    assert 8 * frame.size / kept <= most


def test_bytes_depend_neither_on_threads_nor_on_the_instruction_set() -> None:
    x = normal(300 * 900).reshape(300, 900)
    x[:60] *= 100  # thresholds of one tile are far off in the next one
    codec = gradcomp.get_codec("blocktopk(k=64,values=2bit)")
    frames = {codec.encode(x).tobytes() for _ in settings_of_the_core()}
    assert len(frames) == 1


@pytest.mark.parametrize("values", ["fp32", "2bit"])
def test_sent_and_residual_make_up_the_corrected_gradient(values: str) -> None:
    codec = gradcomp.get_codec(f"blocktopk(k=64,values={values})")
    grad = normal(200 * 333).reshape(200, 333)
    residual = normal(grad.size, 1)
    corrected = np.float32(0.95) * residual + grad.ravel()
    item = gradcomp.EncodeItem(codec, grad, residual=residual, beta=0.95)
    frame, _ = gradcomp.encode_batch([item])
    sent = codec.decode(frame)
    assert same_bits(residual, corrected - sent)
    assert np.count_nonzero(sent) == kept_of(corrected.reshape(grad.shape), 64).size


def test_frames_with_wrong_rows_are_refused() -> None:
    codec = gradcomp.get_codec("blocktopk(k=64)")
    payload = codec.encode_payload(normal(8192))
    for cols in (0, 3, 8191, 16_384, 2**32 - 1):
        payload[:4] = np.frombuffer(np.uint32(cols).tobytes(), np.uint8)
        check_refused(codec, payload, 8192, "must divide the tensor's 8192")
    empty = np.frombuffer(np.uint32(7).tobytes(), np.uint8)
    check_refused(codec, empty, 0, "must divide the tensor's 0")


@pytest.mark.parametrize("coder", ["auto", "raw32"])
def test_elements_outside_of_their_tile_are_refused(coder: str) -> None:
    codec = gradcomp.get_codec(f"blocktopk(k=64)|{coder}")
    x = normal(8192)
    x[-1] = 100
    payload = codec.encode_payload(x)
    payload[:4] = np.frombuffer(np.uint32(8191).tobytes(), np.uint8)  # one element fewer
    check_refused(codec, payload, 8191, "outside of its tile|stay below 8191")
    if coder == "raw32":
        payload = codec.encode_payload(x)
        places = payload[-4 * 128 :].view("<u4")
        places[63] = 4096 + (places[64] - 4096) // 2  # in order, but in the second tile
        check_refused(codec, payload, 8192, "outside of its tile")


def test_codes_of_another_length_are_refused() -> None:
    codec = gradcomp.get_codec("blocktopk(k=64)")
    payload = codec.encode_payload(normal(8192))
    for size in range(payload.size):
        check_refused(codec, payload[:size], 8192)
    check_refused(codec, np.append(payload, np.uint8(0)), 8192)
    begin = 4 + 4 * 128
    for length in (0, 3, payload.size, 2**32 - 1):
        damaged = payload.copy()
        damaged[begin : begin + 4] = np.frombuffer(np.uint32(length).tobytes(), np.uint8)
        check_refused(codec, damaged, 8192, "coded gaps")
