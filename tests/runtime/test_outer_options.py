"""Settings of outer steps, and the fragments of a model."""

from __future__ import annotations

from typing import Any

import pytest

from gradcomp import Config, ConfigError
from gradcomp.errors import ProtocolError
from gradcomp.runtime.outer.fragments import fragments_of
from gradcomp.runtime.outer.options import OuterOptions
from support.pipelines import configured


def options(spec: str = "fp16", every: int = 30, **others: Any) -> OuterOptions:
    return OuterOptions.of(Config.from_spec(spec), every, **others)


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ({"every": 0}, "every is 0; it must be at least 1 inner step"),
        ({"lr": 0.0}, r"outer learning rate is 0.0; it must be in \(0, 10\]"),
        ({"lr": 11.0}, "outer learning rate is 11.0"),
        ({"lr": float("nan")}, "outer learning rate is nan"),
        ({"momentum": 1.0}, r"outer momentum is 1.0; it must be in \[0, 1\)"),
        ({"fragments": 7}, "fragments is 7; it must be at least 1 and a divisor of every"),
        ({"fragments": 10, "overlap": 3}, "overlap is 3; it must be at least 0 and below"),
        ({"mixing": 1.1}, r"mixing is 1.1; it must be in \[0, 1\]"),
        ({"pattern": "random"}, "pattern is random; it must be strided or sequential"),
        ({"rate": 1.0}, "no setting rate; they have every, lr, momentum"),
    ],
)
def test_settings_out_of_range_are_refused(setting: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        options(**setting)


@pytest.mark.parametrize(
    ("spec", "lr", "momentum"),
    [
        ("int4", 0.7, 0.9),
        ("residual|int4", 1.0, 0.0),
        ("ef21|int4", 1.0, 0.0),
        ("powersgd(rank=2)", 1.0, 0.0),
    ],
)
def test_defaults_depend_on_error_feedback(spec: str, lr: float, momentum: float) -> None:
    chosen = options(spec)
    assert (chosen.lr, chosen.momentum) == (lr, momentum)
    assert (options(spec, lr=0.5).lr, options(spec, momentum=0.5).momentum) == (0.5, 0.5)


def test_ranks_with_other_settings_are_found() -> None:
    OuterOptions.check_same([options().text(), options().text()])
    with pytest.raises(ProtocolError, match="overlap"):
        OuterOptions.check_same([options().text(), options(overlap=2).text()])


def test_layers_take_turns() -> None:
    names = ["a.0.w", "a.0.b", "a.1.w", "a.1.b", "head/w", "head/b", "scale"]
    assert fragments_of(names, 1) == [names]
    assert fragments_of(names, 2) == [
        ["a.0.w", "a.0.b", "head/w", "head/b"],
        ["a.1.w", "a.1.b", "scale"],
    ]
    assert fragments_of(names, 3, "sequential") == [
        ["a.0.w", "a.0.b", "a.1.w", "a.1.b"],
        ["head/w", "head/b"],
        ["scale"],
    ]
    with pytest.raises(ConfigError, match="at most 4, the number of layers"):
        fragments_of(names, 5)


def test_senders_and_samples_are_not_counted_together() -> None:
    senders = configured("topk(ratio=0.1)", average="senders")
    OuterOptions.of(senders, 30)
    with pytest.raises(ConfigError, match="choose one of the two"):
        OuterOptions.of(senders, 30, weighted=True)
