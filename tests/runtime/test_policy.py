"""Measured decisions: by a mocked clock, over a simulated link, on ranks that are threads."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradcomp import Config, ConfigError, Loopback, Pipeline
from gradcomp.codec.arrays import FloatArray
from gradcomp.codec.spec import parse
from gradcomp.exchange.engine import Driver
from gradcomp.exchange.patterns.dense import Dense
from gradcomp.exchange.patterns.dense_momentum import DenseMomentum
from gradcomp.exchange.rounds import AllReduce, Request
from gradcomp.runtime.collector import Collector
from gradcomp.runtime.controls import Controls
from gradcomp.runtime.loopback import run_rounds
from gradcomp.runtime.policy.auto import _HEATS, _LAPS, _REPEATS, _TRUST, _WINDOW, Policy
from gradcomp.runtime.policy.decision import (
    CANDIDATES,
    CHOSEN,
    COMPRESSED,
    CONTENDERS,
    DENSE,
    HALF,
    Decision,
    PolicyGroup,
    alternatives,
)
from gradcomp.runtime.policy.predictions import Predictions
from support.pipelines import configured
from support.thread_engine import RANKS, Board, Engine, on_all_ranks

SPEC = parse("residual|topk(ratio=0.1)")
MEASURED = len(CANDIDATES) * (1 + _REPEATS)
"""Steps of a trial in which exchanges are timed."""

HEAT = 2 * len(CONTENDERS) * (1 + _LAPS)
"""Steps of a heat with all contenders."""

STEPS = MEASURED + HEAT
"""Most steps of a trial without close contenders; the step after them knows the decision."""

MOST = MEASURED + _HEATS * HEAT
"""Most steps of any trial."""


def config(spec: Any = SPEC.canonical, **compress: Any) -> Config:
    rules = [{"match": {"name": "bias*"}, "use": "identity"}, {"match": {}, "use": spec}]
    compress = {"default": spec, "rules": rules, "policy": "auto", **compress}
    return configured(**compress)


class Adapter(Controls):
    """What adapters offer to users."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline  # type: ignore[misc]


# ----------------------------------------------------------------------------------- the decisions

GROUPS = [PolicyGroup.of(SPEC, "auto", 5000), PolicyGroup.of(SPEC, "auto", 100_000)]


class Trial:
    """Policies of several ranks; a function of their choices gives the time of a step."""

    def __init__(self, ranks: int = 2, prior: Predictions | None = None) -> None:
        self.policies = [Policy(prior) for _ in range(ranks)]
        self.now = [100.0 * rank for rank in range(ranks)]
        self.between = 0.0  # from the last average to the next step's first gradient

    def step(
        self,
        exchange: Callable[[int, PolicyGroup, str], float],
        whole: Callable[[dict[PolicyGroup, str]], float] = lambda _: 1.0,
        groups: list[PolicyGroup] = GROUPS,
    ) -> dict[PolicyGroup, str]:
        run_rounds(
            [
                one.begin_step(groups, now, now + self.between)
                for one, now in zip(self.policies, self.now, strict=True)
            ]
        )
        choices = [{group: one.choice(group) for group in groups} for one in self.policies]
        assert all(one == choices[0] for one in choices)
        for rank, one in enumerate(self.policies):
            exchanges = {group: exchange(rank, group, choices[0][group]) for group in one.measured}
            for group, seconds in exchanges.items():
                one.record(group, seconds)
            # Exchanges that are timed come after the backward pass.
            self.now[rank] += self.between + whole(choices[0]) + sum(exchanges.values())
        return choices[0]

    def decided(self) -> list[dict[PolicyGroup, Decision]]:
        return [one.decisions for one in self.policies]


