"""PowerSGD: the reference's data, its laws, its state; see docs/algorithms/powersgd.md."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from powersgd_reference import LIBRARY, PAPER, initial_factors, library_spec, vectors

from gradcomp import Loopback, Pipeline, StateError, _core
from gradcomp.exchange.algorithms.powersgd import PowerSGD
from gradcomp.exchange.rounds import AllGather, AllReduce
from gradcomp.runtime.loopback import run_rounds
from support.gradients import own_streams
from support.pipelines import config_of
from support.reference import Array, reference


def matrix_shape(shape: list[int]) -> tuple[int, int]:
    return shape[0], int(np.prod(shape[1:]))


def inject(loop: Loopback, factors: dict[str, dict[str, Array]]) -> None:
    for pipeline in loop.ranks:
        pipeline.load_state_dict({**pipeline.state_dict(), **factors})


# ----------------------------------------------------------------------------- the reference's data


@pytest.mark.parametrize("orthogonalization", ["gram_schmidt", "qr", "cholesky"])
@pytest.mark.parametrize("case", LIBRARY)
def test_the_library_variant_is_the_reference_one(case: str, orthogonalization: str) -> None:
    about, arrays = reference(case)
    loop = Loopback(
        config_of(library_spec(about["config"], orthogonalization)), about["world_size"]
    )
    inject(loop, initial_factors(about, arrays))
    names = list(about["tensors"])
    # Where the reference normalises matrices of one shape together, ours is right instead; see
    # test_matrices_of_one_shape_do_not_disturb_each_other.
    if about["defect"]:
        assert about["config"]["groups"][0]["group_size"] > 1
        names = [*about["config"]["groups"][1]["tensors"], "bias"]
    # Case 05 was computed in float64.
    rtol = max(about["tolerance"]["rtol"], 1e-4)
    atol = max(about["tolerance"]["atol"], 1e-5)
    for step in range(about["steps"]):
        sent = [rank.stats.total_bytes for rank in loop.ranks]
        grads = {name: list(arrays[f"grad.{name}"][step]) for name in about["tensors"]}
        averages = loop.step(grads)
        for name in names:
            for rank, average in enumerate(averages[name]):
                expected = arrays[f"avg.{name}"][step]
                np.testing.assert_allclose(average, expected, rtol=rtol, atol=atol)
                residuals = loop.ranks[rank].state_dict()["residual"]
                residual = residuals.get(name, np.zeros(average.size, np.float32))
                np.testing.assert_allclose(
                    residual.reshape(average.shape),
                    arrays[f"residual.{name}"][step, rank],
                    rtol=rtol,
                    atol=atol,
                )
        if "floats_sent" in arrays:
            for before, rank in zip(sent, loop.ranks, strict=True):
                assert rank.stats.total_bytes - before == 4 * arrays["floats_sent"][step]


@pytest.mark.parametrize("case", [case for case in LIBRARY if reference(case)[0]["defect"]])
def test_matrices_of_one_shape_do_not_disturb_each_other(case: str) -> None:
    """Each matrix has the results that it has by itself, which the reference gets wrong."""
    about, arrays = reference(case)
    spec = library_spec(about["config"], "gram_schmidt")
    together = Loopback(config_of(spec), about["world_size"])
    factors = initial_factors(about, arrays)
    inject(together, factors)
    group = about["config"]["groups"][0]["tensors"]
    alone = {}
    for name in group:
        alone[name] = Loopback(config_of(spec), about["world_size"])
        inject(alone[name], {kind: {name: factors[kind][name]} for kind in factors})
    differs = False
    for step in range(about["steps"]):
        averages = together.step({name: list(arrays[f"grad.{name}"][step]) for name in group})
        for name in group:
            (expected, *_) = alone[name].step({name: list(arrays[f"grad.{name}"][step])})[name]
            np.testing.assert_array_equal(averages[name][0], expected)
            differs |= not np.allclose(expected, arrays[f"avg.{name}"][step], rtol=1e-2)
    assert differs


def paper_spec(config: dict[str, Any], orthogonalization: str) -> str:
    return (
        f"powersgd(rank={config['rank']},min_compression_rate=0,start_step=0,variant=paper,"
        f"warm_start={str(config['reuse_query']).lower()},orthogonalization={orthogonalization})"
    )


@pytest.mark.parametrize("orthogonalization", ["gram_schmidt", "qr", "cholesky"])
@pytest.mark.parametrize("case", PAPER)
def test_the_papers_variant_is_the_reference_one(
    case: str, orthogonalization: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    about, arrays = reference(case)
    config = about["config"]
    monkeypatch.setattr(  # the reference's draws instead of ours
        PowerSGD,
        "draw",
        lambda self, kind, one: vectors(
            arrays[f"q_draw.{0 if config['reuse_query'] else one.step}.{one.key.name}"]
        ),
    )
    loop = Loopback(config_of(paper_spec(config, orthogonalization)), about["world_size"])
    rtol, atol = about["tolerance"]["rtol"], about["tolerance"]["atol"]
    for step in range(about["steps"]):
        averages = loop.step(
            {name: list(arrays[f"grad.{name}"][step]) for name in about["tensors"]}
        )
        for name in about["tensors"]:
            for rank, average in enumerate(averages[name]):
                np.testing.assert_allclose(average, arrays[f"out.{name}"][step], rtol, atol)
                residuals = loop.ranks[rank].state_dict()["residual"]
                residual = residuals.get(name, np.zeros(average.size, np.float32))
                expected = arrays[f"memory.{name}"][step, rank]
                np.testing.assert_allclose(residual.reshape(average.shape), expected, rtol, atol)
        if orthogonalization != "qr":  # which has free signs
            state = loop.ranks[0].state_dict()
            for kind, buffer, side in (("powersgd_p", "p_state", 0), ("powersgd_q", "q_state", 1)):
                flat = []
                for name, rank in about["matrix_rank_per_tensor"].items():
                    n = matrix_shape(about["tensors"][name])[side]
                    flat.append(state[kind][name].reshape(rank, n).T.reshape(-1))
                np.testing.assert_allclose(
                    np.concatenate(flat), arrays[buffer][step], rtol=1e-3, atol=10 * atol
                )


# -------------------------------------------------------------------------------------------- laws

SHAPES = {"a": (24, 30), "conv": (8, 5, 3, 3), "tall": (60, 7)}
gradients = partial(own_streams, SHAPES)
VARIANTS = ["variant=library", "variant=library,iters_per_step=3", "variant=paper"]


def spec_of(params: str, rank: int = 2) -> str:
    return f"powersgd(rank={rank},start_step=0,min_compression_rate=0,{params})"


def residuals(loop: Loopback, name: str) -> list[Array]:
    return [pipeline.state_dict()["residual"][name] for pipeline in loop.ranks]


@pytest.mark.parametrize("values", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("params", VARIANTS)
def test_nothing_is_lost(params: str, values: str) -> None:
    """In the mean over ranks, averages and residuals are all that gradients were: losses of the
    wire format included, but for the sum of float16, which is rounded itself where the error is
    each rank's own."""
    ranks = 3
    loop = Loopback(config_of(spec_of(f"{params},values={values}")), ranks)
    applied = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    given = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    for step in range(7):
        grads = gradients(ranks, step)
        averages = loop.step(grads)
        for name in SHAPES:
            applied[name] += averages[name][0]
            given[name] += np.mean(grads[name], axis=0, dtype=np.float64)
    own_error = "library" in params and values == "fp16"
    for name, shape in SHAPES.items():
        left = np.mean(residuals(loop, name), axis=0, dtype=np.float64).reshape(shape)
        assert np.abs(left).max() > 0.05
        np.testing.assert_allclose(
            applied[name] + left, given[name], rtol=0, atol=0.05 if own_error else 1e-5
        )


