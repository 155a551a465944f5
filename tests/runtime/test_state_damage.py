"""Damaged states: every one raises StateError, and leaves the present state as it is."""

from __future__ import annotations

import copy
import math
import pickle
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from gradcomp import Loopback, Pipeline, StateError
from gradcomp.exchange.memory import ESTIMATE, ESTIMATE_MEAN, ESTIMATE_ROWS, NORM
from gradcomp.exchange.state_kinds import STATE_KINDS
from gradcomp.gossip import make_gossip, make_topology
from gradcomp.runtime.policy.decision import Decision, PolicyGroup
from support.pipelines import configured

SPECS = [
    "residual|topk(ratio=0.1)",
    "momentum_correction|topk(ratio=0.1)",
    "signum|sign",
    "powersgd(rank=2,start_step=0)",
    "residual|adaptive(rate=0.5,preset=basis)",
    "ef21(momentum=0.9)|topk(ratio=0.1)",
]
SHAPES = {"a.weight": (64, 70), "b.weight": (80, 60), "a.bias": (64,)}
RUBBISH = [
    *(None, True, -1, 2**70, 1.5, math.nan, math.inf, "", "nonsense(k=1", b"\0", [], {}, {"a": 1}),
    *([1], [[]], object(), np.zeros((2, 2)), np.array("x"), np.zeros(3, object), {1: 2}),
    *({"a.weight": None}, torch.zeros(3, dtype=torch.bfloat16), {"choice": "dense"}),
]
DECISION = Decision(
    PolicyGroup("topk(ratio=0.1)", "auto", 6),
    "dense",
    {"dense": 1.0},
    {"dense": 2.0, "as chosen": 1.0},
    {"dense": 1.5, "compressed": 9.0},
)