def test_each_group_takes_what_was_fastest_for_it() -> None:
    trial = Trial()
    small, large = GROUPS
    times = {(small, DENSE): 1, (small, HALF): 2, (small, COMPRESSED): 3}
    times |= {(large, DENSE): 3, (large, HALF): 2, (large, COMPRESSED): 1}
    for _ in range(STEPS):
        # Ranks disagree; their mean decides.
        trial.step(
            lambda rank, group, name: times[group, name] + 0.4 * rank,
            lambda chosen: 5 - (chosen[large] == COMPRESSED) + 0.5 * (chosen[small] == COMPRESSED),
        )
        assert trial.decided() == [{}, {}]
    trial.step(lambda *_: 0)
    for decisions in trial.decided():
        assert {group: one.choice for group, one in decisions.items()} == {
            small: DENSE,
            large: COMPRESSED,
        }
        assert decisions[large].seconds == pytest.approx({DENSE: 3.2, HALF: 2.2, COMPRESSED: 1.2})
        assert decisions[large].step_seconds == {DENSE: 5, HALF: 5, CHOSEN: 4, COMPRESSED: 4.5}
    assert trial.decided()[0] == trial.decided()[1]
    text = str(trial.decided()[0][large])
    assert "'residual|topk(ratio=0.1)' on tensors of 32768 to 131071" in text
    assert "compressed (exchanges of a step: dense 3200.000 ms, fp16 2200.000 ms" in text
    assert (
        "a whole step: dense 5000.000 ms, fp16 5000.000 ms, as chosen 4000.000 ms, "
        "compressed 4500.000 ms" in text
    )


@pytest.mark.parametrize(
    ("others", "mixture", "expected"),
    [
        (1.0, 1.0, {DENSE}),
        (2.0, 2.0, {COMPRESSED}),
        (2.0, 1.48, {COMPRESSED}),  # a gain that may be noise
        (2.0, 1.44, {DENSE, COMPRESSED}),
    ],
)
def test_a_mixture_has_to_beat_all_compressed(
    others: float, mixture: float, expected: set[str]
) -> None:
    trial = Trial()
    small, large = GROUPS
    times = {(small, DENSE): 1, (small, HALF): 2, (small, COMPRESSED): 3}
    times |= {(large, DENSE): 3, (large, HALF): 2, (large, COMPRESSED): 1}
    for _ in range(MOST + 1):
        trial.step(
            lambda rank, group, name: times[group, name],
            lambda choices: {
                (COMPRESSED, COMPRESSED): 1.5,
                (DENSE, COMPRESSED): mixture,
            }.get((choices[small], choices[large]), others),
        )
    for decisions in trial.decided():
        assert {one.choice for one in decisions.values()} == expected
        assert decisions[small].step_seconds == pytest.approx(
            {DENSE: others, HALF: others, CHOSEN: mixture, COMPRESSED: 1.5}
        )


@pytest.mark.parametrize(("lap", "choice"), [(1.1, DENSE), (0.98, DENSE), (0.96, HALF)])
def test_whole_steps_have_the_last_word(lap: float, choice: str) -> None:
    trial = Trial()
    for _ in range(MOST + 1):
        trial.step(
            lambda rank, group, name: 0.1 * (name == DENSE),
            lambda chosen: 1.0 if DENSE in chosen.values() else lap,
        )
    for one in trial.policies:
        for decision in one.decisions.values():
            # Exchanges in float16 are as fast as compressed ones here, and come first.
            assert decision.choice == choice
            assert decision.step_seconds == pytest.approx({DENSE: 1.0, HALF: lap})


@pytest.mark.parametrize(
    ("half", "chosen", "choice"),
    [(0.9, 0.95, HALF), (0.9, 0.8, COMPRESSED), (0.98, 0.9, COMPRESSED), (0.98, 1.2, DENSE)],
)
def test_float16_wins_whole_steps_that_compression_loses(
    half: float, chosen: float, choice: str
) -> None:
    trial = Trial()
    laps = {DENSE: 1.0, HALF: half, COMPRESSED: chosen}
    for _ in range(MOST + 1):
        trial.step(
            lambda rank, group, name: {DENSE: 0.3, HALF: 0.2, COMPRESSED: 0.1}[name],
            lambda choices: laps[next(iter(choices.values()))],
        )
    for decisions in trial.decided():
        assert {one.choice for one in decisions.values()} == {choice}
        for one in decisions.values():
            assert one.step_seconds == pytest.approx({DENSE: 1.0, HALF: half, CHOSEN: chosen})


def test_time_between_the_exchanges_counts() -> None:
    trial = Trial()
    for _ in range(STEPS + 1):
        choices = trial.step(
            lambda rank, group, name: 0.3 if name == DENSE else 0.1, lambda choices: 1.0
        )
        # After compressed steps, a rank waits for processors that others still use.
        trial.between = 0.5 + 0.4 * (DENSE not in choices.values())
    for decisions in trial.decided():
        for one in decisions.values():
            assert one.choice == DENSE
            assert one.step_seconds == pytest.approx({DENSE: 1.5, HALF: 1.9})