@pytest.mark.parametrize("params", ["variant=library,iters_per_step=2", "variant=paper"])
def test_the_residual_of_the_paper_is_what_was_not_applied_and_that_of_the_library_its_own(
    params: str,
) -> None:
    ranks = 2
    loop = Loopback(config_of(spec_of(params)), ranks)
    grads = gradients(ranks, 0)
    averages = loop.step(grads)
    for name in SHAPES:
        for rank in range(ranks):
            average, residual = averages[name][rank], residuals(loop, name)[rank]
            error = np.abs(grads[name][rank] - average - residual.reshape(average.shape)).max()
            assert (error < 1e-5) == ("paper" in params)


@pytest.mark.parametrize("orthogonalization", ["gram_schmidt", "qr", "cholesky"])
@pytest.mark.parametrize("rank", [3, 4, 7])
@pytest.mark.parametrize("variant", ["library", "paper"])
def test_exact_where_the_rank_suffices(variant: str, rank: int, orthogonalization: str) -> None:
    """A mean gradient of rank 3 is exact as soon as the factor spans it: the paper's at once, the
    library's in the second half, and a random one never lies in the way."""
    iterations = 2 if variant == "library" else 1
    spec = spec_of(
        f"variant={variant},iters_per_step={iterations},orthogonalization={orthogonalization}",
        rank,
    )
    loop = Loopback(config_of(spec), 2)
    rng = np.random.default_rng(5)
    left, right = rng.standard_normal((40, 3)), rng.standard_normal((3, 25))
    for _ in range(3):
        grads = [left @ np.diag(rng.standard_normal(3)) @ right for _ in range(2)]
        grads = [grad.astype(np.float32) for grad in grads]
        average = loop.step({"w": grads})["w"][0]
        mean = np.mean(grads, axis=0)
        scale = np.abs(mean).max()
        np.testing.assert_allclose(average, mean, rtol=0, atol=2e-5 * scale)
    left = residuals(loop, "w")
    assert np.abs(np.mean(left, axis=0)).max() < 1e-4 * scale
    # The paper's ranks keep by how much their gradients differ from the average.
    assert (np.abs(left).max() < 1e-4 * scale) == (variant == "library")


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("level", _core.simd_levels())
@pytest.mark.parametrize(
    "params",
    [*VARIANTS, "variant=library,values=fp16", "variant=paper,values=bf16", "warm_start=false"],
)
def test_the_same_bits_on_all_ranks_levels_and_threads(
    params: str, level: str, threads: int
) -> None:
    assert results(params, level, threads) == results(params, "scalar", 1)


