"""lossless: every bit of every input, sizes, and payloads that must be refused."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given

import gradcomp
from support.codecs import check_refused, same_bits, settings_of_the_core
from support.gradients import DISTRIBUTIONS, LAWS, any_bits, normal, sample
from support.pipelines import config_of

FloatArray = npt.NDArray[np.float32]

CODEC = gradcomp.get_codec("lossless")


def bfloat16(x: FloatArray) -> FloatArray:
    """The elements without the lower half of their bits."""
    return (x.view(np.uint32) & 0xFFFF0000).view(np.float32)


def check_restored(x: FloatArray) -> int:
    """Check that decoding restores every bit; return the size of the payload."""
    payload = CODEC.encode_payload(x)
    assert payload.size <= CODEC.max_encoded_size(x.size)
    assert same_bits(CODEC.decode_payload(payload, x.size), x)
    return payload.size


@LAWS
@given(x=any_bits())
def test_any_bits_are_restored(x: FloatArray) -> None:
    check_restored(x)
    check_restored(bfloat16(x))


@pytest.mark.parametrize("kind", DISTRIBUTIONS)
@pytest.mark.parametrize("n", [4097, 65_536, 140_000])
def test_gradients_of_all_kinds_are_restored(kind: str, n: int) -> None:
    check_restored(sample(kind, n))


def test_every_upper_half_is_restored() -> None:
    """All bfloat16 numbers: NaN with all payloads, both zeros, denormals."""
    halves = np.arange(2**16, dtype=np.uint32) << 16
    check_restored(halves.view(np.float32))
    check_restored((halves | 0x5A5A).view(np.float32))


def test_a_bfloat16_tensor_takes_less_than_its_own_bytes() -> None:
    grad = torch.from_numpy(normal(200_000)).to(torch.bfloat16)
    frame = CODEC.encode(grad)
    assert 2 * grad.numel() / frame.size > 1.45
    decoded = torch.from_numpy(CODEC.decode(frame)).to(torch.bfloat16)
    assert torch.equal(decoded.view(torch.int16), grad.view(torch.int16))


def test_sizes_of_other_inputs() -> None:
    x = normal(200_000)
    n = x.size
    assert check_restored(x) < 4 * n / 1.2
    assert check_restored(x.astype(np.float16).astype(np.float32)) < 2 * n / 1.15
    sparse = np.where(np.random.default_rng(1).random(n) < 0.9, 0, x).astype(np.float32)
    assert check_restored(sparse) < 4 * n / 8.5
    assert check_restored(np.where(sparse == 0, np.float32(-0.0), sparse)) < 4 * n / 6.5
    assert check_restored(np.zeros_like(x)) == 4
    random = np.random.default_rng(2).integers(0, 2**32, n, np.uint32).view(np.float32)
    assert check_restored(random) <= 4 * n + 4


@pytest.mark.parametrize("share", [0.0, 0.01, 0.02, 0.2, 0.999])
def test_zeros_take_no_bytes_but_their_exponents(share: float) -> None:
    n = 3 * 65_536 + 77
    rng = np.random.default_rng(3)
    x = bfloat16(normal(n))
    x[rng.random(n) < share] = 0
    size = check_restored(x)
    exponents = np.bincount(x.view(np.uint32) >> 23 & 0xFF)
    shares = exponents[exponents > 0] / n
    # The entropy of exponents, and 8 bits of each element that is not 0; below 1/64, of all.
    entropy = -n * float(shares @ np.log2(shares)) / 8
    assert size < 1.01 * (entropy + np.count_nonzero(x)) + 0.01 * n + 1000
    for value in (-0.0, 1e-42):  # a zero with bits of its own: all elements have all bytes
        x[n // 2] = value
        check_restored(x)


@pytest.mark.parametrize("n", [100, 65_536 * 3 + 5])
def test_payloads_are_equal_at_all_settings(n: int) -> None:
    inputs = [normal(n), bfloat16(normal(n)), sample("sparse", n), sample("any bits", n)]
    expected = [CODEC.encode_payload(x).tobytes() for x in inputs]
    for setting in settings_of_the_core(threads=(1, 3)):
        for x, payload in zip(inputs, expected, strict=True):
            assert CODEC.encode_payload(x).tobytes() == payload, setting
            check_restored(x)


@pytest.mark.parametrize("exchange", ["gather", "sra"])
def test_the_average_is_that_of_the_float32_values(exchange: str) -> None:
    grads = [bfloat16(normal((50, 30), seed)) for seed in range(4)]
    job = gradcomp.Loopback(config_of("lossless", exchange=exchange), world_size=4)
    expected = (grads[0] + grads[1] + grads[2] + grads[3]) * np.float32(0.25)
    for average in job.step({"w": grads})["w"]:
        np.testing.assert_allclose(average, expected, rtol=1e-5, atol=1e-6)


def test_damaged_payloads_are_refused() -> None:
    n = 65_536 + 1000
    payload = CODEC.encode_payload(bfloat16(normal(n)))
    assert payload[0] == 0b0110  # the exponents are coded, the upper significands are raw
    check_refused(CODEC, payload[:-1], n, "cut short")
    check_refused(CODEC, np.append(payload, payload[:1]), n, "1 bytes follow the last chunk")
    check_refused(CODEC, payload[:2], n, "chunk 0 ends within a length")
    check_refused(CODEC, payload, n + 65_536, "chunk 2 is missing|cut short")
    for at, value, match in (
        (0, 0b1110, "chunk 0 has a form that does not exist"),
        (1, payload[1] ^ 1, "chunk"),  # the code's length
        (3, payload[3] ^ 8, "chunk 0 has an invalid code"),  # its table
        (2000, payload[2000] ^ 4, "chunk 0 has an invalid code"),  # a word
    ):
        damaged = payload.copy()
        damaged[at] = value
        check_refused(CODEC, damaged, n, match)


def test_damaged_payloads_of_sparse_chunks_are_refused() -> None:
    n = 65_536 + 1000
    x = bfloat16(normal(n))
    x[::3] = 0
    payload = CODEC.encode_payload(x)
    assert payload[0] == 0b0111  # coded exponents without zeros; the upper significands are raw
    kept = int(payload[1:3].view("<u2")[0])
    assert kept == np.count_nonzero(x[:65_536])
    check_refused(CODEC, payload[:-1], n, "cut short")
    check_refused(CODEC, payload[:2], n, "chunk 0 ends within a count")
    check_refused(CODEC, payload[:4], n, "chunk 0 ends within a length")
    for number, match in (
        (0, "chunk 0 has an invalid count"),
        (kept - 1, "chunk 1|follow"),
        (kept + 1, "chunk 1|cut short"),
    ):
        damaged = payload.copy()
        damaged[1:3] = np.array([number], "<u2").view(np.uint8)
        check_refused(CODEC, damaged, n, match)
    # A count that agrees with the bytes, but not with the exponents.
    one = CODEC.encode_payload(x[:65_536])
    one[1:3] = np.array([kept - 1], "<u2").view(np.uint8)
    check_refused(CODEC, one[:-1], 65_536, "chunk 0 has an invalid code")
    one[1:3] = np.array([kept + 1], "<u2").view(np.uint8)
    check_refused(CODEC, np.append(one, one[:1]), 65_536, "chunk 0 has an invalid code")
