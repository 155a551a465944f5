"""The key `compress.prior`: what it may hold, and that all ranks must have the same."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest

from gradcomp import Config, ConfigError, Pipeline
from gradcomp.errors import ProtocolError
from gradcomp.exchange.engine import Driver
from gradcomp.runtime.agree.agreement import agreement_line, check_agreement
from gradcomp.runtime.collector import Collector
from support.pipelines import configured
from support.thread_engine import Board, Engine

SPEC = "residual|topk(ratio=0.01)"
SHAPES = {"w": (100, 100)}
GROUP = {"use": SPEC, "numel": 10_000, "dense": 0.3, "fp16": 0.2, "compressed": 0.1}


def config(groups: Any = (GROUP,), ranks: Any = 2, policy: str = "auto") -> Config:
    return configured(SPEC, policy=policy, prior={"ranks": ranks, "groups": list(groups)})


def test_ranks_with_other_predictions_are_named() -> None:
    respelled = {**GROUP, "use": "residual(beta=1) | topk(ratio=1e-2)", "exchange": "auto"}
    same = [config(), config([respelled])]
    others = [
        config(ranks=3),
        config([]),
        config([{**GROUP, "dense": 0.31}]),
        config([{**GROUP, "numel": 9_999}]),
        config([{**GROUP, "exchange": "gather"}]),
        config([{**GROUP, "use": "fp16"}]),
        configured(SPEC, policy="auto"),
    ]
    lines = [agreement_line(one, SHAPES, None) for one in (*same, *others)]
    check_agreement(lines[:2])
    assert len(set(lines[1:])) == 1 + len(others)
    for line in lines[2:]:
        with pytest.raises(
            ProtocolError,
            match=r"different compression:\n  rank 0: .* with compress\.prior [0-9a-f]+",
        ):
            check_agreement([lines[0], line])


def test_checkpoints_do_not_depend_on_predictions() -> None:
    assert config().digest_text() == configured(SPEC, policy="auto").digest_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dense": 0.0}, "groups[0].dense: got 0.0; expected a number of seconds above 0"),
        ({"dense": float("nan")}, "groups[0].dense: got nan; expected a number of seconds"),
        ({"fp16": 1e9}, "groups[0].fp16: got 1000000000.0; expected a number of seconds"),
        ({"compressed": True}, "groups[0].compressed: got True; expected a number of seconds"),
        ({"numel": 0}, "groups[0].numel: got 0; expected an integer in [1, 9223372036854775807]"),
        ({"exchange": "ring"}, "groups[0].exchange: got 'ring' (unknown); expected auto"),
        ({"use": "topk(ratio=5)"}, "topk's 'ratio' must be a number in (0, 1]"),
        ({"dens": 1.0}, "groups[0].dens: unknown key, did you mean 'dense'?"),
    ],
)
def test_wrong_predictions(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        config([{**GROUP, **change}])


def test_wrong_priors() -> None:
    with pytest.raises(ConfigError, match=r"prior\.ranks: got 0; expected an integer >= 1"):
        config(ranks=0)
    with pytest.raises(ConfigError, match=r"compress\.prior: got 3; expected a mapping \{ranks"):
        configured(SPEC, policy="auto", prior=3)
    with pytest.raises(ConfigError, match="the policy is always: set policy: auto, or leave prior"):
        config(policy="always")
    twice = config([GROUP, {**GROUP, "numel": 16_000}])
    with pytest.raises(
        ConfigError, match=r"two entries of .* 8192 to 32767 elements with exchange"
    ):
        Pipeline(twice, 0, 2)


@pytest.mark.parametrize(("ranks", "said"), [(1, False), (2, True)])
def test_predictions_without_effect_are_reported(
    ranks: int, said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    Collector(Driver(Engine(Board(), 0)), Pipeline(config(ranks=ranks)), SHAPES)
    warnings = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    text = "gradcomp: compress.prior is of 2 ranks and has no effect on 1: predict these with"
    assert [one.startswith(text) for one in warnings] == [True] * said