def results(params: str, level: str, threads: int) -> bytes:
    _core.set_simd_level(level)
    _core.set_thread_count(threads)
    loop = Loopback(config_of(spec_of(params)), 3)
    shapes = {**SHAPES, "large": (300, 301)}
    found = []
    for step in range(3):
        for of_ranks in loop.step(own_streams(shapes, 3, step)).values():
            assert len({average.tobytes() for average in of_ranks}) == 1
            found.append(of_ranks[0].tobytes())
    for name in shapes:
        found += [one.tobytes() for one in residuals(loop, name)]
    return b"".join(found)


@pytest.mark.parametrize("orthogonalization", ["gram_schmidt", "qr", "cholesky"])
@pytest.mark.parametrize("variant", ["library", "paper"])
@pytest.mark.parametrize("rank", [1, 2])
def test_a_gradient_of_zeros_moves_nothing_and_later_ones_are_sent(
    rank: int, variant: str, orthogonalization: str
) -> None:
    """Products with factors of zeros, or with the unit vectors of their bases, might be 0 in all steps."""
    spec = f"powersgd(rank={rank},start_step=0,variant={variant},orthogonalization={orthogonalization})"
    loop = Loopback(config_of(spec), 2)
    zeros = np.zeros((80, 60), np.float32)
    for _ in range(2):
        assert not loop.step({"w": [zeros] * 2})["w"][0].any()
    grad = zeros.copy()
    grad[50, 40] = 1
    sent = sum(loop.step({"w": [grad] * 2})["w"][0] for _ in range(6))
    np.testing.assert_allclose(sent, 6 * grad, atol=0.1)
    for of_rank in residuals(loop, "w"):
        np.testing.assert_allclose(sent.reshape(-1) + of_rank, 6 * grad.reshape(-1), atol=1e-5)


def test_errors_shrink_with_the_rank_and_power_iterations_help() -> None:
    def error(params: str, rank: int) -> float:
        loop = Loopback(config_of(spec_of(params, rank)), 2)
        grads = own_streams({"a": (24, 30)}, 2, 0)
        average = loop.step(grads)["a"][0]
        return float(np.linalg.norm(average - np.mean(grads["a"], axis=0)))

    exact = own_streams({"a": (24, 30)}, 2, 0)["a"]
    values = np.linalg.svd(np.mean(exact, axis=0, dtype=np.float64), compute_uv=False)
    for rank in (1, 4, 12):
        best = float(np.linalg.norm(values[rank:]))
        once = error("variant=paper", rank)
        often = error("variant=paper,iters_per_step=30", rank)
        assert best * 0.9999 < often < 1.02 * best
        assert often < once
    assert error("variant=paper", 12) < error("variant=paper", 4) < error("variant=paper", 1)


