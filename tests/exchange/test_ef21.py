"""EF21 and EF21-SGDM: the papers' algorithms, the laws of their estimates, and their state."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import numpy as np
import pytest

import gradcomp
from gradcomp import Config, ConfigError, Loopback, Pipeline, SpecError
from gradcomp.adapter_api import common_state, moved, resized, take_common_state
from gradcomp.codec.arrays import FloatArray
from gradcomp.codec.spec import parse
from gradcomp.exchange.patterns.single_rank import Alone
from gradcomp.runtime.loopback import run_rounds
from gradcomp.runtime.policy.decision import alternatives
from support.pipelines import config_of, send

SHAPE = (24, 20)
TOPK = "topk(ratio=0.1)"
CODECS = [
    "bf16",
    "lossless",
    TOPK,
    "topk(ratio=0.1,values=int8)",
    "randomk(ratio=0.1)",
    "globaltopk(ratio=0.1)",
    "sampled_topk(ratio=0.1)",
    "chunktopk(ratio=0.1)",
    "blocktopk(k=410)",
    "randomblock(ratio=0.1)",
    "adaq(ratio=0.1)",
    "threshold(tau=1e-6)",
    "sign",
    "onebit",
    "terngrad(clip=0)",
    "natural",
    "int8",
    "int4",
    "fp8",
    "blockwise8",
    "qsgd",
    "dither",
    "uniform(bits=4)",
    "rotate|uniform(bits=4)",
    "inceptionn",
    "eden(bits=2)",
    "drive",
    "polar",
    "polar_b",
    "polar_ec",
    "adaptive(rate=0.5)",
    "adaptive(rate=0.5,preset=basis)",
]
SUMMED = [
    "identity",
    "fp16",
    "randomk(ratio=0.1)",
    "sketch(ratio=0.3)",
    "powersgd(rank=2,start_step=0,min_compression_rate=1)",
    "powersgd(rank=2,start_step=3,variant=library,min_compression_rate=1)",
    "chunk_allreduce(ratio=0.1,chunk=16)",
]
APART = ["atomo(rank=2,unbiased=false,min_compression_rate=1)"]
SLOW = {
    # Few levels, so that a step removes a small part of what is left.
    "sign": 2e-2,
    "onebit": 2e-2,
    "polar_b": 5e-2,
    "inceptionn": 2e-4,  # its own bound of errors
    # All ranks have one estimate, so what float16 rounds is not the small difference that is left.
    "fp16": 2e-3,
}
"""Most distance to a constant gradient after 300 steps, where it is not that of float32."""

MOMENTA = ["ef21", "ef21(momentum=0.9)"]


def gradients(step: int, ranks: int = 3, shape: tuple[int, ...] = SHAPE) -> list[FloatArray]:
    """Gradients with a part in common, each rank's own part, and noise."""
    rng = np.random.default_rng(step)
    common, own = np.random.default_rng(1000), np.random.default_rng(2000)
    mean = common.standard_normal(shape, np.float32)
    return [
        mean + own.standard_normal(shape, np.float32) + rng.standard_normal(shape, np.float32)
        for _ in range(ranks)
    ]


def estimates(loop: Loopback, kind: str = "estimate") -> list[FloatArray]:
    return [rank.state_dict()[kind]["w"] for rank in loop.ranks]


def check_law(loop: Loopback, results: Sequence[FloatArray], atol: float = 2e-5) -> None:
    """The result is equal on all ranks, to the bit; it is the mean of all estimates."""
    for result, mean in zip(results, estimates(loop, "estimate_mean"), strict=True):
        assert result.tobytes() == results[0].tobytes() == mean.tobytes()
    if loop.ranks[0].state_dict()["estimate"]:
        mean_of_all = np.mean(estimates(loop), axis=0, dtype=np.float64)
        np.testing.assert_allclose(results[0].reshape(-1), mean_of_all, rtol=0, atol=atol)


# Against the papers' algorithms.