def state_of(spec: str, rank: int = 0) -> dict[str, Any]:
    """A state of two ranks after two steps, with a decision."""
    loop = Loopback(spec, 2)
    for step in range(2):
        rng = np.random.default_rng(step)
        loop.step(
            {n: [rng.normal(size=s).astype(np.float32) for _ in "ab"] for n, s in SHAPES.items()}
        )
    return {**loop.ranks[rank].state_dict(), "decisions": [DECISION.to_state()]}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to everything in a state."""
    yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


def put(state: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    inner = state
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return state


def same(a: object, b: object) -> bool:
    return pickle.dumps(a) == pickle.dumps(b)


def is_harmless(path: tuple[Any, ...], value: object) -> bool:
    """Whether the value is one that another run may have there."""
    match path:
        case ("decisions",):
            return isinstance(value, list) and value == []
        case ("rounds",):
            return same(value, {}) or same(value, {"a": 1})
        case ("specs",) | ("decisions", _, "seconds"):
            return isinstance(value, dict) and value == {}
        case ("decisions", _, "step_seconds" | "predicted"):
            return value is None
        case ("decisions", _, "exchange"):
            return isinstance(value, str)
        case ("loss_scale",):
            return isinstance(value, float) and value == 1.5
        case ("decisions", _, "seconds" | "step_seconds" | "predicted", _):
            return isinstance(value, float) and value == 1.5
        case (kind,) if kind in STATE_KINDS:
            return isinstance(value, dict) and value == {}
    return False


def check_refused(load: Callable[[Any], None], state: Any, now: Callable[[], Any]) -> None:
    before = pickle.dumps(now())
    with pytest.raises(StateError) as caught:
        load(state)
    assert len(str(caught.value)) < 2000
    assert pickle.dumps(now()) == before, "a refused state changes nothing"


@pytest.mark.parametrize("spec", SPECS)
def test_rubbish_at_every_place_is_refused(spec: str) -> None:
    whole = state_of(spec)
    pipeline = Pipeline(spec, 0, 2)
    pipeline.load_state_dict(whole)
    cases = 0
    for path in places(whole):
        for value in RUBBISH:
            if is_harmless(path, value):
                continue
            damaged = put(copy.deepcopy(whole), path, value)
            check_refused(pipeline.load_state_dict, damaged, pipeline.state_dict)
            cases += 1
    assert cases > 500


@pytest.mark.parametrize("spec", SPECS)
def test_missing_and_unknown_keys_are_refused(spec: str) -> None:
    whole = state_of(spec)
    pipeline = Pipeline(spec, 0, 2)
    later = {NORM, ESTIMATE, ESTIMATE_MEAN, ESTIMATE_ROWS}
    for key in whole.keys() - later:  # which states of earlier versions do not have
        without = {name: value for name, value in whole.items() if name != key}
        check_refused(pipeline.load_state_dict, without, pipeline.state_dict)
    for extra in ("residuals", "", 3, None):
        check_refused(pipeline.load_state_dict, {**whole, extra: {}}, pipeline.state_dict)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_arrays_that_are_not_finite_are_refused_by_name(spec: str, bad: float) -> None:
    whole = state_of(spec)
    pipeline = Pipeline(spec, 0, 2)
    seen = 0
    for kind in STATE_KINDS:
        for name in whole[kind]:
            damaged = copy.deepcopy(whole)
            damaged[kind][name][3] = bad
            with pytest.raises(
                StateError, match=rf"{kind} of '{name}' .* {bad} at element 3, 1 of"
            ):
                pipeline.load_state_dict(damaged)
            seen += 1
    assert seen


def test_the_message_names_the_key_the_value_and_the_remedy() -> None:
    pipeline = Pipeline("residual|topk(ratio=0.1)", 0, 2)
    state = state_of(SPECS[0])
    state["rounds"]["a.weight"] = -3
    with pytest.raises(StateError) as caught:
        pipeline.load_state_dict(state)
    for text in ("rounds of 'a.weight'", "-3", f"[0, {2**48})", "load an earlier checkpoint"):
        assert text in str(caught.value)


def test_decisions_of_earlier_releases_are_taken() -> None:
    config = configured(SPECS[0], policy="auto")
    state = {**Pipeline(config, 0, 2).state_dict(), "decisions": [DECISION.to_state()]}
    del state["decisions"][0]["predicted"]
    pipeline = Pipeline(config, 0, 2)
    pipeline.load_state_dict(state)
    assert pipeline.stats.decisions == (replace(DECISION, predicted=None),)


def test_damage_in_one_state_of_a_list_is_refused() -> None:
    states = [state_of(SPECS[0], rank) for rank in (0, 1)]
    for size in (2, 3):
        pipeline = Pipeline(SPECS[0], 0, size)
        draw = random.Random(size)
        every = list(places(states[1]))
        for _ in range(100):
            path, value = draw.choice(every), draw.choice(RUBBISH)
            if not is_harmless(path, value):
                pair = [states[0], put(copy.deepcopy(states[1]), path, value)]
                check_refused(pipeline.load_state_dict, pair, pipeline.state_dict)


@pytest.mark.parametrize(
    "algorithm",
    ["gossip", "push_sum", "choco", "quantized_push_sum", "deepsqueeze", "moniqua", "powergossip"],
)
def test_damaged_states_of_gossip_are_refused(algorithm: str) -> None:
    topology = make_topology("ring", 3)
    gossip = make_gossip(algorithm, topology, 0, SHAPES)
    whole = gossip.state_dict()
    if algorithm == "powergossip":
        whole["p"] = {"1/a.weight": np.zeros(64, np.float32)}
        whole["q"] = {"1/a.weight": np.zeros(70, np.float32)}
    gossip.load_state_dict(whole)
    cases = 0
    for path in places(whole):
        for value in RUBBISH:
            if path == ("weight",) and isinstance(value, float) and value == 1.5:
                continue
            damaged = put(copy.deepcopy(whole), path, value)
            empty = same(value, {}) and algorithm == "powergossip" and path in (("p",), ("q",))
            if not same(damaged, whole) and not empty:
                check_refused(gossip.load_state_dict, damaged, gossip.state_dict)
                cases += 1
    assert cases > 40
    for kind, arrays in whole.items():
        for name in arrays if isinstance(arrays, dict) else ():
            damaged = copy.deepcopy(whole)
            damaged[kind][name][0] = np.nan
            check_refused(gossip.load_state_dict, damaged, gossip.state_dict)
