"""DGC: the authors' data, its laws, its schedule, its state; see docs/algorithms/dgc.md."""

from __future__ import annotations

import math
from contextlib import suppress

import numpy as np
import pytest
from dgc_reference import config_of_case, word
from hypothesis import given, settings
from hypothesis import strategies as st

from gradcomp import Config, ConfigError, Loopback, SpecError
from gradcomp.codec.spec import parse, stages
from gradcomp.exchange.momentum import MomentumCorrection
from gradcomp.exchange.patterns.base import Context
from gradcomp.exchange.patterns.dense_momentum import DenseMomentum
from gradcomp.exchange.patterns.gather import Gather
from gradcomp.exchange.rounds import TensorKey
from gradcomp.exchange.select import make_aggregator
from gradcomp.exchange.state_kinds import STATE_KINDS
from gradcomp.runtime.loopback import run_rounds
from gradcomp.runtime.pipeline import Pipeline
from support.codecs import settings_of_the_core
from support.pipelines import config_of, configured
from support.reference import reference
from support.streams import seed_with_start


@pytest.mark.parametrize("case", [f"dgc-0{number}" for number in range(1, 7)])
def test_the_authors_data(case: str) -> None:
    about, arrays = reference(case)
    world_size = about["world_size"]
    config = config_of_case(about)
    pipelines = [Pipeline(config, rank, world_size) for rank in range(world_size)]
    fp16 = about["config"]["compressor"]["fp16_values"]
    rtol, atol = about["tolerance"]["rtol"], about["tolerance"]["atol"]
    periods = [period["from_step"] for period in about["derived_attributes"]]
    for step in range(about["steps"]):
        for pipeline in pipelines:
            pipeline.set_epoch(about["epoch_per_step"][step])
        period = about["derived_attributes"][sum(first <= step for first in periods) - 1]
        for name, shape in about["tensors"].items():
            key = TensorKey(name, tuple(shape), math.prod(shape))
            rounds = []
            for rank, pipeline in enumerate(pipelines):
                aggregator = pipeline.resolve(name, tuple(shape)).aggregator
                if isinstance(aggregator, Gather):
                    start = int(arrays[f"sample_start.{name}"][step, rank])
                    stride = period["attributes"][name]["sample_stride"]
                    aggregator.seed = seed_with_start(max(start, 0), stride, step, key.tensor_id)
                rounds.append(pipeline.round(name, arrays[f"grad.{name}"][step, rank]))
            averages = run_rounds(rounds)
            expected = arrays[f"out.{name}"][step]
            # The authors drop rounding errors, which ours keeps, and average dense tensors in float16.
            loose = {"rtol": 2e-3, "atol": 2e-3} if fp16 else {"rtol": rtol, "atol": atol}
            for rank, (average, pipeline) in enumerate(zip(averages, pipelines, strict=True)):
                assert average.tobytes() == averages[0].tobytes()
                np.testing.assert_allclose(average.reshape(shape), expected, **loose)
                state = pipeline.state_dict()
                for kind, theirs in (("momentum", "momentum"), ("residual", "velocity")):
                    if f"{theirs}.{name}" not in arrays:
                        assert name not in state[kind]
                        continue
                    ours = state[kind][name].reshape(shape)
                    np.testing.assert_allclose(
                        ours, arrays[f"{theirs}.{name}"][step, rank], **loose
                    )
            if "count." + name in arrays:
                for rank in range(world_size):
                    count = int(arrays[f"count.{name}"][step, rank])
                    sent = arrays[f"indices.{name}"][step, rank][:count]
                    state = pipelines[rank].state_dict()
                    if about["config"]["memory"]["momentum_masking"]:
                        assert not state["momentum"][name][sent].any()


# ------------------------------------------------------------------------------------------- laws


def taken_codecs(memory: str) -> list[str]:
    """The codecs that a memory takes, by the parser's answer."""
    taken = []
    for stage in stages():
        if stage.kind == "codec" and stage.name != "identity":
            with suppress(SpecError):
                parse(f"{memory}|{stage.example}")
                taken.append(stage.example)
    return taken


