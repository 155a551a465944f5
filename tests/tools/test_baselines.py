"""The baselines of gradcomp bench --all: they are loaded, and do what their names say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from gradcomp import get_codec, list_codecs
from gradcomp.errors import GradcompError
from gradcomp.tools.baselines import Baseline, load_baselines
from gradcomp.tools.bench import vnmse

FILE = Path(__file__).resolve().parents[2] / "benchmarks" / "torch_baselines.py"
BASELINES: dict[str, Baseline] = {
    baseline.name.removeprefix("torch ").partition("(")[0]: baseline
    for baseline in load_baselines(FILE)
}


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(0).standard_normal(100_003, np.float32)


@pytest.fixture(autouse=True)
def _seeded_torch() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def decoded(name: str, x: np.ndarray) -> np.ndarray:
    y = BASELINES[name].decode(BASELINES[name].encode(x), x.size)
    assert y.dtype == np.float32
    assert y.shape == x.shape
    return y


def bits(name: str, x: np.ndarray) -> float:
    return 8 * sum(part.nbytes for part in BASELINES[name].encode(x)) / x.size


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "cannot be loaded: .*No such file"),
        ("import no_such_module", "cannot be loaded: No module named 'no_such_module'"),
        ("x = 3", "has no BASELINES"),
    ],
)
def test_a_file_without_baselines_is_refused(tmp_path: Path, text: str | None, reason: str) -> None:
    path = tmp_path / "other.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(GradcompError, match=f"other.py.* {reason}"):
        load_baselines(path)


def test_counterparts_are_codecs() -> None:
    counterparts = [one.codec for one in BASELINES.values() if one.codec]
    assert counterparts == ["topk", "qsgd", "terngrad", "onebit"]
    assert set(counterparts) <= set(list_codecs())


@pytest.mark.parametrize("name", BASELINES)
def test_baselines_leave_their_input_alone(name: str, x: np.ndarray) -> None:
    before = x.copy()
    decoded(name, x)
    np.testing.assert_array_equal(x, before)


def test_topk_sends_what_ours_sends(x: np.ndarray) -> None:
    ours = get_codec("topk(k=1000)")
    np.testing.assert_array_equal(decoded("topk", x), ours.decode(ours.encode(x)))
    assert bits("topk", x) == 1000 * (32 + 64) / x.size


def test_onebit_decodes_to_two_means(x: np.ndarray) -> None:
    ours = get_codec("onebit")
    np.testing.assert_allclose(decoded("onebit", x), ours.decode(ours.encode(x)), rtol=1e-5)
    assert bits("onebit", x) == pytest.approx(8, rel=1e-3)
    np.testing.assert_array_equal(decoded("onebit", np.full(8, 3, np.float32)), 3)


def test_qsgd_is_unbiased(x: np.ndarray) -> None:
    norm = float(np.linalg.norm(x))
    levels = BASELINES["qsgd"].encode(x)[0].numpy()
    exact = 127 * x / norm
    assert np.all(np.abs(levels - exact) < 1 + 1e-5)
    mean = np.mean([decoded("qsgd", x) for _ in range(200)], axis=0)
    assert vnmse(x, mean) == pytest.approx(vnmse(x, decoded("qsgd", x)) / 200, rel=0.1)
    assert bits("qsgd", x) == pytest.approx(8, rel=1e-3)


def test_terngrad_is_unbiased_but_for_the_cut(x: np.ndarray) -> None:
    bound = 2.5 * x.std()
    np.testing.assert_allclose(np.unique(decoded("terngrad", x)), [-bound, 0, bound], rtol=1e-5)
    mean = np.mean([decoded("terngrad", x) for _ in range(200)], axis=0)
    cut = np.clip(x, -bound, bound)
    assert vnmse(cut, mean) == pytest.approx(vnmse(cut, decoded("terngrad", x)) / 200, rel=0.1)
    assert bits("terngrad", x) == pytest.approx(8, rel=1e-3)


def test_quantizers_send_256_levels_with_zero_among_them(x: np.ndarray) -> None:
    shifted = x + 2  # the two ends are not alike
    step = (shifted.max() - shifted.min()) / 255
    error = np.abs(shifted - decoded("quantization_pertensor", shifted))
    assert step * 0.45 < error.max() < step * 0.51
    buckets = [shifted[start : start + 512] for start in range(0, x.size, 512)]
    decoded_buckets = decoded("quantization_perchannel", shifted)
    for place, bucket in enumerate(buckets):
        widest = max(bucket.max(), 0) - min(bucket.min(), 0)
        own = decoded_buckets[512 * place : 512 * place + bucket.size]
        assert np.abs(bucket - own).max() < widest / 255 * 1.01
    for name in ("quantization_pertensor", "quantization_perchannel"):
        np.testing.assert_array_equal(decoded(name, np.zeros(1000, np.float32)), 0)
        positive = np.linspace(1, 2, 1000, dtype=np.float32)
        np.testing.assert_allclose(decoded(name, positive), positive, atol=1.01 / 255)
    assert bits("quantization_pertensor", x) == pytest.approx(8, rel=1e-3)
    assert bits("quantization_perchannel", x) == pytest.approx(8 * 520 / 512, rel=1e-2)