@pytest.mark.parametrize("half", [0.94, 1.06])
def test_close_contenders_race_longer(half: float) -> None:
    trial = Trial(1)
    # In the first heat each looks like the other one.
    first = MEASURED + HEAT // 2
    steps = 0

    def whole(choices: dict[PolicyGroup, str]) -> float:
        mine = half if HALF in choices.values() else 2.0 if COMPRESSED in choices.values() else 1.0
        return mine if steps > first or mine == 2.0 else 1.0 + half - mine

    while not trial.decided()[0]:
        steps += 1
        trial.step(lambda rank, group, name: {DENSE: 0.3, HALF: 0.1, COMPRESSED: 0.2}[name], whole)
    assert steps == MEASURED + _HEATS * 2 * 2 * (1 + _LAPS) + 1
    for one in trial.decided()[0].values():
        assert one.choice == (HALF if half < 1 else DENSE)
        assert one.step_seconds == pytest.approx({DENSE: 1.0, HALF: half})


def test_groups_without_float16_race_without_it() -> None:
    trial = Trial()
    groups = [PolicyGroup.of(parse("dgc(ratio=0.01,warmup_epochs=0)"), "auto", 5000)]
    for _ in range(STEPS + 1):
        trial.step(
            lambda rank, group, name: 0.2 * (name == DENSE),
            lambda choices: 1.0 + (DENSE in choices.values()),
            groups,
        )
    for decisions in trial.decided():
        assert decisions[groups[0]].step_seconds == pytest.approx({DENSE: 2.0, CHOSEN: 1.0})


def settle(trial: Trial, link: float, steps: int) -> list[set[str]]:
    """The decided choices after each of some steps, on a link that compressed steps hardly need."""
    found = []
    wire = {DENSE: link, HALF: 0.7 * link, COMPRESSED: 0.5}
    for _ in range(steps):
        trial.step(
            lambda rank, group, name: 1.0 if name == COMPRESSED else link,
            lambda choices: 1.0 + max(wire[name] for name in choices.values()),
        )
        found.append({one.choice for one in trial.policies[0].decisions.values()})
    return found


def test_steps_that_change_get_a_second_look() -> None:
    trial = Trial()
    # Dense on a fast link, for which the exchanges of a step are enough.
    settle(trial, 0.5, MEASURED + 1 + 2 * _WINDOW)
    assert {one.choice for one in trial.decided()[0].values()} == {DENSE}
    # The link gets slower: at the end of a window the decisions are dropped, and made again.
    found = settle(trial, 5.0, _WINDOW + STEPS + 2)
    assert set() in found
    assert found[-1] == {COMPRESSED}
    # Compressed steps hardly change on it; the window is longer now.
    assert settle(trial, 5.0, 5 * _WINDOW) == [{COMPRESSED}] * 5 * _WINDOW
    assert trial.decided()[0] == trial.decided()[1]


def test_steps_that_vary_little_are_left_alone() -> None:
    trial = Trial()
    trial.between = 8.0
    settle(trial, 0.5, MEASURED + 1)
    for link in (0.5, 0.9, 0.2, 0.5):  # 1.2 to 1.9 s, next to the usual 1.5
        assert settle(trial, link, _WINDOW) == [{DENSE}] * _WINDOW


@pytest.mark.parametrize("compressed", [1.2, 1.0, 0.98])
def test_no_race_where_nothing_gains_more_than_noise(compressed: float) -> None:
    trial = Trial()
    for _ in range(MEASURED + 1):
        trial.step(lambda rank, group, name: compressed if name == COMPRESSED else 1.0)
    for one in trial.policies:
        assert {decision.choice for decision in one.decisions.values()} == {DENSE}
        assert {decision.step_seconds for decision in one.decisions.values()} == {None}


def test_first_turns_do_not_count_and_the_least_of_the_others_does() -> None:
    trial = Trial(1)
    turns: list[str] = []

    def seconds(rank: int, group: PolicyGroup, name: str) -> float:
        turns.append(name)
        own = turns.count(name)
        return 0.0 if own == 1 else own + (name != COMPRESSED)

    for _ in range(MOST + 1):
        trial.step(seconds, groups=GROUPS[:1])
    assert trial.decided()[0][GROUPS[0]].seconds == {DENSE: 3.0, HALF: 3.0, COMPRESSED: 2.0}