# ------------------------------------------------------------------------- tensors that stay dense


@pytest.mark.parametrize(
    ("shape", "params", "taken"),
    [
        ((64,), "rank=1", False),
        ((), "rank=1", False),
        ((0, 5), "rank=1", False),
        ((64, 64), "rank=1", True),
        # 64 * 64 / (2 * 128 / 2) = 32: of two factors, one travels in a step.
        ((64, 64), "rank=2,min_compression_rate=31,variant=library", True),
        ((64, 64), "rank=2,min_compression_rate=32,variant=library", False),
        ((64, 64), "rank=2,min_compression_rate=15,variant=paper", True),
        ((64, 64), "rank=2,min_compression_rate=16,variant=paper", False),
        ((64, 64), "rank=2,min_compression_rate=16,iters_per_step=2,variant=library", False),
        ((64, 64), "rank=2,min_compression_rate=63,values=fp16,variant=library", True),
        ((64, 64), "rank=2,min_compression_rate=64,values=bf16,variant=library", False),
        # A matrix of 64 x 576, not four sizes of which 3 x 3 cost nothing: 57.6 times.
        ((64, 64, 3, 3), "rank=2,min_compression_rate=57.5,variant=library", True),
        ((64, 64, 3, 3), "rank=2,min_compression_rate=57.7,variant=library", False),
        # The rank is limited by the smaller side: 3 * 1000 / (3 * 1003 / 2) < 2.
        ((3, 1000), "rank=8,min_compression_rate=1.99,variant=library", True),
        ((3, 1000), "rank=8,min_compression_rate=2,variant=library", False),
    ],
)
def test_matrices_that_shrink_are_compressed(
    shape: tuple[int, ...], params: str, taken: bool
) -> None:
    pipeline = Pipeline(config_of(f"powersgd(start_step=0,{params})"))
    assert pipeline.sends_dense(pipeline.resolve("w", shape)) is not taken
    grad = np.ones(shape, np.float32)
    loop = Loopback(config_of(f"powersgd(start_step=0,{params})"), 1)
    for _ in range(2):
        np.testing.assert_array_equal(loop.step({"w": [grad]})["w"][0].shape, shape)
    dense, sent = loop.stats[0].dense_bytes, loop.stats[0].total_bytes
    assert (sent < dense) is taken


@pytest.mark.parametrize("variant", ["library", "paper"])
def test_the_first_steps_are_dense(variant: str) -> None:
    spec = f"powersgd(rank=2,start_step=2,variant={variant})"
    loop = Loopback(config_of(spec), 2)
    shapes = {"a": (24, 30), "b": (30, 24)}
    for step in range(4):
        grads = own_streams(shapes, 2, step)
        averages = loop.step(grads)
        for name in shapes:
            exact = np.mean(grads[name], axis=0, dtype=np.float32)
            assert np.array_equal(averages[name][0], exact) == (step < 2)
        assert (loop.ranks[0].state_dict()["residual"] == {}) == (step < 2)


def test_all_factors_of_a_step_are_one_request() -> None:
    for params, count in [("variant=library", 1), ("variant=paper", 2), ("iters_per_step=3", 6)]:
        pipeline = Pipeline(config_of(spec_of(params)))
        (bucket,) = pipeline.buckets(pipeline.resolve_all(SHAPES))
        assert sorted(bucket) == sorted(SHAPES)
        grads = {name: gradients(1, 0)[name][0] for name in bucket}
        requests = requests_of(pipeline.bucket_round("x", grads))
        assert len(requests) == count == len({request.name for request in requests})
        assert all(isinstance(request, AllReduce) for request in requests)


