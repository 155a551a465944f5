"""Sparsifiers against plain numpy definitions and published reference data."""

from __future__ import annotations

import math

import decoder
import numpy as np
import pytest

from gradcomp import SpecError, WireError, get_codec
from gradcomp.codec.frame import inspect
from gradcomp.codec.spec import parse
from support.codecs import magnitudes, only, roundtrip
from support.gradients import normal
from support.reference import reference
from support.streams import first_draw, seed_with_start

# randomk and randomblock --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "k"),
    [
        *[(1, 1), (2, 1), (3, 2), (7, 3), (64, 2), (64, 5), (1000, 31), (1000, 640), (700, 699)],
        *[(3, 9), (1024, 32), (100_000, 3000), (1 << 20, 2049), ((1 << 20) + 1, 256), (999_999, 7)],
    ],
)
def test_randomk_keeps_one_element_of_each_part(n: int, k: int) -> None:
    x = normal(n)
    for seed in range(40 if n < 10_000 else 2):
        kept = decoder.randomk_indices(n, min(k, n), decoder.stream_key(seed, 0, 0))
        assert np.unique(kept).size == min(k, n)
        np.testing.assert_array_equal(roundtrip(f"randomk(k={k})", x, seed=seed), only(x, kept))


@pytest.mark.parametrize(("n", "k"), [(7, 3), (10, 4), (11, 10)])
def test_randomk_keeps_all_elements_as_often_where_parts_are_unequal(n: int, k: int) -> None:
    calls = 3000
    codec = get_codec(f"randomk(k={k})")
    x = np.ones(n, np.float32)
    often = sum(codec.decode(codec.encode(x, seed=seed)) for seed in range(calls)) / calls
    sigma = math.sqrt(k / n * (1 - k / n) / calls)
    assert (np.abs(often - k / n) < 5 * sigma).all()


@pytest.mark.parametrize(("n", "k"), [(1, 1), (100, 7), (100, 100)])
def test_randomblock_is_a_block_of_a_ring(n: int, k: int) -> None:
    x = normal(n)
    starts = set()
    for seed in range(40):
        start = first_draw(seed) * n >> 64
        starts.add(start)
        kept = (start + np.arange(k)) % n
        np.testing.assert_array_equal(roundtrip(f"randomblock(k={k})", x, seed=seed), only(x, kept))
    assert n == 1 or max(starts) > n - 7  # some blocks wrap around


@pytest.mark.parametrize("values", ["fp32", "fp16", "bf16", "int8"])
@pytest.mark.parametrize("name", ["randomk", "randomblock"])
def test_unbiased_random_sparsifiers(name: str, values: str) -> None:
    n, k, calls = 40, 10, 2000
    x = normal(n, 1)
    codec = get_codec(f"{name}(k={k},unbiased=true,values={values})")
    total = np.zeros(n)
    for seed in range(calls):
        total += codec.decode(codec.encode(x, seed=seed))
    # Each element is x n/k with probability k/n; rounding is biased by at most its step.
    sigma = np.abs(x) * math.sqrt((n / k - 1) / calls)
    step = {"fp32": 1e-6, "fp16": 1e-3, "bf16": 1e-2, "int8": 1e-2}[values]
    assert (np.abs(total / calls - x) < 5 * sigma + step * np.abs(x).max()).all()


@pytest.mark.parametrize("values", ["sign", "means", "2bit"])
def test_values_of_few_bits_are_not_unbiased(values: str) -> None:
    with pytest.raises(SpecError, match="are biased, which excludes unbiased=true"):
        get_codec(f"randomk(k=3,unbiased=true,values={values})")


def test_biased_random_sparsifiers_contract() -> None:
    x = normal(5000)
    energy = np.mean(
        [np.square(x - roundtrip("randomk(ratio=0.1)", x, seed=s)).sum() for s in range(30)]
    )
    # Stich et al., 2018: (1 - k/n) of the energy is left over, in expectation.
    assert energy == pytest.approx(0.9 * np.square(x).sum(), rel=0.02)


@pytest.mark.parametrize("name", ["randomk", "randomblock"])
def test_only_floats_that_engines_add_are_summable(name: str) -> None:
    for values, dtype in [
        ("fp32", "f4"),
        ("fp16", "f2"),
        ("bf16", "u1"),
        ("int8", "u1"),
        ("sign", "u1"),
    ]:
        codec = get_codec(f"{name}(k=5,values={values})")
        assert ("summable" in codec.caps) == (dtype != "u1")
        assert codec.payload_dtype == np.dtype(dtype)
        assert "seeded" in codec.caps