@pytest.mark.parametrize("slow", [10.0, 0.6])
def test_a_slow_link_takes_one_uncompressed_step(slow: float) -> None:
    wire = {DENSE: slow, HALF: 0.5 * slow, COMPRESSED: 0.01}
    trial = Trial()
    taken = []
    for _ in range(STEPS + 1):
        choices = trial.step(
            lambda rank, group, name: wire[name],
            # What overlaps with the exchanges hides a second of them.
            lambda choices: max(1.0, sum(wire[name] for name in choices.values())),
        )
        taken.append(choices[GROUPS[0]])
    # Exchanges of 1.2 s may be hidden for the most part, and those of 20 s may not.
    hopeless = slow > 2
    assert taken.count(DENSE) == (1 if hopeless else 1 + _REPEATS + 2 * (1 + _LAPS))
    for decisions in trial.decided():
        for one in decisions.values():
            assert one.choice == (COMPRESSED if hopeless else HALF)
            assert one.seconds == pytest.approx(wire)
            assert (one.step_seconds is None) == hopeless


def test_groups_that_appear_later_are_measured_then() -> None:
    trial = Trial()
    small, large = GROUPS

    def fast(rank: int, group: PolicyGroup, name: str) -> float:
        return float(name != COMPRESSED)

    def whole(chosen: dict[PolicyGroup, str]) -> float:
        return 1.0 + (DENSE in chosen.values())

    for _ in range(MOST + 1):
        trial.step(fast, whole, [small])
    kept = trial.decided()[0][small]
    for _ in range(3):  # an abandoned trial leaves nothing
        trial.step(fast, whole)
    trial.step(fast, whole, [small])
    for _ in range(MOST + 1):
        trial.step(fast, whole)
    assert trial.decided()[0].keys() == {small, large}
    assert trial.decided()[0][small] is kept


def test_alternatives() -> None:
    assert {name: one.canonical for name, one in alternatives(SPEC).items()} == {
        DENSE: "identity",
        HALF: "fp16(overflow=inf)",
    }
    assert alternatives(parse("fp16")).keys() == {DENSE}
    (dense,) = alternatives(parse("dgc(momentum=0.8)")).values()
    assert dense.codec == "identity"
    assert dense.memory is not None
    assert dense.memory.params["momentum"] == 0.8


@pytest.mark.parametrize("numel", [1, 3, 4, 4095, 4096, 100_000, 2**29])
def test_the_sizes_of_a_group_are_what_it_says(numel: int) -> None:
    low, high = (
        str(PolicyGroup.of(SPEC, "auto", numel))
        .split(" tensors of ")[1]
        .split(" elements")[0]
        .split(" to ")
    )
    assert int(low) <= numel <= int(high)
    for other in (int(low), int(high)):
        assert PolicyGroup.of(SPEC, "auto", other) == PolicyGroup.of(SPEC, "auto", numel)


# ----------------------------------------------------------------------------------- predictions

SLOW_LINK = {DENSE: 30.0, HALF: 15.0, COMPRESSED: 1.0}
FAST_LINK = {DENSE: 1.0, HALF: 4.0, COMPRESSED: 10.0}


def test_a_prediction_without_rivals_is_the_decision_from_the_first_step_on() -> None:
    trial = Trial(prior=dict.fromkeys(GROUPS, SLOW_LINK))
    for _ in range(STEPS):
        assert trial.step(lambda *_: 1.0) == dict.fromkeys(GROUPS, COMPRESSED)
        assert all(one.measured == () for one in trial.policies)
    for decisions in trial.decided():
        for one in decisions.values():
            assert (one.seconds, one.step_seconds) == ({}, None)
            assert str(one).endswith(
                "compressed (predicted: dense 30000.000 ms, fp16 15000.000 ms, compressed 1000.000 ms; "
                "left out: dense, fp16)"
            )
            assert Decision.from_state(one.to_state()) == one


def test_rivals_that_are_left_race_without_the_others() -> None:
    small, large = GROUPS
    # The small group may be fastest in any way.
    trial = Trial(prior={large: {DENSE: 4.0, HALF: 2.0, COMPRESSED: 1.0}})
    taken = set()
    for _ in range(STEPS + 1):
        choices = trial.step(
            lambda rank, group, name: {DENSE: 0.3, HALF: 0.2, COMPRESSED: 0.1}[name],
            lambda choices: 1.0 + (choices[large] != COMPRESSED),
        )
        taken.add((choices[small], choices[large]))
    assert {name for name, _ in taken} == {DENSE, HALF, COMPRESSED}
    assert {name for _, name in taken} == {HALF, COMPRESSED}
    (decisions, _) = trial.decided()
    assert {one.choice for one in decisions.values()} == {COMPRESSED}
    assert decisions[large].seconds == {HALF: 0.2, COMPRESSED: 0.1}
    assert decisions[large].step_seconds == {DENSE: 2.0, HALF: 2.0, CHOSEN: 1.0}
    assert "left out: dense; exchanges of a step: fp16 200.000 ms" in str(decisions[large])
    assert decisions[small].predicted is None
    assert decisions[small].seconds.keys() == {DENSE, HALF, COMPRESSED}