@pytest.mark.parametrize("variant", ["library", "paper"])
def test_averages_do_not_depend_on_buckets(variant: str) -> None:
    spec = f"powersgd(rank=2,start_step=1,min_compression_rate=0.1,variant={variant})"
    runs = []
    for size in (0, 2000, 2**30):
        loop = Loopback(config_of(spec, bucket_bytes=size), 3)
        runs.append([loop.step(gradients(3, step)) for step in range(4)])
        counts = {0: len(SHAPES), 2**30: 1}
        buckets = loop.ranks[0].buckets(loop.ranks[0].resolve_all(SHAPES))
        assert sorted(name for names in buckets for name in names) == sorted(SHAPES)
        assert 1 <= len(buckets) <= len(SHAPES)
        assert len(buckets) == counts.get(size, len(buckets))
    for other in runs[1:]:
        for step, expected in zip(other, runs[0], strict=True):
            for name in SHAPES:
                assert step[name][0].tobytes() == expected[name][0].tobytes()


def test_a_bucket_with_late_members_is_dense_for_these_alone() -> None:
    """A tensor that had no gradient in some steps is behind the others."""
    pipeline = Pipeline(config_of("powersgd(rank=2,start_step=1)"))
    a, b = (gradients(1, 0)[name][0] for name in ("a", "conv"))
    run_rounds([pipeline.bucket_round("a", {"a": a})])
    averages = run_rounds([pipeline.bucket_round("x", {"a": a, "conv": b})])[0]
    assert not np.array_equal(averages[0], a.reshape(-1))
    assert np.array_equal(averages[1], b.reshape(-1))


def test_values_choose_the_request() -> None:
    for values, kind, dtype in [
        ("fp32", AllReduce, np.float32),
        ("fp16", AllReduce, np.float16),
        ("bf16", AllGather, np.uint8),
    ]:
        pipeline = Pipeline(config_of(spec_of(f"values={values},variant=library")))
        (request,) = requests_of(pipeline.round("a", gradients(1, 0)["a"][0]))
        assert isinstance(request, kind)
        array = request.array if isinstance(request, AllReduce) else request.frame
        assert array.dtype == dtype


def requests_of(round_: Any) -> list[Any]:
    """All requests of a round with one rank."""
    found = []
    try:
        request = next(round_)
        while True:
            found.append(request)
            reply = request.array if isinstance(request, AllReduce) else [request.frame]
            request = round_.send(reply)
    except StopIteration:
        return found


# -------------------------------------------------------------------------------- state and faults


@pytest.mark.parametrize("params", [*VARIANTS, "warm_start=false", "values=fp16"])
@pytest.mark.parametrize("cut", [1, 2])
def test_a_resumed_run_continues_bit_for_bit(params: str, cut: int) -> None:
    config = config_of(spec_of(params), seed=9)
    whole, first = Loopback(config, 2), Loopback(config, 2)
    expected = [whole.step(gradients(2, step)) for step in range(5)]
    for step in range(cut):
        first.step(gradients(2, step))
    second = Loopback(config, 2)
    for old, new in zip(first.ranks, second.ranks, strict=True):
        new.load_state_dict(old.state_dict())
    for step in range(cut, 5):
        averages = second.step(gradients(2, step))
        for name in SHAPES:
            assert averages[name][1].tobytes() == expected[step][name][1].tobytes()


def test_another_world_size_keeps_the_factors_and_the_mean_of_the_residuals() -> None:
    old = Loopback(config_of(spec_of("variant=paper")), 3)
    old.step(gradients(3, 0))
    states = [pipeline.state_dict() for pipeline in old.ranks]
    (pipeline,) = Loopback(config_of(spec_of("variant=paper")), 1).ranks
    pipeline.load_state_dict(states)
    state = pipeline.state_dict()
    for kind in ("powersgd_p", "powersgd_q"):
        for name in SHAPES:
            np.testing.assert_array_equal(state[kind][name], states[2][kind][name])
    mean = np.mean([one["residual"]["a"] for one in states], axis=0)
    np.testing.assert_allclose(state["residual"]["a"], mean, rtol=1e-6, atol=1e-6)
    states[1]["powersgd_p"]["a"][0] += 1
    with pytest.raises(StateError, match="the ranks' powersgd_p of 'a' differ"):
        pipeline.load_state_dict(states)


def test_the_state_has_vectors_one_after_the_other() -> None:
    loop = Loopback(config_of(spec_of("variant=paper", 3)), 2)
    grads = gradients(2, 0)
    averages = loop.step(grads)
    state = loop.ranks[1].state_dict()
    p = state["powersgd_p"]["a"].reshape(3, 24)
    q = state["powersgd_q"]["a"].reshape(3, 30)
    np.testing.assert_allclose(p @ p.T, np.eye(3), atol=1e-6)
    np.testing.assert_allclose(averages["a"][1], p.T @ q, atol=1e-5)