MASKED = taken_codecs("momentum_correction")
ANY = taken_codecs("momentum_correction(masking=false)")
VALUES = [
    f"chunktopk(ratio=0.3,values={kind})"
    for kind in ("fp16", "bf16", "int8", "sign", "means", "2bit")
]


def test_momentum_correction_takes_every_codec() -> None:
    assert {"topk(ratio=0.01)", "threshold(tau=0.01)"} <= set(MASKED)
    assert taken_codecs("residual") == ANY


@given(
    n=st.integers(1, 200),
    nesterov=st.booleans(),
    masked=st.sampled_from([(True, codec) for codec in (*MASKED, *VALUES)])
    | st.sampled_from([(False, codec) for codec in ANY]),
    seed=st.integers(0, 2**32 - 1),
)
@settings(deadline=None, max_examples=300)
def test_velocity_is_all_momentum_that_was_not_sent(
    n: int, nesterov: bool, masked: tuple[bool, str], seed: int
) -> None:
    """velocity after = velocity before + step of the momentum - sent, bit for bit."""
    masking, codec = masked
    spec = f"momentum_correction(nesterov={word(nesterov)},masking={word(masking)})|{codec}"
    pipeline = Pipeline(config_of(spec))
    rng = np.random.default_rng(seed)
    mu = np.float32(0.9)
    velocity, momentum = np.zeros(n, np.float32), np.zeros(n, np.float32)
    for _ in range(3):
        grad = rng.normal(size=n).astype(np.float32)
        (sent,) = run_rounds([pipeline.round("w", grad)])
        if nesterov:
            momentum = (momentum + grad) * mu
            velocity = velocity + (momentum + grad)
        else:
            momentum = momentum * mu + grad
            velocity = velocity + momentum
        state = pipeline.state_dict()
        assert state["residual"]["w"].tobytes() == (velocity - sent).tobytes()
        kept = state["momentum"]["w"]
        dropped = kept == 0 if masking else np.zeros(n, bool)
        assert kept[~dropped].tobytes() == momentum[~dropped].tobytes()
        assert not masking or dropped[sent != 0].all()
        velocity, momentum = velocity - sent, kept


def test_all_levels_and_threads_keep_the_same_state() -> None:
    grad = np.random.default_rng(1).normal(size=300_007).astype(np.float32)
    seen = set()
    for _ in settings_of_the_core(threads=(1, 3)):
        for nesterov in ("false", "true"):
            spec = f"momentum_correction(clip=local_norm,nesterov={nesterov})|topk(ratio=0.01)"
            pipeline = Pipeline(config_of(spec))
            for _ in range(2):
                run_rounds([pipeline.round("w", grad)])
            state = pipeline.state_dict()
            seen.add((nesterov, *(state[kind]["w"].tobytes() for kind in STATE_KINDS[:2])))
    assert len(seen) == 2


def test_phases_of_the_memory_agree_with_the_fused_call() -> None:
    """`compensate` and `update`, for rounds of several codec calls."""
    rng = np.random.default_rng(2)
    params = parse("momentum_correction(clip=local_norm,clip_norm=3)|topk(k=5)").stages[0].params
    key = TensorKey("w", (64,), 64)
    phased = MomentumCorrection(params, {}, {}, 1)
    pipeline = Pipeline(config_of("momentum_correction(clip=local_norm,clip_norm=3)|topk(k=5)"))
    for _ in range(4):
        grad = rng.normal(size=64).astype(np.float32)
        (sent,) = run_rounds([pipeline.round("w", grad)])
        corrected = phased.compensate(grad, key)
        assert np.flatnonzero(sent).size == 5
        np.testing.assert_array_equal(corrected[sent != 0], sent[sent != 0])
        phased.update(key, sent)
        source = phased.source(np.zeros(64, np.float32), key)
        assert source.residual is not None
        assert source.correction is not None
        state = pipeline.state_dict()
        assert source.residual.tobytes() == state["residual"]["w"].tobytes()
        assert source.correction.momentum.tobytes() == state["momentum"]["w"].tobytes()


