"""The choice of exchange patterns by the configuration, for every pattern."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gradcomp import Loopback, Pipeline
from gradcomp.codec.spec import parse
from gradcomp.config.schema import load_config
from gradcomp.errors import ConfigError
from gradcomp.exchange.patterns.sparse_allreduce import MIN_SHARE
from gradcomp.exchange.patterns.sra import MIN_CHUNK
from gradcomp.exchange.select import exchange_pattern, patterns_text
from support.exchange_cases import config_of

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "exchange.md"


@pytest.mark.parametrize(("missing", "kinds"), [(1, {"allgather"}), (0, {"alltoall", "allgather"})])
@pytest.mark.parametrize(
    ("exchange", "least"), [("sra", MIN_CHUNK), ("sparse_allreduce", MIN_SHARE)]
)
def test_few_elements_are_gathered(
    exchange: str, least: int, missing: int, kinds: set[str]
) -> None:
    rules = [{"match": {}, "use": "residual|topk(k=5)"}]
    loop = Loopback(config_of("topk(k=1)", exchange, rules=rules), 3)
    numel = 3 * least - missing
    grads = [np.random.default_rng(rank).standard_normal(numel) for rank in range(3)]
    averages = loop.step({"w": grads})["w"]
    assert set(loop.stats[0].sent_bytes) == kinds
    assert all(np.array_equal(average, averages[0]) for average in averages)


def test_rules_have_exchanges_of_their_own() -> None:
    config = config_of(
        "topk(ratio=0.01)",
        "sra",
        rules=[
            {"match": {"name": "a*"}, "use": "fp16", "exchange": "auto"},
            {"match": {"name": "b*"}, "use": "fp16", "exchange": "gather"},
            {"match": {"name": "c*"}, "use": "fp16"},
            {"match": {"name": "d*"}, "use": "powersgd", "exchange": "auto"},
            {"match": {"name": "e*"}, "use": "identity"},
        ],
    )
    kinds = {"a": "allreduce", "b": "allgather", "c": "alltoall", "e": "allreduce", "x": "alltoall"}
    for name, kind in kinds.items():
        pipeline = Pipeline(config, 0, 2)
        assert next(pipeline.round(name, np.ones((64, 64), np.float32))).kind == kind
    assert config.resolve("b", (64, 64)).exchange == "gather"
    assert config.resolve("bias", (64,)).rule == "compress.rules[1]"
    assert config.resolve("x", (64,)).exchange == "auto"  # of a default rule


def test_the_example_of_the_document(tmp_path: Path) -> None:
    path = tmp_path / "example.yaml"
    path.write_text(DOCUMENT.read_text().split("```yaml\n")[1].split("```")[0])
    config = load_config([path])
    assert config.compress.exchange == "sra"
    assert [exchange for _, _, exchange in config.compress.choices] == ["sra", "auto", "reduce"]


def test_the_same_spec_may_travel_in_several_ways() -> None:
    rules = [{"match": {"name": "a"}, "use": "residual|fp16", "exchange": "sra"}]
    loop = Loopback(config_of("residual|fp16", "auto", rules=rules), 2)
    loop.step({name: [np.ones((64, 64))] * 2 for name in "ab"})
    assert set(loop.stats[0].sent_bytes) == {"alltoall", "allgather", "allreduce"}


@pytest.mark.parametrize(
    ("spec", "exchange", "says"),
    [
        ("topk(k=5)", "reduce", "payloads of 'topk' cannot be added; use gather or sra"),
        ("adaptive", "sparse_allreduce", "'adaptive' sends all elements"),
        ("adaptive(preset=basis)", "sra", "learns from the averages of whole tensors"),
        ("powersgd", "sra", "give its rule `exchange: auto`"),
        ("powersgd", "gather", "give its rule `exchange: auto`"),
        ("topk(k=5)", "ring", "expected auto, reduce, gather, sra, sparse_allreduce, two_"),
        ("topk(k=5)", "two_level(reduce)", "payloads of 'topk' cannot be added"),
        ("adaptive", "two_level(sparse_allreduce)", "'adaptive' sends all elements"),
        ("powersgd", "two_level(gather)", "give its rule `exchange: auto`, or two_level"),
        ("topk(k=5)", "two_level(auto)", "or two_level(PATTERN) such as two_level(sra)"),
        ("topk(k=5)", "two_level(two_level)", "got 'two_level(two_level)'"),
    ],
)
def test_what_cannot_be(spec: str, exchange: str, says: str) -> None:
    options = {"ranks_per_node": 2} if exchange.startswith("two_level") else {}
    with pytest.raises(ConfigError) as caught:
        config_of(spec, exchange, **options)
    assert says in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        config_of("fp16", "auto", rules=[{"match": {}, "use": spec, "exchange": exchange}])
    assert says in str(caught.value)
    assert "compress.rules[0]" in str(caught.value)


def test_the_digest_sees_exchanges() -> None:
    rule = {"match": {}, "use": "fp16"}
    texts = {
        config_of("fp16", "auto").digest_text(),
        config_of("fp16", "sra").digest_text(),
        config_of("fp16", "auto", rules=[rule]).digest_text(),
        config_of("fp16", "auto", rules=[{**rule, "exchange": "gather"}]).digest_text(),
    }
    assert len(texts) == 4
    same = [
        config_of("fp16", "auto", rules=[rule]),
        config_of("fp16", "auto", rules=[{**rule, "exchange": "auto"}]),
    ]
    assert len({config.digest_text() for config in same}) == 1
    assert json.loads(same[0].digest_text())["compress"]["exchange"] == "auto"


def test_patterns_have_names() -> None:
    assert exchange_pattern(parse("topk(k=5)"), "two_level") == "two_level(gather)"
    assert exchange_pattern(parse("fp16"), "two_level") == "two_level(reduce)"
    assert exchange_pattern(parse("fp16"), "two_level(sra)") == "two_level(sra)"
    assert exchange_pattern(parse("powersgd"), "two_level") == "two_level(algorithm)"
    assert exchange_pattern(parse("identity"), "two_level") == "dense"
    dense = "momentum_correction|identity"
    assert exchange_pattern(parse(dense), "two_level") == "reduce"
    assert exchange_pattern(parse("int8"), "two_level", 8) == "two_level(sra)"
    assert patterns_text(parse("int8"), "two_level") == (
        "two_level(gather), from 6 nodes on two_level(sra)"
    )