def test_factors_of_another_model_are_refused() -> None:
    loops = [Loopback(config_of(spec_of("variant=paper")), 1) for _ in range(2)]
    first, second = loops
    first.step(gradients(1, 0))
    state = first.ranks[0].state_dict()
    state["powersgd_q"] = {name: value[:-1] for name, value in state["powersgd_q"].items()}
    second.ranks[0].load_state_dict(state)
    with pytest.raises(StateError, match=r"powersgd_q of '\w+' has \d+ elements instead of"):
        second.step(gradients(1, 1))


def test_initial_factors_depend_on_seed_name_and_side_alone() -> None:
    def factors(seed: int, params: str = "variant=paper") -> dict[str, bytes]:
        pipeline = Pipeline(config_of(spec_of(params), seed))
        grads = {name: np.zeros((20, 20), np.float32) for name in ("a", "b")}
        run_rounds([pipeline.bucket_round("x", grads)])
        kind = "powersgd_p" if "library" in params else "powersgd_q"
        return {name: pipeline.state_dict()[kind][name].tobytes() for name in grads}

    # The library's P was only made orthonormal, so the draw still shows.
    library = factors(0, "variant=library")
    assert library["a"] != library["b"]
    assert library == factors(0, "variant=library")
    assert library["a"] != factors(1, "variant=library")["a"]


@pytest.mark.parametrize("params", VARIANTS)
def test_zero_gradients_do_no_lasting_harm(params: str) -> None:
    loop = Loopback(config_of(spec_of(params)), 2)
    zeros = {name: [np.zeros(shape, np.float32)] * 2 for name, shape in SHAPES.items()}
    for _ in range(2):
        for of_ranks in loop.step(zeros).values():
            assert not of_ranks[0].any()
    grads = gradients(2, 0)
    for _ in range(40):  # the same gradient again and again: error feedback sends all of it
        averages = loop.step(grads)
    for name in SHAPES:
        assert np.abs(averages[name][0]).max() > 0.1