def test_ratio_one_is_momentum_sgd() -> None:
    """Where all is sent and nothing masked, the optimizer gets the mean of the ranks' momenta."""
    rng = np.random.default_rng(3)
    loop = Loopback(config_of("momentum_correction(masking=false)|topk(ratio=1)"), 2)
    momenta = [np.zeros((8, 8), np.float32) for _ in range(2)]
    for _ in range(5):
        grads = [rng.normal(size=(8, 8)).astype(np.float32) for _ in range(2)]
        average = loop.step({"w": grads})["w"][0]
        momenta = [np.float32(0.9) * m + g for m, g in zip(momenta, grads, strict=True)]
        np.testing.assert_allclose(average, (momenta[0] + momenta[1]) / 2, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("nesterov", [False, True])
def test_dense_tensors_have_the_momentum_of_the_average(nesterov: bool) -> None:
    rng = np.random.default_rng(4)
    loop = Loopback(f"momentum_correction(nesterov={word(nesterov)})|topk(ratio=0.5)", 3)
    momenta = {name: np.zeros(size, np.float32) for name, size in (("a", 5), ("b", 7))}
    for _ in range(4):
        grads = {
            name: [rng.normal(size=m.size).astype(np.float32) for _ in range(3)]
            for name, m in momenta.items()
        }
        averages = loop.step(grads)
        for name, m in momenta.items():
            mean = np.mean(grads[name], axis=0, dtype=np.float64).astype(np.float32)
            momenta[name] = 0.9 * (m + mean) if nesterov else 0.9 * m + mean
            expected = momenta[name] + mean if nesterov else momenta[name]
            for average in averages[name]:
                np.testing.assert_allclose(average, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("clip", "factor"), [("local_norm", 1.0), ("scaled_norm", math.sqrt(4))])
def test_clipping(clip: str, factor: float) -> None:
    spec = f"momentum_correction(momentum=0,clip={clip},clip_norm=2)|topk(ratio=1)"
    grads = [np.full((10, 10), rank + 1.0, np.float32) for rank in range(4)]  # norms 10, 20, ...
    grads[3] = np.full((10, 10), 0.01, np.float32)  # below every threshold
    average = Loopback(config_of(spec), 4).step({"w": grads})["w"][0]
    expected = (3 * 2 * factor / 10 + 0.01) / 4
    np.testing.assert_allclose(average, np.full((10, 10), expected), rtol=1e-5)
    # The average of a dense tensor is held to clip_norm itself.
    dense = Loopback(f"momentum_correction(momentum=0,clip={clip},clip_norm=2)|topk(k=1)", 2)
    bias = dense.step({"b": [np.full(100, 3.0), np.full(100, 5.0)]})["b"][0]
    np.testing.assert_allclose(np.linalg.norm(bias), 2.0, rtol=1e-5)


@pytest.mark.parametrize(
    ("codec", "exchange"),
    [
        *(("topk(ratio=1)", name) for name in ("gather", "sra", "sparse_allreduce", "two_level")),
        ("randomk(ratio=1)", "reduce"),
        ("chunk_allreduce(ratio=1)", "auto"),
    ],
)
def test_clipping_by_the_norm_of_all_ranks(codec: str, exchange: str) -> None:
    """One factor for all ranks, by the root of the mean of their squared norms, as in the authors' code."""
    memory = "momentum_correction(momentum=0,masking=false,clip=joint_norm,clip_norm=2)"
    loop = Loopback(configured(f"{memory}|{codec}", exchange=exchange, ranks_per_node=2), 4)
    rng = np.random.default_rng(6)
    ranks = [0.001, 1.0, 1.0, 3.0]
    for _ in range(2):
        large = [scale * rng.normal(size=(80, 60)).astype(np.float32) for scale in ranks]
        small = [scale * rng.normal(size=(60, 80)).astype(np.float32) / 100 for scale in ranks]
        before = [grad.copy() for grad in large]
        averages = loop.step({"large": large, "small": small})
        np.testing.assert_array_equal(large, before)
        senders = np.array(large, np.float64)
        if exchange == "two_level":  # nodes clip
            senders = senders.reshape(2, 2, 80, 60).mean(1)
        norm = math.sqrt(np.square(senders).sum() / len(senders))
        assert norm > 10
        for average in averages["large"]:
            np.testing.assert_allclose(average, np.mean(large, axis=0) * 2 / norm, atol=1e-5)
        for average in averages["small"]:
            np.testing.assert_allclose(average, np.mean(small, axis=0), atol=1e-5)


def test_norms_of_all_ranks_that_are_not_finite_clip_nothing() -> None:
    spec = "momentum_correction(momentum=0,clip=joint_norm,clip_norm=2)|topk(ratio=1)"
    for bad in (np.nan, np.inf):
        grads = [np.full((8, 8), 3.0, np.float32) for _ in range(2)]
        grads[1][0, 0] = bad
        (average, _) = Loopback(config_of(spec), 2).step({"w": grads})["w"]
        assert (average.reshape(-1)[1:] == 3).all()


def test_nothing_nonfinite_stays() -> None:
    pipeline = Pipeline(config_of("momentum_correction(masking=false)|topk(k=2)"))
    bad = np.ones(50, np.float32)
    bad[[3, 7, 11]] = np.inf, np.nan, -np.inf
    run_rounds([pipeline.round("w", bad)])
    dense = Pipeline("momentum_correction|topk(k=2)")
    (average,) = run_rounds([dense.round("b", bad)])
    assert np.isnan(average[7])  # a loss scaler must see it
    for one in (pipeline, dense):
        for kind in STATE_KINDS:
            for array in one.state_dict()[kind].values():
                assert np.isfinite(array).all()


# --------------------------------------------------------------------------------------- schedule


def test_the_preset_is_short_for_its_stages() -> None:
    spec = parse("dgc(momentum=0.8,momentum_masking=false,values=fp16,warmup_epochs=0)|rice")
    assert spec == parse(
        "momentum_correction(momentum=0.8,masking=false)|sampled_topk(ratio=0.001,values=fp16)|rice"
    )


def ratios(spec: str, times: list[tuple[int, int]]) -> list[float]:
    return [float(parse(spec).at(*time).stages[1].params["ratio"]) for time in times]  # type: ignore[arg-type]


def test_warm_up() -> None:
    """The authors' automatic warm-up: ratio^((epoch + 1) / (epochs + 1))."""
    by_epoch = ratios("dgc(ratio=0.001)", [(10**6, epoch) for epoch in range(7)])
    expected = [0.001 ** ((epoch + 1) / 6) for epoch in range(5)]
    np.testing.assert_allclose(by_epoch, [*expected, 0.001, 0.001], rtol=1e-5)
    by_step = ratios("dgc(warmup_steps=100)", [(0, 9), (50, 9), (100, 9), (10**9, 9)])
    np.testing.assert_allclose(by_step, [0.316228, math.sqrt(0.316228e-3), 0.001, 0.001], rtol=1e-5)
    listed = ratios(
        "dgc(ratio=0.01,warmup_epochs=2,warmup_coeff=[0.5,0.25])", [(0, e) for e in range(4)]
    )
    assert listed == [0.5, 0.25, 0.01, 0.01]


def test_the_ratio_falls_while_training_goes_on() -> None:
    loop = Loopback(config_of("dgc(ratio=0.01,warmup_epochs=2)"), 2)
    rng = np.random.default_rng(5)
    kept = []
    for epoch in range(4):
        loop.set_epoch(epoch)
        grads = [rng.normal(size=(100, 100)) for _ in range(2)]
        before = loop.stats[0].total_bytes
        averages = loop.step({"w": grads})["w"]
        assert averages[0].tobytes() == averages[1].tobytes()
        kept.append(np.count_nonzero(averages[0]))
        assert loop.stats[0].total_bytes - before < 40_000
    assert kept[0] > 2 * kept[1] > 4 * kept[2]
    assert kept[2] <= 200
    assert kept[3] <= 200


def test_epochs_must_be_told() -> None:
    loop = Loopback(config_of("dgc"), 2)
    with pytest.raises(ConfigError, match=r"call set_epoch\(epoch\)"):
        loop.step({"w": [np.ones((8, 8)), np.ones((8, 8))]})
    with pytest.raises(ValueError, match="epoch is -1"):
        loop.set_epoch(-1)
    steps = Loopback(config_of("topk(ratio=steps([1,0.5]))"), 1)
    assert np.count_nonzero(steps.step({"w": [np.ones(64)]})["w"][0]) == 64
    assert np.count_nonzero(steps.step({"w": [np.ones(64)]})["w"][0]) == 32


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("dgc(warmup_coeff=[0.5])", "one ratio for each of the warmup_epochs"),
        ("dgc(warmup_epochs=1,warmup_coeff=[0.5],warmup_steps=3)", "without warmup_steps"),
        ("dgc(warmup_coeff=[2])", r"auto, or a list of numbers in \(0, 1\], not '2'"),
        ("dgc(warmup_coeff=0.5)", "auto, or a list of numbers"),
        ("dgc(warmup_coeff=[0.5", "expected ','"),
        ("residual|dgc", "'dgc' is a preset"),
        ("momentum_correction|int8", "must know which elements .* set masking=false"),
        ("momentum_correction|randomk(ratio=0.1)", "must know which elements .* set masking=false"),
        ("momentum_correction|powersgd", "must know which elements"),
        ("momentum_correction(masking=false)|powersgd", "its own error feedback"),
        ("topk(ratio=ramp(from=2,to=1,steps=3))", r"a number in \(0, 1\], not '2'"),
        ("topk(ratio=ramp(from=1,steps=3))", "a ramp needs from, to, and steps or epochs"),
        ("topk(ratio=ramp(from=1,from=1,to=1,steps=3))", "'from' is given twice"),
        ("topk(ratio=ramp(from=1,to=1,steps=3,epochs=3))", "the length is given twice"),
        ("topk(ratio=ramp(from=1,to=1,steps=0))", "whole number in"),
        ("threshold(tau=ramp(from=1,to=0,steps=3))", "its ends must be above 0"),
        ("topk(ratio=ramp(fro=1))", "did you mean 'from'"),
        ("topk(ratio=stepz([1]))", "did you mean 'steps'"),
        ("topk(ratio=steps([1],ever=2))", "expected every="),
        ("topk(ratio=steps([]))", "must be a number"),
        ("topk(k=ramp(from=1,to=2,steps=3))", "cannot have a schedule"),
        ("residual(beta=steps([1]))|topk(k=1)", "cannot have a schedule"),
    ],
)
def test_wrong_specs_say_why(spec: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse(spec)


@given(
    start=st.floats(1e-6, 1), end=st.floats(1e-6, 1), length=st.integers(1, 1000), data=st.data()
)
@settings(deadline=None)
def test_ramps_stay_between_their_ends(
    start: float, end: float, length: int, data: st.DataObject
) -> None:
    spec = parse(f"topk(ratio=ramp(from={start},to={end},steps={length}))")
    assert parse(spec.canonical) == spec
    step = data.draw(st.integers(0, 2 * length))
    value = float(spec.at(step, 0).stages[0].params["ratio"])  # type: ignore[arg-type]
    assert min(start, end) <= value <= max(start, end)
    if step >= length:
        assert value == end
    assert not spec.at(step, 0).scheduled


# -------------------------------------------------------------------------- configuration, state


def test_every_tensor_has_its_momentum_once() -> None:
    config = Config.from_spec("dgc")
    assert str(config.spec_for("bias", (10,))).endswith("|identity")
    context = Context({kind: {} for kind in STATE_KINDS}, 0, 0, 1)
    assert isinstance(make_aggregator(config.spec_for("bias", (10,)), context), DenseMomentum)
    with pytest.raises(ConfigError, match="would go without"):
        configured("dgc", rules=[{"match": {"name": "*.bias"}, "use": "fp16"}])


def test_state_is_taken_up_again() -> None:
    rng = np.random.default_rng(6)
    grads = [[rng.normal(size=(64, 80)) for _ in range(2)] for _ in range(4)]
    biases = [[rng.normal(size=9) for _ in range(2)] for _ in range(4)]
    spec = "dgc(warmup_steps=3,ratio=0.01)"
    whole, first, second = Loopback(spec, 2), Loopback(spec, 2), Loopback(spec, 2)
    for step in range(4):
        expected = whole.step({"w": grads[step], "b": biases[step]})
        if step == 2:
            for old, new in zip(first.ranks, second.ranks, strict=True):
                new.load_state_dict(old.state_dict())
        loop = first if step < 2 else second
        got = loop.step({"w": grads[step], "b": biases[step]})
        for name, averages in expected.items():
            for a, b in zip(averages, got[name], strict=True):
                assert a.tobytes() == b.tobytes()