@pytest.mark.parametrize("name", ["randomk", "randomblock"])
def test_scaled_estimates_are_refused_where_they_make_no_sense(name: str) -> None:
    with pytest.raises(SpecError, match="diverges"):
        parse(f"residual|{name}(k=5,unbiased=true)")
    with pytest.raises(SpecError, match="biased, which excludes unbiased=true"):
        get_codec(f"{name}(k=5,unbiased=true,values=sign)")
    parse(f"residual|{name}(k=5)")


# threshold ----------------------------------------------------------------------------------------


def test_threshold_is_strict_and_sends_what_is_not_finite() -> None:
    tau = np.float32(0.1)
    x = np.array([tau, -tau, np.nextafter(tau, 1), -1, 0, np.nan, -np.inf, 0.05], np.float32)
    kept = np.array([2, 3, 5, 6])
    np.testing.assert_array_equal(roundtrip("threshold(tau=0.1)", x), only(x, kept))
    np.testing.assert_array_equal(roundtrip("threshold(tau=0)", x), x)
    huge = np.array([3.4e38, np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(roundtrip("threshold(tau=1e300)", huge), only(huge, [1, 2]))


@pytest.mark.parametrize("coder", ["auto", "raw32", "bitmask", "elias_fano", "rice"])
def test_threshold_fits_its_bound_at_every_density(coder: str) -> None:
    codec = get_codec(f"threshold(tau=0.5)|{coder}")
    for n in (1, 9, 64, 513, 4000):
        for count in {0, 1, n // 3, n // 2, n // 2 + 1, n - 1, n}:
            for kept in (
                np.arange(count),
                n - 1 - np.arange(count),
                np.random.default_rng(n).permutation(n)[:count],
            ):
                x = np.zeros(n, np.float32)
                x[kept] = 1
                frame = codec.encode(x)
                assert frame.size <= codec.max_encoded_size(n)
                np.testing.assert_array_equal(codec.decode(frame), x)


# chunktopk ----------------------------------------------------------------------------------------


def chunktopk(x: np.ndarray, ratio: float, chunk: int) -> np.ndarray:
    chunks = -(-x.size // chunk)
    norms = [np.abs(x[c * chunk : (c + 1) * chunk].astype(np.float64)).sum() for c in range(chunks)]
    k = max(1, math.floor(ratio * chunks + 0.5))
    order = np.argsort(-np.array(norms), kind="stable")[:k]
    return only(x, np.flatnonzero(np.isin(np.arange(x.size) // chunk, order)))


@pytest.mark.parametrize("chunk", [1, 7, 256])
@pytest.mark.parametrize("n", [1, 255, 256, 257, 70_000])
def test_chunktopk_sends_whole_chunks(n: int, chunk: int) -> None:
    spec = f"chunktopk(ratio=0.3,chunk={chunk})"
    x = normal(n)
    np.testing.assert_array_equal(roundtrip(spec, x), chunktopk(x, 0.3, chunk))
    x[-1] = 1e6  # the last chunk, which may be short, is sent
    np.testing.assert_array_equal(roundtrip(spec, x), chunktopk(x, 0.3, chunk))
    same = np.ones(n, np.float32)
    np.testing.assert_array_equal(roundtrip(spec, same), chunktopk(same, 0.3, chunk))


def test_chunktopk_ranks_nan_above_inf() -> None:
    x = np.full(40, 1e30, np.float32)
    x[5], x[25] = np.inf, np.nan
    kept = roundtrip("chunktopk(ratio=0.25,chunk=10)", x)
    np.testing.assert_array_equal(kept, only(x, np.arange(20, 30)))


def test_chunktopk_refuses_a_wrong_shortfall() -> None:
    codec = get_codec("chunktopk(ratio=0.5,chunk=4)|raw32")
    x = np.array([0, 0, 0, 0, 1, 1], np.float32)
    payload = bytearray(codec.encode_payload(x))
    np.testing.assert_array_equal(codec.decode_payload(bytes(payload), 6), x)
    payload[8] = 0  # the first chunk instead, and it is not short
    with pytest.raises(WireError, match="short"):
        codec.decode_payload(bytes(payload), 6)


# sampled_topk -------------------------------------------------------------------------------------


def sampled_topk(
    x: np.ndarray,
    k: int,
    start: int | None,
    stride: int,
    *,
    sample_ratio: float = 0.01,
    upper: float = 1.3,
    lower: float = 0.8,
    iterations: int = 10,
    resample: bool = True,
    strided_sample: bool = True,
    seed: int = 0,
) -> tuple[np.ndarray, int]:
    """The indices that the algorithm keeps, and how many must be the least."""
    n = x.size
    keys = magnitudes(x)
    if start is None:
        return np.sort(np.argsort(-keys, kind="stable")[:k]), k
    rank = -(-(n // stride) * k // n)
    cap = magnitudes(np.array([np.finfo(np.float32).max]))[0]

    def bits(value: np.float32) -> int:
        return min(int(np.float32(value).view(np.uint32)), int(cap))

    sample = keys[start::stride]
    if not strided_sample:
        stream = decoder.draws(decoder.stream_key(seed, 0, 0), n // stride)
        sample = keys[[draw * n >> 64 for draw in stream]]
    threshold = min(int(np.sort(sample)[-rank]), int(cap))
    for i in range(iterations + 1):
        kept = np.flatnonzero(keys >= threshold)
        if kept.size > upper * k and resample:
            kept = np.sort(kept[np.argsort(-keys[kept], kind="stable")[:k]])
            break
        if i == iterations:
            break
        value = np.uint32(threshold).view(np.float32)
        if kept.size > upper * k:
            threshold = bits(value * np.float32(upper))
        elif kept.size < lower * k:
            threshold = bits(value * np.float32(lower))
        else:
            break
    return kept[:k], min(k, rank if strided_sample else 1) if resample else 0


def stride_of(n: int, k: int, sample_ratio: float = 0.01) -> int:
    least = max(math.ceil(n * sample_ratio), -(-2 * n // k))
    if sample_ratio >= 1 or n <= -(-2 * n // k):
        return 1
    stride = math.ceil(n / least / 32) * 32 + 1
    while n // stride < least:
        stride -= 8
    return stride


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"resample": False},
        {"upper": 1.0, "iterations": 3},
        {"resample": False, "upper": 1.1, "lower": 0.95},
        {"sample_ratio": 0.3},
        {"iterations": 0},
        {"strided_sample": False},
        {"strided_sample": False, "sample_ratio": 0.3, "resample": False},
    ],
)
@pytest.mark.parametrize("kind", ["gaussian", "heavy", "sparse", "equal", "nonfinite"])
def test_sampled_topk_follows_its_definition(kind: str, options: dict) -> None:
    names = {"upper": "upper_bound", "lower": "lower_bound", "iterations": "max_adaptation_iters"}
    text = "".join(f",{names.get(key, key)}={str(value).lower()}" for key, value in options.items())
    for n, k in [(50, 1), (300, 30), (5000, 100), (20_000, 20), (70_000, 700)]:
        x = normal(n, n)
        if kind == "heavy":
            x = x**7
        elif kind == "sparse":
            x[np.random.default_rng(1).random(n) < 0.97] = 0
        elif kind == "equal":
            x = np.sign(x)
        elif kind == "nonfinite":
            x[np.random.default_rng(1).random(n) < 0.2] = np.nan
            x[::11] = -np.inf
        stride = stride_of(n, k, options.get("sample_ratio", 0.01))
        codec = get_codec(f"sampled_topk(k={k}{text})")
        for seed in range(4):
            start = None if stride == 1 else first_draw(seed) * stride >> 64
            with np.errstate(over="ignore"):
                kept, least = sampled_topk(x, k, start, stride, **options, seed=seed)
            frame = codec.encode(x, seed=seed)
            np.testing.assert_array_equal(codec.decode(frame), only(x, kept))
            count = int.from_bytes(codec.encode_payload(x, seed=seed)[:4].tobytes(), "little")
            assert count == kept.size
            assert least <= count <= k
            assert inspect(frame).stream is None


# Published reference data -------------------------------------------------------------------------


def test_topk_is_graces() -> None:
    case, arrays = reference("grace-topk-01")
    for name in case["tensors"]:
        grads, indices = arrays[f"grad.{name}"], arrays[f"wire_indices.{name}"]
        for step, rank in np.ndindex(indices.shape[:2]):
            x = grads[step, rank].ravel()
            kept = indices[step, rank]
            decoded = roundtrip(f"topk(k={kept.size})", x)
            np.testing.assert_array_equal(np.flatnonzero(decoded), np.sort(kept))
            np.testing.assert_array_equal(decoded, arrays[f"decoded.{name}"][step, rank].ravel())


def test_topk_is_bytepss() -> None:
    case, arrays = reference("byteps-topk-01")
    codec = get_codec(f"topk(k={case['config']['effective_k']})")
    for step, rank in np.ndindex(arrays["packed_len"].shape):
        x = arrays["grad"][step, rank]
        decoded = codec.decode(codec.encode(x))
        np.testing.assert_array_equal(decoded, arrays["decoded"][step, rank])
        np.testing.assert_array_equal(x - decoded, arrays["fast_error"][step, rank])


def test_randomk_keeps_as_many_and_does_not_scale_as_grace() -> None:
    case, arrays = reference("grace-randomk-01")
    for name in case["tensors"]:
        for step, kept in enumerate(arrays[f"indices.{name}"]):
            codec = get_codec(f"randomk(k={kept.size})")
            for rank in range(case["world_size"]):
                x = arrays[f"grad.{name}"][step, rank].ravel()
                theirs = arrays[f"decoded.{name}"][step, rank].ravel()
                np.testing.assert_array_equal(theirs, only(x, kept))
                ours = codec.decode(codec.encode(x, step=step))
                np.testing.assert_array_equal(ours, only(x, np.flatnonzero(ours)))
                assert codec.encode_payload(x).size == kept.size


def test_threshold_is_graces() -> None:
    case, arrays = reference("grace-threshold-01")
    codec = get_codec(f"threshold(tau={case['config']['compressor']['threshold']})")
    for name in case["tensors"]:
        for step, rank in np.ndindex(arrays[f"count.{name}"].shape):
            x = arrays[f"grad.{name}"][step, rank].ravel()
            count = arrays[f"count.{name}"][step, rank]
            decoded = codec.decode(codec.encode(x))
            kept = arrays[f"wire_indices.{name}"][step, rank][:count]
            np.testing.assert_array_equal(np.flatnonzero(decoded), kept)
            np.testing.assert_array_equal(decoded, arrays[f"decoded.{name}"][step, rank].ravel())


@pytest.mark.parametrize("name", ["dgc-01", "dgc-02"])
def test_sampled_topk_selects_what_dgc_selects(name: str) -> None:
    """DGC's momentum correction is redone from the stored state; the codec must select the same."""
    case, arrays = reference(name)
    options, memory = case["config"]["compressor"], case["config"]["memory"]
    mu = np.float32(memory["momentum"])
    compared = 0
    for tensor, shape in case["tensors"].items():
        if len(shape) < 2:
            continue
        n = math.prod(shape)
        counts = arrays[f"count.{tensor}"]
        k = case["derived_attributes"][0]["attributes"][tensor]["num_selects"]
        stride = case["derived_attributes"][0]["attributes"][tensor]["sample_stride"]
        codec = get_codec(
            f"sampled_topk(k={k},sample_ratio={options['sample_ratio']},"
            f"upper_bound={options['compress_upper_bound']},"
            f"lower_bound={options['compress_lower_bound']},"
            f"max_adaptation_iters={options['max_adaptation_iters']},"
            f"resample={str(options['resample']).lower()})"
        )
        for step, rank in np.ndindex(counts.shape):
            g = arrays[f"grad.{tensor}"][step, rank].ravel()
            before = [
                arrays[f"{kind}.{tensor}"][step - 1, rank].ravel() if step else np.zeros_like(g)
                for kind in ("momentum", "velocity")
            ]
            if memory["nesterov"]:
                v = before[1] + (mu * (before[0] + g) + g)
            else:
                v = before[1] + (mu * before[0] + g)
            start = int(arrays[f"sample_start.{tensor}"][step, rank])
            seed = 0 if start < 0 else seed_with_start(start, stride)
            assert stride == stride_of(n, k, options["sample_ratio"])
            kept = np.flatnonzero(codec.decode(codec.encode(v, seed=seed)))
            count = counts[step, rank]
            theirs = arrays[f"indices.{tensor}"][step, rank][:count]
            np.testing.assert_array_equal(kept, np.sort(theirs))
            np.testing.assert_allclose(
                v[theirs], arrays[f"values.{tensor}"][step, rank][:count], rtol=1e-6, atol=1e-7
            )
            compared += 1
    assert compared >= 20