def top(x: FloatArray, count: int) -> FloatArray:
    chosen = np.argsort(-np.abs(x), kind="stable")[:count]
    sent = np.zeros_like(x)
    sent[chosen] = x[chosen]
    return sent


def signs(x: FloatArray) -> FloatArray:
    return np.where(x >= 0, 1, -1) * np.abs(x).mean()


def reference(
    compress: Callable[[FloatArray], FloatArray], eta: float, steps: int, ranks: int
) -> list[FloatArray]:
    """The g of each step, in float64: EF21-SGDM, algorithm 1; with eta = 1, EF21."""
    numel = SHAPE[0] * SHAPE[1]
    own, averages = np.zeros((ranks, numel)), np.zeros((ranks, numel))
    found = []
    for step in range(steps):
        for i, grad in enumerate(gradients(step, ranks)):
            flat = grad.reshape(-1).astype(np.float64)
            averages[i] = flat if step == 0 else (1 - eta) * averages[i] + eta * flat
            own[i] += compress(averages[i] - own[i])
        found.append(own.mean(axis=0))
    return found


@pytest.mark.parametrize("eta", [1.0, 0.25])
@pytest.mark.parametrize(
    ("codec", "compress"), [(TOPK, lambda x: top(x, 48)), ("sign", signs)], ids=["topk", "sign"]
)
def test_results_are_those_of_the_papers(
    codec: str, compress: Callable[[FloatArray], FloatArray], eta: float
) -> None:
    memory = "ef21" if eta == 1 else f"ef21(momentum={1 - eta})"
    loop = Loopback(config_of(f"{memory}|{codec}", exchange="gather"), 3)
    for step, expected in enumerate(reference(compress, eta, 25, 3)):
        (result, *_) = loop.step({"w": gradients(step)})["w"]
        np.testing.assert_allclose(result.reshape(-1), expected, rtol=0, atol=1e-4)


def test_a_sum_of_random_elements_is_ef21_of_the_mean_gradient() -> None:
    """The same indices on every rank: all estimates are one; its elements are set in turn."""
    loop = Loopback(config_of("ef21|randomk(ratio=0.1)"), 3)
    before = np.zeros(SHAPE, np.float32)
    for step in range(30):
        mean = np.mean(gradients(step), axis=0, dtype=np.float64)
        (result, *_) = loop.step({"w": gradients(step)})["w"]
        changed = result != before
        assert np.count_nonzero(changed) == 48
        np.testing.assert_allclose(result[changed], mean[changed], rtol=0, atol=1e-5)
        before = result.copy()


# Laws.


@pytest.mark.parametrize("memory", MOMENTA)
@pytest.mark.parametrize("spec", [*CODECS, *SUMMED[1:], *APART])
def test_the_result_is_the_mean_of_all_estimates(spec: str, memory: str) -> None:
    loop = Loopback(config_of(f"{memory}|{spec}"), 3)
    for step in range(12):
        check_law(loop, loop.step({"w": gradients(step)})["w"])


@pytest.mark.parametrize("exchange", ["gather", "sra", "sparse_allreduce", "two_level"])
@pytest.mark.parametrize("spec", [TOPK, "topk(ratio=0.1,values=fp16)"])
def test_every_exchange_keeps_the_mean(spec: str, exchange: str) -> None:
    config = config_of(f"ef21|{spec}", exchange=exchange, ranks_per_node=1)
    loop = Loopback(config, 3)
    for step in range(12):
        check_law(loop, loop.step({"w": gradients(step, 3, (150, 120))})["w"])


@pytest.mark.parametrize("spec", ["sign", "int8", "adaptive(rate=1)"])
def test_what_an_owner_of_sra_loses_is_in_its_estimate(spec: str) -> None:
    loop = Loopback(config_of(f"ef21|{spec}", exchange="sra"), 3)
    for step in range(12):
        check_law(loop, loop.step({"w": gradients(step, 3, (150, 120))})["w"])


