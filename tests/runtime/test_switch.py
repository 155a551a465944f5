"""Specs that follow one another: when, with which state, and the same after a restart."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import numpy as np
import pytest

from gradcomp import ConfigError, Loopback
from gradcomp.codec.arrays import FloatArray
from support.gradients import own_streams
from support.pipelines import config_of, configured

SHAPES = {"a": (24, 30), "b": (90, 8), "c": (20, 40)}
RANKS = 3
SWITCH = 3
gradients = partial(own_streams, SHAPES, RANKS)

LOSSLESS = [
    "residual|topk(ratio=0.1)",
    "residual|int4",
    "residual|randomk(ratio=0.2)",
    "residual|sketch(ratio=0.2)",
    "powersgd(rank=2,start_step=0,min_compression_rate=0.1)",
    "powersgd(rank=1,start_step=0,min_compression_rate=0.1,variant=paper)",
    "identity",
]
"""Specs that lose nothing for good."""


def switching(first: str, second: str, **options: Any) -> list[Any]:
    return [first, {"from_step": SWITCH, "use": second, **options}]


def steps(loop: Loopback, which: range) -> list[dict[str, FloatArray]]:
    """Averages, after a check that all ranks have the same."""
    results = []
    for step in which:
        averages = loop.step(gradients(step))
        for name, of_ranks in averages.items():
            assert all(one.tobytes() == of_ranks[0].tobytes() for one in of_ranks), name
        results.append({name: of_ranks[0] for name, of_ranks in averages.items()})
    return results


def kept(loop: Loopback, kind: str, name: str) -> list[FloatArray]:
    states = [rank.state_dict()[kind] for rank in loop.ranks]
    return [state[name] for state in states if name in state]


def equal(left: list[dict[str, FloatArray]], right: list[dict[str, FloatArray]]) -> bool:
    return [{n: a.tobytes() for n, a in one.items()} for one in left] == [
        {n: a.tobytes() for n, a in one.items()} for one in right
    ]


# ---------------------------------------------------------------------------------------- when


@pytest.mark.parametrize("first", ["fp16", "residual|topk(ratio=0.1)", "identity"])
def test_each_spec_holds_in_its_own_steps(first: str) -> None:
    loop = Loopback(
        config_of([first, {"from_step": 2, "use": "sign"}, {"from_step": 4, "use": "bf16"}]), RANKS
    )
    results = steps(loop, range(6))
    for step, spec in ((4, "bf16"), (5, "bf16"), (3, "sign")):
        alone = steps(Loopback(config_of(spec), RANKS), range(step, step + 1))
        assert equal(results[step : step + 1], alone), (step, spec)
    alone = Loopback(config_of(first), RANKS)
    assert equal(results[:2], steps(alone, range(2)))


def test_epochs_count_where_the_configuration_says_so() -> None:
    loop = Loopback(config_of(["identity", {"from_epoch": 2, "use": "sign"}]), RANKS)
    with pytest.raises(ConfigError, match=r"from epoch 2 sign' changes with the epoch.*set_epoch"):
        loop.step(gradients(0))
    for epoch, spec in ((0, "identity"), (1, "identity"), (2, "sign"), (5, "sign")):
        loop.set_epoch(epoch)
        for _ in range(2):
            result = steps(loop, range(1))
            assert equal(result, steps(Loopback(config_of(spec), RANKS), range(1))), epoch


def test_rules_switch_apart_from_the_default() -> None:
    compress = {
        "default": "identity",
        "rules": [
            {"match": {"name": "a"}, "use": switching("identity", "sign")},
            {"match": {}, "use": "identity"},
        ],
    }
    config = configured(**compress)
    loop = Loopback(config, RANKS)
    steps(loop, range(SWITCH))
    before = dict(loop.stats[0].sent_bytes)
    assert before.keys() == {"allreduce"}
    steps(loop, range(SWITCH, SWITCH + 1))
    assert loop.stats[0].sent_bytes.keys() == {"allreduce", "allgather"}
    dense = 4 * sum(int(np.prod(SHAPES[name])) for name in "bc")
    assert loop.stats[0].sent_bytes["allreduce"] == before["allreduce"] + dense


# --------------------------------------------------------------------------------------- state


@pytest.mark.parametrize("second", LOSSLESS)
@pytest.mark.parametrize("first", LOSSLESS[:-1])
def test_nothing_is_lost_on_the_way(first: str, second: str) -> None:
    loop = Loopback(config_of(switching(first, second)), RANKS)
    results = steps(loop, range(SWITCH + 2))
    for name in SHAPES:
        applied = np.sum([one[name] for one in results], axis=0, dtype=np.float64)
        left = kept(loop, "residual", name)
        assert len(left) == (0 if second == "identity" else RANKS)
        late = (sum(left) / RANKS).reshape(SHAPES[name]) if left else 0
        wanted = np.sum(
            [np.mean(gradients(step)[name], axis=0) for step in range(len(results))], axis=0
        )
        np.testing.assert_allclose(applied + late, wanted, atol=2e-5)


def test_what_is_left_unsent_goes_along_with_the_next_gradient() -> None:
    loop = Loopback(config_of(switching("residual|topk(ratio=0.1)", "sign")), RANKS)
    steps(loop, range(SWITCH))
    left = {name: kept(loop, "residual", name) for name in SHAPES}
    (now,) = steps(loop, range(SWITCH, SWITCH + 1))
    alone = Loopback(config_of("sign"), RANKS).step(
        {
            name: [
                grad + rest.reshape(grad.shape)
                for grad, rest in zip(grads, left[name], strict=True)
            ]
            for name, grads in gradients(SWITCH).items()
        }
    )
    assert equal([now], [{name: of_ranks[0] for name, of_ranks in alone.items()}])
    assert all(not kept(loop, "residual", name) for name in SHAPES)


@pytest.mark.parametrize(
    "first",
    ["residual|topk(ratio=0.1)", "powersgd(rank=2,start_step=0,variant=library)", "signum|sign"],
)
@pytest.mark.parametrize(
    "second",
    [
        "identity",
        "residual|sign",
        "signum(momentum=0.5)|sign",
        "powersgd(rank=2,start_step=0,variant=paper)",
    ],
)
def test_dropped_state_leaves_no_trace(first: str, second: str) -> None:
    loop = Loopback(config_of(switching(first, second, state="drop")), RANKS)
    results = steps(loop, range(SWITCH + 2))[SWITCH:]
    fresh = Loopback(config_of(second), RANKS)
    state = fresh.ranks[0].state_dict()
    for rank, pipeline in enumerate(fresh.ranks):  # in the same step, for codecs that count
        pipeline.load_state_dict({**state, "rank": rank, "rounds": dict.fromkeys(SHAPES, SWITCH)})
    assert equal(results, steps(fresh, range(SWITCH, SWITCH + 2)))


def test_factors_go_on_where_the_rank_stays() -> None:
    def factors(rank: int) -> tuple[bytes, bytes]:
        first, second = (
            f"powersgd(rank={r},start_step=0,values={v},variant=paper,min_compression_rate=0.1)"
            for r, v in ((2, "fp32"), (rank, "fp16"))
        )
        loop = Loopback(config_of(switching(first, second)), RANKS)
        steps(loop, range(SWITCH))
        (pipeline, *_) = loop.ranks
        pipeline.round("a", gradients(0)["a"][0])
        state = pipeline.state_dict()
        return state["powersgd_q"].get("a"), state["residual"]["a"]

    same, residual = factors(2)
    assert same is not None
    assert residual.any()
    other, residual = factors(3)
    assert other is None
    assert residual.any()


def test_tensors_that_the_next_spec_does_not_take_lose_nothing() -> None:
    plan = switching("residual|topk(ratio=0.1)", "powersgd(rank=20,start_step=0)")
    loop = Loopback(config_of(plan), RANKS)
    results = steps(loop, range(SWITCH + 1))
    for name in SHAPES:
        wanted = sum(np.mean(gradients(step)[name], axis=0) for step in range(SWITCH + 1))
        np.testing.assert_allclose(sum(one[name] for one in results), wanted, atol=2e-5)
        assert not kept(loop, "residual", name)


def test_momentum_correction_goes_dense_and_back() -> None:
    """The law for momentum 0: nothing is lost; with momentum all ranks go on from its average."""
    for momentum in (0.0, 0.9):
        memory = f"momentum_correction(momentum={momentum},masking=false)"
        plan = [
            f"{memory}|topk(ratio=0.1)",
            {"from_step": 2, "use": f"{memory}|identity"},
            {"from_step": 4, "use": f"{memory}|topk(ratio=0.2)"},
        ]
        loop = Loopback(config_of(plan), RANKS)
        dense = Loopback(config_of(f"{memory}|identity"), RANKS)
        results, exact = steps(loop, range(6)), steps(dense, range(6))
        for name in SHAPES:
            left = sum(kept(loop, "residual", name)) / RANKS
            applied = sum(one[name] for one in results) + left.reshape(SHAPES[name])
            # Velocities only delay; without masking, momenta equal the dense run's.
            np.testing.assert_allclose(applied, sum(one[name] for one in exact), atol=1e-4)
            np.testing.assert_allclose(results[3][name], exact[3][name], atol=1e-4)


# ------------------------------------------------------------------------------------- restarts


@pytest.mark.parametrize("state", ["carry", "drop"])
@pytest.mark.parametrize("second", ["identity", "residual|sign", "powersgd(rank=2,start_step=0)"])
@pytest.mark.parametrize("cut", [SWITCH - 1, SWITCH, SWITCH + 1])
def test_a_resumed_run_continues_bit_for_bit(cut: int, second: str, state: str) -> None:
    config = config_of(switching("residual|topk(ratio=0.1)", second, state=state))
    whole = steps(Loopback(config, RANKS), range(SWITCH + 3))
    first = Loopback(config, RANKS)
    parts = steps(first, range(cut))
    second_part = Loopback(config, RANKS)
    for old, new in zip(first.ranks, second_part.ranks, strict=True):
        new.load_state_dict(copy.deepcopy(old.state_dict()))
    parts += steps(second_part, range(cut, SWITCH + 3))
    assert equal(parts, whole)


def test_a_run_that_resumes_with_another_spec_takes_what_was_left() -> None:
    first = Loopback(config_of("residual|topk(ratio=0.1)"), RANKS)
    results = steps(first, range(2))
    second = Loopback(config_of("identity"), RANKS)
    for old, new in zip(first.ranks, second.ranks, strict=True):
        new.load_state_dict(old.state_dict())
    assert not second.ranks[0].sends_dense(second.ranks[0].resolve("a", SHAPES["a"]))
    results += steps(second, range(2, 4))
    assert second.ranks[0].sends_dense(second.ranks[0].resolve("a", SHAPES["a"]))
    for name in SHAPES:
        wanted = sum(np.mean(gradients(step)[name], axis=0) for step in range(4))
        np.testing.assert_allclose(sum(one[name] for one in results), wanted, atol=2e-5)


# -------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ([], "compress.default: got [] (the list is empty)"),
        (["fp16", "bf16"], "'bf16' needs from_step or from_epoch, and not both"),
        ([{"from_step": 3, "use": "fp16"}], "the first spec holds from the start"),
        (["fp16", {"from_step": 3}], "compress.default[1].use: missing; expected a spec string"),
        (
            ["fp16", {"from_step": 0, "use": "bf16"}],
            "default[1].from_step: got 0; expected an integer >= 1",
        ),
        (
            ["fp16", {"from_step": 3, "use": "bf166"}],
            "compress.default[1].use: unknown stage 'bf166'",
        ),
        (
            ["fp16", {"from_step": 3, "use": "bf16", "stat": "drop"}],
            "default[1].stat: unknown key, did you mean 'state'?",
        ),
        (
            ["fp16", {"from_step": 3, "use": "bf16", "state": "x"}],
            "default[1].state: got 'x'; expected carry or drop",
        ),
        (
            ["fp16", {"from_step": 3, "use": "bf16"}, {"from_step": 3, "use": "sign"}],
            "from_step: 3 does not come after 3: list them in order",
        ),
        (
            ["fp16", {"from_step": 3, "use": "bf16"}, {"from_epoch": 5, "use": "sign"}],
            "from_step and from_epoch do not mix",
        ),
        (
            ["fp16", {"from_step": 3, "use": "bf16", "exchange": "reduce"}],
            "compress.default[1] cannot take exchange: reduce",
        ),
        (
            ["fp16", {"from_step": 3, "use": "dgc"}],
            "put momentum_correction before all specs or none",
        ),
        (
            ["dgc", {"from_step": 3, "use": "dgc(momentum=0.8)"}],
            "differ, and the optimizer's momentum does not change",
        ),
        ([3], "compress.default[0]: got 3"),
    ],
)
def test_what_cannot_be_is_an_error(plan: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configured(plan)
    assert says in str(caught.value)


def test_ranks_that_switch_differently_differ_in_their_digests() -> None:
    plans = [
        "fp16",
        switching("fp16", "bf16"),
        switching("fp16", "bf16", state="drop"),
        switching("fp16", "bf16", exchange="sra"),
        ["fp16", {"from_step": 4, "use": "bf16"}],
        ["fp16", {"from_epoch": SWITCH, "use": "bf16"}],
    ]
    texts = {config_of(plan).digest_text() for plan in plans}
    assert len(texts) == len(plans)
    assert config_of(["fp16"]).digest_text() == config_of("fp16").digest_text()