@pytest.mark.parametrize(("half", "race"), [(2.0, {HALF, CHOSEN}), (0.5, None)])
def test_a_trial_without_dense_is_shorter(half: float, race: set[str] | None) -> None:
    trial = Trial(prior={key: {DENSE: 9.0, HALF: 2.0, COMPRESSED: 1.0} for key in GROUPS})
    steps = 2 * (1 + _REPEATS) + (4 * (1 + _LAPS) if race else 0)
    for _ in range(steps):
        trial.step(
            lambda rank, group, name: {HALF: half, COMPRESSED: 1.0}[name],
            lambda choices: 1.0 + (HALF in choices.values()),
        )
        assert trial.decided() == [{}, {}]
    trial.step(lambda *_: 0)
    for decisions in trial.decided():
        for one in decisions.values():
            assert one.choice == (COMPRESSED if race else HALF)
            assert (one.step_seconds and one.step_seconds.keys()) == race


def test_steps_of_another_length_are_measured_without_predictions() -> None:
    trial = Trial(prior=dict.fromkeys(GROUPS, FAST_LINK))
    assert settle(trial, 0.5, _WINDOW + 2)[-1] == {DENSE}
    found = settle(trial, 5.0, _WINDOW + STEPS + 2)
    assert set() in found
    assert found[-1] == {COMPRESSED}
    for decisions in trial.decided():
        for one in decisions.values():
            assert (one.predicted, one.seconds.keys()) == (None, {DENSE, HALF, COMPRESSED})


def test_a_wrong_prediction_is_corrected_on_a_link_that_never_changes() -> None:
    prior = {key: {DENSE: 4.0, HALF: 3.5, COMPRESSED: 1.0} for key in GROUPS}
    trial = Trial(prior=prior)
    found = settle(trial, 0.5, 4 * _TRUST)
    assert found == [{COMPRESSED}] * 4 * _TRUST
    found = settle(trial, 0.5, MEASURED + 2)
    assert found[-1] == {DENSE}
    assert found[:-2] == [set()] * (len(found) - 2)
    assert settle(trial, 0.5, 5 * _TRUST) == [{DENSE}] * 5 * _TRUST, "it is looked at once"


SECONDS = st.floats(1e-3, 1e3)


def figures(draw: Callable[..., Any]) -> dict[PolicyGroup, dict[str, float]]:
    return {group: {name: draw(SECONDS) for name in CANDIDATES} for group in GROUPS}


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_nothing_hopeless_is_tried_and_all_ranks_agree(data: st.DataObject) -> None:
    prior, real = figures(data.draw), figures(data.draw)
    prior = {group: prior[group] for group in GROUPS if data.draw(st.booleans())}
    trial = Trial(prior=prior)
    for _ in range(MOST + 1):
        choices = trial.step(
            lambda rank, group, name: real[group][name] * (1 + rank),
            lambda choices: sum(real[group][name] for group, name in choices.items()),
        )
        for group, predicted in prior.items():
            assert predicted[choices[group]] <= 3 * min(predicted.values())
    first, second = trial.decided()
    assert first == second
    assert first.keys() == set(GROUPS)
    for group, one in first.items():
        assert one.predicted == prior.get(group)
        assert set(one.left_out) == {
            name
            for name, value in prior.get(group, {}).items()
            if value > 3 * min(prior[group].values())
        }


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_close_predictions_and_those_of_other_groups_change_nothing(data: st.DataObject) -> None:
    real = figures(data.draw)
    other = PolicyGroup.of(SPEC, "gather", 5000)
    close = {name: data.draw(st.floats(1.0, 3.0)) for name in CANDIDATES}
    with_prior, without = Trial(prior={other: SLOW_LINK, GROUPS[0]: close}), Trial()
    for _ in range(MOST + 1):
        one, two = (
            trial.step(
                lambda rank, group, name: real[group][name],
                lambda choices: sum(real[group][name] for group, name in choices.items()),
            )
            for trial in (with_prior, without)
        )
        assert one == two
    (left, _), (right, _) = with_prior.decided(), without.decided()
    assert {group: replace(one, predicted=None) for group, one in left.items()} == right