def test_a_node_has_the_estimate_of_its_ranks_mean() -> None:
    config = config_of(f"ef21|{TOPK}", exchange="two_level", ranks_per_node=2)
    loop, nodes = Loopback(config, 4), Loopback(config_of(f"ef21|{TOPK}"), 2)
    for step in range(8):
        grads = gradients(step, 4)
        of_nodes = [np.mean(grads[i : i + 2], axis=0) for i in (0, 2)]
        (result, *_), (expected, _) = (
            loop.step({"w": grads})["w"],
            nodes.step({"w": of_nodes})["w"],
        )
        np.testing.assert_allclose(result, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("spec", [*CODECS, *SUMMED, *APART])
def test_results_tend_to_a_constant_gradient(spec: str) -> None:
    grads = gradients(0, 2)
    mean = np.mean(grads, axis=0)
    loop = Loopback(config_of(f"ef21|{spec}"), 2)
    for _ in range(300):
        (result, *_) = loop.step({"w": grads})["w"]
    lag = np.linalg.norm(result - mean) / np.linalg.norm(mean)
    assert lag < SLOW.get(spec, 2e-5)


def test_a_lone_rank_sends_what_its_estimate_gains() -> None:
    pipeline = Pipeline(config_of(f"ef21|{TOPK}"))
    total = np.zeros(SHAPE[0] * SHAPE[1], np.float32)
    for step in range(10):
        (grad,) = gradients(step, 1)
        difference = grad.reshape(-1) - total
        total = total + top(difference, 48)
        np.testing.assert_array_equal(send(pipeline, grad), total)
        np.testing.assert_array_equal(pipeline.state_dict()["estimate"]["w"], total)


def test_a_bucket_gives_what_single_tensors_give() -> None:
    shapes = {"a": (40, 30), "b": (64, 64), "c": (33, 50)}
    together, apart = (Loopback(config_of("ef21(momentum=0.5)|topk(k=40)"), 2) for _ in range(2))
    for step in range(5):
        grads = {name: gradients(step, 2, shape) for name, shape in shapes.items()}
        found = together.step(grads)
        for name in shapes:
            expected = apart.step({name: grads[name]})[name]
            for one, other in zip(found[name], expected, strict=True):
                np.testing.assert_array_equal(one, other)


def test_small_tensors_have_the_momentum_of_the_others() -> None:
    loop = Loopback("ef21(momentum=0.75)|sign", 2)
    bias = [np.full(8, 4, np.float32), np.zeros(8, np.float32)]
    assert loop.step({"bias": bias})["bias"][0].tolist() == [2] * 8
    assert loop.step({"bias": [4 * bias[0], bias[1]]})["bias"][0].tolist() == [3.5] * 8
    assert Config.from_spec("ef21|sign").compress.small == parse("identity")


@pytest.mark.parametrize("exchange", ["gather", "sra"])
def test_gradients_may_be_overwritten(exchange: str) -> None:
    config = config_of("ef21|int8", exchange=exchange)
    kept, over = ([Pipeline(config, rank, 2) for rank in range(2)] for _ in range(2))
    for step in range(4):
        results = []
        for overwrite, pipelines in ((False, kept), (True, over)):
            grads = gradients(step, 2)
            rounds = [
                pipeline.bucket_round("w", {"w": grad}, overwrite=overwrite)
                for pipeline, grad in zip(pipelines, grads, strict=True)
            ]
            results.append([result for (result,) in run_rounds(rounds)])
            if not overwrite:
                for grad, same in zip(grads, gradients(step, 2), strict=True):
                    np.testing.assert_array_equal(grad, same)
        np.testing.assert_array_equal(*results)


def test_a_policy_compares_with_the_moving_average() -> None:
    without, momentum = (alternatives(parse(f"{memory}|sign")) for memory in MOMENTA)
    assert {name: str(spec) for name, spec in momentum.items()} == {
        "dense": "ef21(momentum=0.9)|identity"
    }
    assert without == alternatives(parse("residual|sign"))


# Values that are not finite.


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("memory", MOMENTA)
@pytest.mark.parametrize("spec", [TOPK, "int8", "sign", "randomk(ratio=0.5)", "adaptive(rate=1)"])
def test_values_that_are_not_finite_do_not_stay(spec: str, memory: str, bad: float) -> None:
    loop = Loopback(config_of(f"{memory}|{spec}"), 2)
    for step in range(30):
        grads = gradients(step, 2)
        if step == 3:
            grads[1][5, 6] = bad
        results = loop.step({"w": grads})["w"]
        if step == 3:
            assert not np.isfinite(results[0]).all()
        for rank in loop.ranks:
            state = rank.state_dict()
            for kind in ("estimate", "estimate_mean", "momentum"):
                for array in state[kind].values():
                    assert np.isfinite(array).all()
        assert results[0].tobytes() == results[1].tobytes()
        if step != 3:
            check_law(loop, results)


@pytest.mark.parametrize("spike", [100, 1e4])
def test_a_spike_leaves_no_more_than_its_rounding(spike: float) -> None:
    loop = Loopback(config_of(f"ef21|{TOPK}"), 2)
    for step in range(100):
        factor = np.float32(spike if step == 20 else 1)
        results = loop.step({"w": [factor * grad for grad in gradients(step, 2)]})["w"]
    check_law(loop, results, 2e-5 + 1e-6 * spike)
    mean = np.mean(gradients(99, 2), axis=0)
    assert np.linalg.norm(results[0] - mean) < 1.2 * np.linalg.norm(mean)


# State.


def test_a_resumed_run_continues_bit_by_bit() -> None:
    config = config_of(f"ef21(momentum=0.5)|{TOPK}")
    straight, resumed = Loopback(config, 2), Loopback(config, 2)
    for step in range(3):
        straight.step({"w": gradients(step, 2)})
    for rank, other in zip(straight.ranks, resumed.ranks, strict=True):
        other.load_state_dict(rank.state_dict())
    for step in range(3, 6):
        for one, other in zip(
            straight.step({"w": gradients(step, 2)})["w"],
            resumed.step({"w": gradients(step, 2)})["w"],
            strict=True,
        ):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("memory", MOMENTA)
def test_at_another_number_of_ranks_every_estimate_is_the_mean(memory: str, ranks: int) -> None:
    config = config_of(f"{memory}|{TOPK}")
    three, others = Loopback(config, 3), Loopback(config, ranks)
    for step in range(4):
        (last, *_) = three.step({"w": gradients(step)})["w"]
    states = [rank.state_dict() for rank in three.ranks]
    for rank in others.ranks:
        rank.load_state_dict(states)
        np.testing.assert_array_equal(rank.state_dict()["estimate_mean"]["w"], last.reshape(-1))
        if memory != "ef21":
            mean = np.mean([state["momentum"]["w"] for state in states], axis=0)
            np.testing.assert_allclose(rank.state_dict()["momentum"]["w"], mean, atol=1e-6)
    for step in range(4, 8):
        results = others.step({"w": gradients(step, ranks)})["w"]
        check_law(others, results)
    assert np.count_nonzero(results[0] != last) <= 4 * ranks * 48


def test_states_of_earlier_versions_load() -> None:
    pipeline = Pipeline(config_of("residual|sign"))
    send(pipeline, gradients(0, 1)[0])
    state = {key: of for key, of in pipeline.state_dict().items() if "estimate" not in key}
    Pipeline(config_of("residual|sign")).load_state_dict(state)
    Pipeline(config_of("residual|sign"), 0, 2).load_state_dict([state])


@pytest.mark.parametrize("memory", MOMENTA)
def test_ranks_that_come_and_go_take_the_mean(memory: str) -> None:
    """As elastic Horovod does: survivors change their size, then all take rank 0's common state."""
    config = config_of(f"{memory}|{TOPK}")
    loop = Loopback(config, 3)
    for step in range(4):
        (last, *_) = loop.step({"w": gradients(step)})["w"]
    survivors = [
        moved(rank, resized(rank.state_dict(), i, 4)) for i, rank in enumerate(loop.ranks[:2])
    ]
    newcomers = [Pipeline(config, rank, 4) for rank in (2, 3)]
    grown = Loopback(config, 4)
    grown.ranks[:] = [*survivors, *newcomers]
    common = common_state(survivors[0])
    for rank in grown.ranks:
        take_common_state(rank, common, {"w": SHAPE})
    momenta = [rank.state_dict()["momentum"].get("w") for rank in grown.ranks]
    if memory != "ef21":
        np.testing.assert_array_equal(momenta[3], last.reshape(-1))
        assert (momenta[1] != momenta[3]).any()
    for step in range(4, 8):
        check_law(grown, grown.step({"w": gradients(step, 4)})["w"])


@pytest.mark.parametrize("memory", MOMENTA)
def test_a_rank_that_is_alone_applies_its_gradient(memory: str) -> None:
    config = config_of(f"{memory}|{TOPK}")
    loop = Loopback(config, 2)
    loop.ranks[0] = Pipeline(config, 0, 2, elastic=True)
    for step in range(3):
        loop.step({"w": gradients(step, 2)})
    alone = moved(loop.ranks[0], resized(loop.ranks[0].state_dict(), 0, 1))
    assert isinstance(alone.resolve("w", SHAPE).aggregator, Alone)
    average = alone.state_dict()["momentum"].get("w")
    (grad,) = gradients(3, 1)
    expected = grad.reshape(-1)
    if average is not None:
        expected = np.float32(0.9) * average + np.float32(1 - 0.9) * expected
    ((result,),) = run_rounds([alone.bucket_round("w", {"w": grad.copy()})])
    np.testing.assert_array_equal(result, expected)
    state = copy.deepcopy(alone.state_dict())
    np.testing.assert_array_equal(state["estimate_mean"]["w"], expected)
    assert not state["estimate"]
    result[:] = 7  # the caller's
    np.testing.assert_array_equal(alone.state_dict()["estimate_mean"]["w"], expected)


def test_another_exchange_of_the_same_spec_keeps_the_mean() -> None:
    """From estimates of each rank to one of all, and back."""
    plan = [
        {"use": "ef21|randomk(ratio=0.1)", "exchange": "gather"},
        {"use": "ef21|randomk(ratio=0.1)", "exchange": "reduce", "from_step": 3},
        {"use": "ef21|int4", "from_step": 6},
        {"use": "ef21(momentum=0.5)|int4", "from_step": 9},
        {"use": "ef21(momentum=0.5)|identity", "from_step": 12},
        {"use": f"ef21|{TOPK}", "from_step": 15},
    ]
    loop = Loopback(config_of(plan), 3)
    for step in range(18):
        results = loop.step({"w": gradients(step)})["w"]
        check_law(loop, results)
        mean = np.mean(gradients(step), axis=0)
        assert step < 6 or np.linalg.norm(results[0] - mean) < 1.2 * np.linalg.norm(mean)


# Refusals.


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("ef21|sign(scale=one)", "scale=one"),
        ("ef21|signsgd_mv", "a vote has no scale"),
        ("ef21|atomo", "leave out the memory, or use unbiased=false"),
        ("ef21|dion", "its momentum is its error feedback"),
        ("ef21|powersgd(lr=scale)", "ef21 takes the place of the residual"),
        ("residual|powersgd", "or use ef21 instead of it"),
        ("ef21(momentum=1)|sign", "momentum"),
        ("ef21|residual|sign", "cannot follow"),
    ],
)
def test_specs_that_make_no_sense_are_refused(spec: str, reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        parse(spec)


@pytest.mark.parametrize("option", [{"average": "senders"}, {"clip": "median_norm"}])
def test_other_averages_than_the_mean_are_refused(option: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="keeps the mean of all ranks' estimates"):
        config_of(f"ef21|{TOPK}", exchange="gather", **option)


def test_every_codec_is_tested() -> None:
    names = {spec.removeprefix("rotate|").split("(")[0] for spec in [*CODECS, *SUMMED]}
    assert set(gradcomp.list_codecs()) <= names
