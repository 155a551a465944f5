"""Outer steps of all ranks in one process: laws, checkpoints, statistics."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from gradcomp import Config, ConfigError, Loopback, OuterLoopback, StateError
from gradcomp.adapter_api import OuterOptions
from gradcomp.codec.arrays import FloatArray
from gradcomp.runtime.outer.sgd import OuterSGD
from support.pipelines import configured, rules_of

RANKS = 3
SHAPES = {"first": (80, 64), "second": (64, 80), "bias": (9,)}
SPECS = [
    "identity",
    "int4",
    "residual|topk(ratio=0.05)",
    "residual(beta=0.95)|blocktopk(k=64,values=2bit)",
    "residual|sign",
    "powersgd(rank=2,start_step=1)",
    "residual|polar(rate=0.25)",
    "ef21|topk(ratio=0.05)",
]


def values() -> dict[str, FloatArray]:
    rng = np.random.default_rng(7)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


def change(step: int, rank: int, name: str) -> FloatArray:
    """An inner step."""
    rng = np.random.default_rng([step, rank, len(name)])
    return (0.1 * rng.normal(size=SHAPES[name])).astype(np.float32).reshape(-1)


def train(loopback: OuterLoopback, steps: range, samples: list[float] | None = None) -> None:
    for step in steps:
        for rank, own in enumerate(loopback.values):
            for name, value in own.items():
                value -= change(step, rank, name)
        loopback.step(samples)


def outer_steps(spec: str | Config, ranks: int = RANKS, **options: Any) -> OuterLoopback:
    config = configured(spec) if isinstance(spec, str) else spec
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of momentum with error feedback
        return OuterLoopback(config, values(), ranks, **options)


def bits(arrays: dict[str, FloatArray]) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in arrays.items()}


# Codecs that choose or round differ more, when their input differs by rounding.
@pytest.mark.parametrize("spec", ["identity", "powersgd(rank=2,start_step=1)"])
def test_one_inner_step_is_data_parallel_training(spec: str) -> None:
    loopback = outer_steps(spec, every=1, lr=1.0, momentum=0.0)
    loop, expected = Loopback(configured(spec), RANKS), values()
    for step in range(4):
        train(loopback, range(step, step + 1))
        averages = loop.step(
            {
                name: [change(step, rank, name).reshape(shape) for rank in range(RANKS)]
                for name, shape in SHAPES.items()
            }
        )
        for name, average in averages.items():
            expected[name] -= average[0]
    for name, one in loopback.common().items():
        np.testing.assert_allclose(one, expected[name], atol=1e-5)


@pytest.mark.parametrize("spec", SPECS)
def test_all_ranks_have_equal_parameters_after_each_outer_step(spec: str) -> None:
    loopback = outer_steps(spec, every=3, momentum=0.5)
    for step in range(9):
        train(loopback, range(step, step + 1))
        own = [bits(of_rank) for of_rank in loopback.values]
        assert (own[1:] == own[:-1]) is (step % 3 == 2)
    starts = [bits(one["outer"]["start"]) for one in loopback.state_dicts()]
    assert starts[1:] == starts[:-1]


@pytest.mark.parametrize("spec", [one for one in SPECS if one.startswith("residual|")])
def test_applied_changes_and_residuals_are_all_changes(spec: str) -> None:
    loopback = outer_steps(spec, every=2, lr=1.0, momentum=0.0)
    before = {name: np.array(one, np.float64) for name, one in loopback.common().items()}
    changes = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    for round_ in range(6):
        start = loopback.common()
        for step in range(2 * round_, 2 * round_ + 2):
            for rank, own in enumerate(loopback.values):
                for name, value in own.items():
                    value -= change(step, rank, name)
            if step % 2:
                for name, total in changes.items():
                    here = [own[name].reshape(total.shape) for own in loopback.values]
                    total += start[name] - np.mean(here, axis=0, dtype=np.float64)
            loopback.step()
    residuals = [one["compression"]["residual"] for one in loopback.state_dicts()]
    for name, after in loopback.common().items():
        unsent = np.mean([own.get(name, np.zeros(after.size)) for own in residuals], axis=0)
        applied = before[name] - after
        np.testing.assert_allclose(
            applied + unsent.reshape(after.shape), changes[name], atol=2e-5, err_msg=name
        )


class Reference:
    """The loops of `OuterLoopback` in a few lines, from the outer optimizer and the loopback."""

    def __init__(self, config: Config, options: OuterOptions) -> None:
        start = {name: value.reshape(-1) for name, value in values().items()}
        settings = options.lr, options.momentum, options.nesterov
        self.outer = [OuterSGD(start, *settings) for _ in range(RANKS)]
        self.values = [{name: one.copy() for name, one in start.items()} for _ in range(RANKS)]
        self._options, self._loopback = options, Loopback(config, RANKS)
        # Every parameter is a layer of its own.
        self._fragments = [
            [*start][first :: options.fragments] for first in range(options.fragments)
        ]
        if options.pattern == "sequential":
            self._fragments = [["first", "second"], ["bias"]]
        self._averages: dict[str, list[FloatArray]] = {}

    def step(self, step: int) -> None:
        options = self._options
        for rank, own in enumerate(self.values):
            for name, value in own.items():
                value -= change(step, rank, name)
        phase = (step + 1) % options.period
        fragment = self._fragments[step // options.period % options.fragments]
        if phase == (options.period - options.overlap) % options.period:
            self._averages = self._loopback.step(
                {
                    name: [
                        (outer.start[name] - own[name]).reshape(SHAPES[name])
                        for outer, own in zip(self.outer, self.values, strict=True)
                    ]
                    for name in fragment
                }
            )
        for name, averages in self._averages.items() if phase == 0 else ():
            for outer, own, average in zip(self.outer, self.values, averages, strict=True):
                start = outer.step(name, average.reshape(-1))
                mixing = np.float32(options.mixing)
                own[name] = mixing * own[name] + (1 - mixing) * start if mixing else start.copy()


@pytest.mark.parametrize(
    "options",
    [
        {"lr": 0.7, "momentum": 0.5},
        {"lr": 1.0, "momentum": 0.9, "nesterov": False},
        {"fragments": 3, "momentum": 0.5},
        {"fragments": 3, "overlap": 1, "mixing": 0.25, "momentum": 0.9},
        {"fragments": 2, "pattern": "sequential", "overlap": 1, "mixing": 1.0, "momentum": 0.9},
        {"overlap": 2, "momentum": 0.9},
    ],
    ids=str,
)
def test_every_setting_gives_the_bits_of_its_definition(options: Any) -> None:
    config = configured("residual|topk(ratio=0.05)", rules=rules_of({"second": "int4"}, "{}"))
    loopback = outer_steps(config, every=6, **options)
    reference = Reference(config, loopback.options)
    for step in range(18):
        train(loopback, range(step, step + 1))
        reference.step(step)
        assert [bits(one) for one in loopback.values] == [bits(one) for one in reference.values], (
            step
        )


def test_momentum_is_that_of_diloco() -> None:
    loopback = outer_steps("identity", every=2, lr=0.7, momentum=0.9)
    start = {name: value.astype(np.float64) for name, value in values().items()}
    momentum = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    for round_ in range(3):
        steps = range(2 * round_, 2 * round_ + 2)
        train(loopback, steps)
        for name, shape in SHAPES.items():
            total = sum(change(step, rank, name) for step in steps for rank in range(RANKS))
            average = np.asarray(total, np.float64).reshape(shape) / RANKS
            momentum[name] = 0.9 * momentum[name] + average
            start[name] -= 0.7 * (average + 0.9 * momentum[name])
    for name, one in loopback.common().items():
        np.testing.assert_allclose(one, start[name], atol=1e-5)


def test_samples_weigh_the_ranks() -> None:
    loopback = outer_steps("identity", every=1, lr=1.0, momentum=0.0, weighted=True)
    train(loopback, range(1), [1.0, 0.0, 3.0])
    for name, one in loopback.common().items():
        average = 0.25 * change(0, 0, name) + 0.75 * change(0, 2, name)
        expected = values()[name] - average.reshape(one.shape)
        np.testing.assert_allclose(one, expected, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [{}, {"fragments": 3}, {"fragments": 3, "overlap": 1, "mixing": 0.25}, {"overlap": 3}],
    ids=str,
)
@pytest.mark.parametrize("stop", [4, 5, 6, 11])
def test_a_state_resumes_bit_for_bit_also_inside_a_round(options: Any, stop: int) -> None:
    spec = "residual|topk(ratio=0.05)"
    whole = outer_steps(spec, every=6, momentum=0.5, **options)
    train(whole, range(stop))
    states = whole.state_dicts()
    resumed = outer_steps(spec, every=6, momentum=0.5, **options)
    resumed.load_state_dicts(states)
    for one in (whole, resumed):
        train(one, range(stop, 20))
    assert [bits(own) for own in whole.values] == [bits(own) for own in resumed.values]
    assert bits(whole.common()) == bits(resumed.common())


def test_another_number_of_ranks_goes_on_at_the_last_outer_step() -> None:
    whole = outer_steps("residual|int4", every=4)
    train(whole, range(6))
    fewer = outer_steps("residual|int4", ranks=2, every=4)
    fewer.load_state_dicts(whole.state_dicts())
    assert bits(fewer.common()) == bits(whole.common())
    with pytest.raises(StateError):
        fewer.load_state_dicts([])


def test_statistics_count_inner_steps() -> None:
    loopback = outer_steps("identity", every=5)
    train(loopback, range(10))
    stats = loopback.stats[0]
    assert (stats.steps, stats.inner_steps) == (2, 5)
    assert stats.ratio == 5
    numel = sum(int(np.prod(shape)) for shape in SHAPES.values())
    assert stats.bytes_per_step == 4 * numel / 5


@pytest.mark.parametrize(
    ("options", "samples", "error", "text"),
    [
        ({"weighted": True}, [1.0], ValueError, "1 numbers for 3 ranks"),
        ({"weighted": True}, [1.0, -1.0, 1.0], ConfigError, "samples is -1.0"),
        ({}, [1.0, 1.0, 1.0], ConfigError, "not weighted"),
        ({"weighted": True}, None, ConfigError, "give samples in every step"),
    ],
)
def test_wrong_samples(options: Any, samples: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        outer_steps("identity", **options).step(samples)


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="world_size is 0"):
        OuterLoopback("identity", values(), 0)
    with pytest.raises(ConfigError, match="at most 3, the number of layers"):
        OuterLoopback("identity", values(), 2, every=8, fragments=4)