@pytest.mark.parametrize("values", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("params", VARIANTS)
def test_what_is_not_finite_shows_everywhere_and_never_stays(
    params: str, bad: float, values: str
) -> None:
    loop = Loopback(config_of(spec_of(f"{params},values={values}")), 2)
    loop.step(gradients(2, 0))
    grads = gradients(2, 1)
    grads["a"][1][3, 5] = bad
    averages = loop.step(grads)
    if not np.isfinite(bad):
        for average in averages["a"]:
            assert not np.isfinite(average[3]).all()
    for name in ("conv", "tall"):
        assert np.isfinite(averages[name][0]).all(), "other tensors are not concerned"
    for pipeline in loop.ranks:
        state = pipeline.state_dict()
        for kind in ("residual", "powersgd_p", "powersgd_q"):
            for array in state[kind].values():
                assert np.isfinite(array).all()
    if not np.isfinite(bad):
        for step in range(2, 4):
            for average in loop.step(gradients(2, step))["a"]:
                assert np.isfinite(average).all()


@pytest.mark.parametrize("huge", [3e38, -1e38, 1e30])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(
    "params", [*VARIANTS, "warm_start=false", "variant=library,warm_start=false"]
)
def test_a_huge_gradient_is_forgotten_in_its_own_step(
    params: str, whole: bool, huge: float
) -> None:
    loop = Loopback(config_of(spec_of(params)), 2)
    for step in range(8):
        grads = gradients(2, step)
        if step == 2:
            for grad in grads["a"]:
                if whole:
                    grad *= np.float32(huge) / np.abs(grad).max()
                else:
                    grad[3, 5] = huge
        first, second = loop.step(grads)["a"]
        np.testing.assert_array_equal(first, second)
        for pipeline in loop.ranks:
            state = pipeline.state_dict()
            for kind in ("residual", "powersgd_p", "powersgd_q"):
                assert all(np.isfinite(array).all() for array in state[kind].values())
            assert np.abs(state["residual"]["a"]).max() < 30
        if step != 2:  # where the average may be Inf: the sum of both ranks
            assert np.abs(first).max() < 30


# ------------------------------------------------------------------------- one matrix for a bucket

BATCHED = ("batched=true", "batched=true,variant=library", "batched=true,lr=scale,values=fp16")


def batched_gradients(step: int, missing: str = "") -> dict[str, list[Array]]:
    """Of two ranks; the bucket has 62 elements, 2 below a square, unless a tensor is missing."""
    shapes = {"w": (6, 7), "conv": (2, 3, 2), "b": (7,), "scalar": ()}
    rng = np.random.default_rng(step)
    return {
        name: [np.asarray(rng.standard_normal(shape), np.float32) for _ in range(2)]
        for name, shape in shapes.items()
        if name != missing
    }


@pytest.mark.parametrize("params", BATCHED)
def test_nothing_of_a_bucket_is_lost(params: str) -> None:
    """Also where the bucket becomes another one, and later the old one."""
    loop = Loopback(config_of(f"powersgd(rank=2,start_step=1,{params})"), 2)
    for rank in loop.ranks:
        rank.set_lr(0.1)
    given: dict[str, Any] = dict.fromkeys(batched_gradients(0), 0.0)
    applied = dict(given)
    for step in range(7):
        grads = batched_gradients(step, "b" if step == 3 else "")
        for name, (first, second) in loop.step(grads).items():
            given[name] += np.mean(grads[name], axis=0, dtype=np.float64)
            np.testing.assert_array_equal(first, second)
            assert first.shape == grads[name][0].shape
            applied[name] += first
    for name, total in given.items():
        rest = np.mean([rank.state_dict()["residual"][name] for rank in loop.ranks], axis=0)
        np.testing.assert_allclose(applied[name].reshape(-1) + rest, total.reshape(-1), atol=2e-3)
    for kind in ("powersgd_p", "powersgd_q"):
        assert {array.size for array in loop.ranks[0].state_dict()[kind].values()} <= {16, 14}


def test_a_bucket_costs_two_factors_of_a_square() -> None:
    loop = Loopback(config_of("powersgd(rank=2,start_step=0,batched=true)"), 2)
    loop.step(batched_gradients(0))
    assert loop.ranks[0].stats.total_bytes == 4 * 2 * 2 * 8


def test_a_bucket_of_full_rank_is_exact() -> None:
    loop = Loopback(config_of("powersgd(rank=8,start_step=0,batched=true)"), 2)
    grads = batched_gradients(0)
    for name, averages in loop.step(grads).items():
        np.testing.assert_allclose(averages[0], np.mean(grads[name], axis=0), atol=1e-5)


@pytest.mark.parametrize("spec", ["powersgd(rank=1,start_step=0,{})", "ef21|powersgd(rank=1,{})"])
@pytest.mark.parametrize("params", BATCHED[:2])
def test_a_bucket_resumes_bit_for_bit(params: str, spec: str) -> None:
    config = config_of(spec.format(params))
    loop, again = Loopback(config, 2), Loopback(config, 2)
    for step in range(3):
        loop.step(batched_gradients(step))
    for pipeline, loaded in zip(loop.ranks, again.ranks, strict=True):
        loaded.load_state_dict(pipeline.state_dict())
    for step in range(3, 6):
        expected = loop.step(batched_gradients(step))
        for name, averages in again.step(batched_gradients(step)).items():
            np.testing.assert_array_equal(averages[0], expected[name][0])


def test_a_value_that_is_not_finite_leaves_the_bucket() -> None:
    loop = Loopback(config_of("powersgd(rank=2,start_step=0,batched=true)"), 2)
    for step in range(3):
        grads = batched_gradients(step)
        if step == 1:
            grads["w"][1][2, 3] = np.nan
        averages = loop.step(grads)
        finite = all(np.isfinite(average).all() for pair in averages.values() for average in pair)
        assert finite == (step != 1)


def test_factors_of_a_bucket_are_not_those_of_a_tensor() -> None:
    schedule = [
        {"use": "powersgd(rank=2,start_step=0,batched=true)"},
        {"use": "powersgd(rank=2,start_step=0)", "from_step": 2},
    ]
    loop = Loopback(config_of(schedule), 2)
    for step in range(4):
        loop.step(batched_gradients(step))
    sizes = {n: p.size for n, p in loop.ranks[0].state_dict()["powersgd_p"].items()}
    assert sizes.get("w", 12) == 12
    assert "scalar" not in sizes
