"""sketch: a linear table, unbiased estimates, heavy elements, and error feedback of many ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradcomp
from gradcomp import Loopback, SpecError
from gradcomp.codec.spec import parse
from support.gradients import LAWS, finite, sample
from support.pipelines import config_of

N = 3000


def estimates(spec: str, x: np.ndarray, trials: int) -> np.ndarray:
    """Decodes over many streams, [trials, n]."""
    codec = gradcomp.get_codec(spec)
    return np.array(
        [codec.decode(codec.encode(x, step=step)) for step in range(trials)], np.float64
    )


@pytest.mark.parametrize("rows", [1, 3, 5])
@LAWS
@given(data=st.data())
def test_the_table_is_linear(rows: int, data: st.DataObject) -> None:
    codec = gradcomp.get_codec(f"sketch(ratio=0.3,rows={rows})")
    seed = data.draw(st.integers(0, 2**32))
    x, y = np.random.default_rng(seed).normal(size=(2, 700)).astype(np.float32)
    call = {"seed": seed, "step": 5}
    of_sum = codec.encode_payload(x + y, **call)
    sum_of = codec.encode_payload(x, **call) + codec.encode_payload(y, **call)
    assert of_sum.size < 700
    # Below 700 elements in a cell; each sum of float32 rounds once per element.
    np.testing.assert_allclose(sum_of, of_sum, rtol=0, atol=1e-4)
    np.testing.assert_array_equal(
        codec.encode_payload(4 * x, **call) * np.float32(0.25), codec.encode_payload(x, **call)
    )


@pytest.mark.parametrize("rows", [1, 3])
def test_an_element_is_in_one_cell_of_each_row(rows: int) -> None:
    codec = gradcomp.get_codec(f"sketch(ratio=0.2,rows={rows},unbiased=true)")
    places = set()
    for index in (0, 1, 31, 32, N - 1):
        x = np.zeros(N, np.float32)
        x[index] = -7
        table = codec.encode_payload(x, seed=9)
        assert (np.abs(table.reshape(rows, -1)).sum(axis=1) == 7).all()
        assert codec.decode_payload(table, N, seed=9)[index] == -7
        places.add(int(np.flatnonzero(table)[0]))
    assert len(places) == 5


@pytest.mark.parametrize("rows", [1, 3, 5])
def test_estimates_are_unbiased_over_streams(rows: int) -> None:
    trials = 600
    x = (sample("gaussian", N) ** 3).astype(np.float32)
    found = estimates(f"sketch(ratio=0.2,rows={rows},unbiased=true)", x, trials)
    deviation = found.std(axis=0) / np.sqrt(trials)
    z = (found.mean(axis=0) - x) / deviation
    assert abs(z.mean()) < 0.2
    assert abs(np.sqrt(np.mean(z**2)) - 1) < 0.15
    assert np.abs(z).max() < 6


def test_the_variance_of_one_row_is_the_energy_by_the_number_of_cells() -> None:
    x = sample("gaussian", N)
    found = estimates("sketch(ratio=0.1,rows=1,unbiased=true)", x, 400)
    variance = np.mean((found - x) ** 2)
    # Elements of the same run never share a cell.
    expected = np.sum(x.astype(np.float64) ** 2) * (1 - 32 / N) / 300
    assert variance == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("kind", ["gaussian", "laplace", "sparse", "constant"])
@pytest.mark.parametrize(
    "spec", ["ratio=0.05", "ratio=0.3", "ratio=0.3,rows=1", "ratio=0.1,rows=5"]
)
def test_it_contracts_on_average(spec: str, kind: str) -> None:
    x = sample(kind, N).astype(np.float64)
    found = estimates(f"sketch({spec})", x.astype(np.float32), 50)
    ratio = float(spec.split("=")[1].split(",")[0])
    error = np.mean(np.sum((found - x) ** 2, axis=1)) / np.sum(x**2)
    assert error < 1 - ratio / 6


def test_heavy_elements_are_recovered() -> None:
    x = 1e-3 * sample("gaussian", 50_000)
    heavy = np.arange(0, x.size, 5000)
    x[heavy] += np.where(heavy % 10_000 == 0, 1, -1)
    for step in range(20):
        codec = gradcomp.get_codec("sketch(ratio=0.1,rows=5)")
        decoded = codec.decode(codec.encode(x, step=step))
        recovered = np.abs(decoded - x) < 0.02
        # One that shares a cell with another waits for the next step; where most rows of an element
        # are hit by heavy ones, it seems to be heavy.
        assert np.sum(~recovered[heavy]) <= 2
        assert np.sum(~recovered) <= 3


def test_small_tensors_travel_as_they_are() -> None:
    codec = gradcomp.get_codec("sketch(ratio=0.01)")
    for n in (0, 1, 96):
        x = sample("any bits", n)
        assert codec.encode_payload(x).tobytes() == x.tobytes()
    assert codec.encode_payload(sample("gaussian", 97)).size == 96


@LAWS
@given(x=finite(1.0, 400), index=st.integers(0, 10**6), value=st.sampled_from([np.nan, np.inf]))
def test_a_fault_reaches_the_receivers(x: np.ndarray, index: int, value: float) -> None:
    if x.size == 0:
        return
    x[index % x.size] = value
    for spec in ("sketch(ratio=0.1)", "sketch(ratio=0.1,rows=1,unbiased=true)"):
        codec = gradcomp.get_codec(spec)
        decoded = codec.decode(codec.encode(x, step=index))
        assert not np.isfinite(decoded[index % x.size])
    assert np.isfinite(decoded[np.isfinite(x)]).sum() >= x.size - np.ceil(x.size / 32) - 1


@pytest.mark.parametrize("rows", [1, 3])
def test_what_ranks_do_not_send_stays_in_the_mean_of_their_residuals(rows: int) -> None:
    ranks, steps = 4, 60
    rng = np.random.default_rng(0)
    loop = Loopback(config_of(f"residual|sketch(ratio=0.4,rows={rows})"), world_size=ranks)
    base = rng.standard_t(2, size=N)
    sent, total = np.zeros(N), np.zeros(N)
    sizes = []
    for _ in range(steps):
        grads = (base + rng.normal(size=(ranks, N))).astype(np.float32)
        sent += loop.step({"w": list(grads)})["w"][0]
        total += grads.astype(np.float64).mean(axis=0)
        sizes.append(np.linalg.norm(total - sent) / np.linalg.norm(base))
    kept = np.mean([one.state_dict()["residual"]["w"] for one in loop.ranks], axis=0)
    np.testing.assert_allclose(sent + kept, total, atol=1e-3)
    # The error stays bounded: it does not grow with the number of steps.
    assert sizes[-1] < 1.5 * sizes[len(sizes) // 2]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("sketch(ratio=0.1,rows=2)", "odd"),
        ("residual|sketch(ratio=0.1,unbiased=true)", "diverges"),
        ("sketch(ratio=0)", "ratio"),
    ],
)
def test_what_makes_no_sense_is_refused(spec: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse(spec)