# ------------------------------------------------------------------------- in a job's own machinery

SHAPES = {"w1": (300, 200), "bias1": (50,), "w2": (90, 80), "w3": (200, 310)}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Link(Engine):
    """Every request takes its time, on the rank's own clock."""

    def __init__(self, board: Board, rank: int, clock: Clock, bandwidth: float) -> None:
        super().__init__(board, rank)
        self.clock = clock
        self.bandwidth = bandwidth

    def start(self, request: Request) -> Any:
        self.clock.now += request.nbytes / self.bandwidth
        return super().start(request)


class Costly(Pipeline):
    """A pipeline that encodes for some time of the clock."""

    clock: Clock
    speed: float

    def bucket_round(
        self, label: str, grads: Mapping[str, FloatArray], *others: Any, **named: Any
    ) -> Any:
        for name, grad in grads.items():
            if not isinstance(self.resolve(name, grad.shape).aggregator, Dense | DenseMomentum):
                self.clock.now += grad.nbytes / self.speed
        return super().bucket_round(label, grads, *others, **named)


def gradient(name: str, step: int, rank: int) -> FloatArray:
    rng = np.random.default_rng([step, rank, *name.encode()])
    return rng.standard_normal(SHAPES[name], np.float32)


class Job:
    """All ranks' collectors; steps go on where the last ones ended."""

    def __init__(self, settings: Config, bandwidth: float, speed: float) -> None:
        self.pipelines = []
        self.collectors = []
        board = Board()
        for rank in range(RANKS):
            pipeline = Costly(settings, rank, RANKS)
            pipeline.clock, pipeline.speed = Clock(), speed
            engine = Link(board, rank, pipeline.clock, bandwidth)
            self.pipelines.append(pipeline)
            self.collectors.append(Collector(Driver(engine), pipeline, SHAPES, pipeline.clock))
        self.step = 0

    def train(self, steps: int) -> list[list[dict[str, FloatArray]]]:
        """The averages of each rank, after a check that all ranks have the same."""

        def rank_main(rank: int) -> list[dict[str, FloatArray]]:
            random = np.random.default_rng([rank, self.step])
            results = []
            for step in range(self.step, self.step + steps):
                self.collectors[rank].begin_step()
                for name in random.permutation(list(SHAPES)).tolist():
                    collector = self.collectors[rank]
                    resolved = collector.resolve(name, SHAPES[name])
                    collector.add(resolved, gradient(name, step, rank), 1)
                results.append(
                    {
                        name: self.collectors[rank].finish(name)
                        for name in random.permutation(list(SHAPES)).tolist()
                    }
                )
                self.collectors[rank].end_step()
                self.pipelines[rank].clock.now += random.uniform(0.0, 0.1)  # of computing
            return results

        results = on_all_ranks(rank_main)
        for of_rank in results:
            for one, first in zip(of_rank, results[0], strict=True):
                assert all(one[name].tobytes() == first[name].tobytes() for name in SHAPES)
        self.step += steps
        return results

    def choices(self) -> dict[int, str]:
        (first, *others) = [pipeline.stats.decisions for pipeline in self.pipelines]
        assert all(other == first for other in others)
        return {one.group.size: one.choice for one in first}


MB = 1e6
SIZES = {
    name: PolicyGroup.of(SPEC, "auto", int(np.prod(shape))).size for name, shape in SHAPES.items()
}


@pytest.mark.parametrize(
    ("bandwidth", "speed", "choice"),
    [
        (10 * MB, 1000 * MB, COMPRESSED),  # a slow link
        (1000 * MB, 10 * MB, DENSE),  # a slow codec
    ],
)
def test_links_and_codecs_decide(bandwidth: float, speed: float, choice: str) -> None:
    job = Job(config(), bandwidth, speed)
    results = job.train(STEPS + 4)[0]
    assert job.choices() == {SIZES["w1"]: choice, SIZES["w2"]: choice}
    for step in (STEPS + 1, STEPS + 3):
        sparse = np.count_nonzero(results[step]["w1"] == 0)
        assert (sparse > 0.5 * results[step]["w1"].size) == (choice == COMPRESSED)


def test_nothing_is_lost_whatever_is_tried() -> None:
    job = Job(config("residual|int4", bucket_bytes=50_000), 10 * MB, 1000 * MB)
    results = job.train(STEPS + 4)[0]
    for name in SHAPES:
        total = sum(one[name].astype(np.float64).reshape(SHAPES[name]) for one in results)
        residuals = [one.state_dict()["residual"].get(name) for one in job.pipelines]
        late = sum(one.reshape(SHAPES[name]) for one in residuals) / RANKS if name != "bias1" else 0
        exact = sum(
            np.mean([gradient(name, step, rank) for rank in range(RANKS)], axis=0, dtype=np.float64)
            for step in range(len(results))
        )
        # float16 was tried in some steps.
        np.testing.assert_allclose(total + late, exact, atol=0.02)


def test_a_resumed_run_keeps_the_decision_and_measures_nothing() -> None:
    job = Job(config(), 10 * MB, 1000 * MB)
    job.train(STEPS + 1)
    states = [pickle.loads(pickle.dumps(one.state_dict())) for one in job.pipelines]
    other = Job(config(), 1000 * MB, 10 * MB)  # which would decide otherwise
    for pipeline, state in zip(other.pipelines, states, strict=True):
        pipeline.load_state_dict(copy.deepcopy(state))
    other.step = job.step
    assert other.choices() == job.choices() == dict.fromkeys(other.choices(), COMPRESSED)
    again, whole = other.train(3), job.train(3)
    for one, two in zip(again[0], whole[0], strict=True):
        assert all(one[name].tobytes() == two[name].tobytes() for name in SHAPES)
    for pipeline in other.pipelines:
        Adapter(pipeline).decide_again()
    assert other.choices() == {}
    other.train(STEPS + 1)
    assert other.choices() == dict.fromkeys(job.choices(), DENSE)


def predicted(spec: str, ranks: int, **seconds: float) -> dict[str, Any]:
    """A prior for all groups of `SHAPES`."""
    return {
        "ranks": ranks,
        "groups": [
            {"use": spec, "numel": 4**size, "dense": 9.0, "fp16": 9.0, "compressed": 9.0, **seconds}
            for size in {*SIZES.values()}
        ],
    }


@pytest.mark.parametrize(
    ("fastest", "spec"), [("compressed", SPEC.canonical), ("fp16", "fp16"), ("dense", "identity")]
)
def test_predictions_without_rivals_leave_the_same_bits_as_that_spec(
    fastest: str, spec: str
) -> None:
    prior = predicted(SPEC.canonical, RANKS, **{fastest: 1.0})
    steps = 6
    job = Job(config(prior=prior), 10 * MB, 1000 * MB)
    averages = job.train(steps)[0]
    assert set(job.choices().values()) == {fastest}
    fixed = Job(config(spec, policy="always"), 10 * MB, 1000 * MB).train(steps)[0]
    for one, two in zip(averages, fixed, strict=True):
        assert all(one[name].tobytes() == two[name].tobytes() for name in SHAPES)


def test_predictions_end_when_the_ranks_decide_again() -> None:
    prior = predicted(SPEC.canonical, RANKS, dense=1.0)
    job = Job(config(prior=prior), 10 * MB, 1000 * MB)
    job.train(2)
    states = [one.state_dict() for one in job.pipelines]
    assert set(job.choices().values()) == {DENSE}
    for pipeline in job.pipelines:
        Adapter(pipeline).decide_again()
    job.train(STEPS + 1)
    assert set(job.choices().values()) == {COMPRESSED}
    # A run that resumes has the decisions of its checkpoint, and knows that they were predicted.
    resumed = Job(config(prior=prior), 10 * MB, 1000 * MB)
    for pipeline, state in zip(resumed.pipelines, states, strict=True):
        pipeline.load_state_dict(pickle.loads(pickle.dumps(state)))
    assert all("left out: fp16, compressed" in str(one) for one in pipeline.stats.decisions)
    resumed.train(2)
    assert set(resumed.choices().values()) == {DENSE}


def test_predictions_for_other_ranks_have_no_effect() -> None:
    prior = predicted(SPEC.canonical, RANKS + 1, dense=1.0)
    job = Job(config(prior=prior), 10 * MB, 1000 * MB)
    job.train(len(CANDIDATES))
    assert job.choices() == {}
    job.train(STEPS + 1 - len(CANDIDATES))
    assert set(job.choices().values()) == {COMPRESSED}


def test_another_number_of_ranks_measures_anew() -> None:
    job = Job(config(), 10 * MB, 1000 * MB)
    job.train(STEPS + 1)
    states = [one.state_dict() for one in job.pipelines]
    for size, left in ((RANKS, 2), (RANKS + 1, 0)):
        pipeline = Pipeline(config(), 0, size)
        pipeline.load_state_dict(states)
        assert len(pipeline.stats.decisions) == left


def test_powersgd_is_measured_when_it_compresses() -> None:
    job = Job(config("powersgd(rank=1,start_step=5)"), 10 * MB, 1000 * MB)
    results = job.train(STEPS + 6)[0]
    assert set(job.choices().values()) == {COMPRESSED}
    for step in range(5):
        exact = np.mean([gradient("w1", step, rank) for rank in range(RANKS)], axis=0)
        np.testing.assert_allclose(results[step]["w1"].reshape(exact.shape), exact, atol=1e-5)


def test_schedules_are_measured_at_their_beginnings_and_their_ends() -> None:
    spec = f"residual|topk(ratio=steps([0.9,0.01],every={STEPS + 5}))"
    job = Job(config(spec), 10 * MB, 1000 * MB)
    job.train(STEPS + 2)
    # 0.9 of the elements with their indices are more than all of them.
    assert set(job.choices().values()) <= {DENSE, HALF}
    job.train(STEPS + 6)
    by_spec: dict[str, set[str]] = {}
    for one in job.pipelines[0].stats.decisions:
        by_spec.setdefault(one.group.spec, set()).add(one.choice)
    last = parse("residual|topk(ratio=0.01)").canonical
    assert by_spec.keys() == {parse(spec).canonical, last}
    assert by_spec[last] == {COMPRESSED}


def test_momentum_correction_stays_when_tensors_go_dense() -> None:
    spec = "momentum_correction(masking=false)|topk(ratio=0.1)"
    settings = config(spec, rules=[{"match": {}, "use": spec}])
    job = Job(settings, 1000 * MB, 10 * MB)
    results = job.train(MEASURED + 3)[0]
    assert set(job.choices().values()) == {DENSE}
    loop = Loopback(
        config(spec, policy="always", rules=[{"match": {}, "use": "momentum_correction|identity"}]),
        RANKS,
    )
    exact = []
    for step in range(len(results)):
        grads = {name: [gradient(name, step, rank) for rank in range(RANKS)] for name in SHAPES}
        exact.append({name: of_ranks[0] for name, of_ranks in loop.step(grads).items()})
    for name, shape in SHAPES.items():
        total = sum(one[name].reshape(shape) for one in results)
        np.testing.assert_allclose(total, sum(one[name] for one in exact), atol=2e-3)


def test_the_loopback_has_no_link_and_compresses() -> None:
    auto, always = (Loopback(config(policy=policy), 2) for policy in ("auto", "always"))
    for step in range(3):
        grads = {name: [gradient(name, step, rank) for rank in range(2)] for name in SHAPES}
        left, right = auto.step(grads), always.step(grads)
        assert all(left[name][0].tobytes() == right[name][0].tobytes() for name in SHAPES)


def test_requests_of_the_policy_are_the_same_on_every_rank_whatever_it_measured() -> None:
    policies = [Policy(), Policy()]
    names = []
    for step in range(STEPS + 1):
        rounds = [
            one.begin_step(GROUPS, step * (rank + 1), float(step))
            for rank, one in enumerate(policies)
        ]
        requests = [next(one, None) for one in rounds]
        assert len({type(one) for one in requests}) == 1
        if isinstance(requests[0], AllReduce):
            names.append(requests[0].name)
            mean = sum(one.array for one in requests if isinstance(one, AllReduce)) / 2
            for one in rounds:
                with pytest.raises(StopIteration):
                    one.send(mean)
        for rank, one in enumerate(policies):
            for group in one.measured:
                one.record(group, 0.1 * (rank + (one.choice(group) != COMPRESSED)))
    assert names == ["policy.first", "policy.exchanges", "policy.steps"]
    assert policies[0].decisions == policies[1].decisions


def test_the_setting_is_checked_and_part_of_the_digest() -> None:
    assert config().digest_text() != config(policy="always").digest_text()
    with pytest.raises(
        ConfigError, match=r"compress\.policy: got 'sometimes'; expected always or auto"
    ):
        config(policy="sometimes")
