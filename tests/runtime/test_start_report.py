"""Messages at the start of a job."""

from __future__ import annotations

import gc
import logging
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from gradcomp import Config, Pipeline
from gradcomp.exchange.engine import Driver
from gradcomp.runtime import start_report
from gradcomp.runtime.collector import Collector
from gradcomp.runtime.start_report import Coverage
from support.pipelines import configured
from support.thread_engine import RANKS, Board, Engine, on_all_ranks

SHAPES = {"big": (64, 64), "bias": (64,), "small": (10, 10)}


def coverage(config: Config, shapes: Mapping[str, tuple[int, ...]]) -> Coverage:
    return Coverage.of(config, Pipeline(config).resolve_all(shapes))


def test_each_reason_is_counted() -> None:
    config = configured("topk(ratio=0.01)", rules=[{"match": {"name": "x.*"}, "use": "identity"}])
    result = coverage(config, SHAPES | {"x.weight": (100, 100)})
    assert (result.tensors, result.elements) == (4, 4096 + 64 + 100 + 10_000)
    assert result.left == {
        "default rule: ndim <= 1": (1, 64),
        "default rule: numel < 4096": (1, 100),
        "compress.rules[0]": (1, 10_000),
    }
    assert not result.surprising, "a rule asks for most of it"
    assert str(result) == (
        "1 of 4 tensors are compressed, 4,096 of 14,260 elements: 1 by 'topk(ratio=0.01)'; "
        "uncompressed: 1 by default rule: ndim <= 1, 1 by default rule: numel < 4096, 1 by compress.rules[0]"
    )


def test_a_flat_buffer_is_surprising() -> None:
    result = coverage(configured("topk(ratio=0.01)"), {"flat": (100_000,), "w": (64, 64)})
    assert result.surprising
    assert "`match: {}`" in str(result)
    assert not coverage(configured("topk(ratio=0.01)"), SHAPES).surprising


def test_a_shape_that_an_algorithm_does_not_take() -> None:
    config = configured("fp16", rules=[{"match": {}, "use": "powersgd(rank=2)"}])
    result = coverage(config, {"flat": (100_000,), "w": (64, 64)})
    assert result.surprising
    ((reason, count),) = result.left.items()
    assert "shape, which 'powersgd(" in reason
    assert count == (1, 100_000)


def train(
    config: Config,
    shapes: Mapping[str, tuple[int, ...]],
    listed: bool = True,
    steps: int = 3,
    name: str = "",
) -> None:
    """Some steps on all ranks, each with a collector."""
    board = Board()

    def rank_main(rank: int) -> None:
        pipeline = Pipeline(config, rank, RANKS)
        engine = pipeline.profiled(Engine(board, rank), name)
        collector = Collector(Driver(engine), pipeline, shapes if listed else {})
        for _ in range(steps):
            collector.begin_step()
            for tensor, shape in shapes.items():
                grad = np.full(shape, rank + 1, np.float32)
                collector.add(collector.resolve(tensor, shape), grad, grad.nbytes)
            for tensor in shapes:
                collector.finish(tensor)

    on_all_ranks(rank_main)


def messages(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    return [(one.levelno, one.getMessage()) for one in caplog.records]


@pytest.fixture(autouse=True)
def _all_messages(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.INFO, "gradcomp")
    monkeypatch.setattr(start_report, "_said", set())


def test_a_job_says_once_what_it_compresses_and_what_passes_a_link(
    caplog: pytest.LogCaptureFixture,
) -> None:
    train(configured("topk(ratio=0.01)"), SHAPES)
    (level, first), (other, second) = messages(caplog)
    assert (level, other) == (logging.INFO, logging.INFO)
    assert first.startswith(
        "gradcomp: 1 of 3 tensors are compressed, 4,096 of 4,260 elements: 1 by"
    )
    dense = 2 * (RANKS - 1) / RANKS * 4 * 4260
    assert f"of {RANKS} ranks" in second
    assert second.endswith(f"of the uncompressed gradients passes {dense:,.0f}")


def test_a_job_names_its_engine_and_at_its_end_its_times(
    caplog: pytest.LogCaptureFixture,
) -> None:
    train(configured("topk(ratio=0.01)"), SHAPES, steps=12, name="threads")
    gc.collect()
    texts = [text for _, text in messages(caplog)]
    assert texts[0].startswith(f"gradcomp: on threads with {RANKS} ranks, 1 of 3 tensors are")
    found = re.search(r"in a step (\S+) ms of compression and (\S+) ms of waiting", texts[-1])
    assert found is not None, texts
    assert all(float(number) > 0 for number in found.groups())
    assert texts[-1].endswith("of waiting for other ranks; no faults")


def test_more_bytes_than_uncompressed_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    # Sends all elements, and their indices.
    config = configured("threshold(tau=0.001)", exchange="gather")
    train(config, {"big": (400, 200)})
    (_, _), (level, text) = messages(caplog)
    assert level == logging.WARNING
    assert text.endswith(
        "which is less: use exchange: sra (its bytes do not grow with the ranks), or a spec that "
        "sends less"
    )


def test_another_pattern_than_with_two_ranks_is_named(caplog: pytest.LogCaptureFixture) -> None:
    train(configured("lossless"), {"big": (400, 200)})
    (_, _), (level, text), (_, _) = messages(caplog)
    assert level == logging.INFO
    assert text == (
        "gradcomp: compress.default: exchange sra, as a gather passes 150% of the uncompressed bytes"
    )


def test_headers_of_a_tiny_model_are_no_reason_for_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    train(configured("threshold(tau=0.001)"), {"big": (64, 64)})
    assert {level for level, _ in messages(caplog)} == {logging.INFO}


def test_mostly_uncompressed_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    train(configured("topk(ratio=0.01)"), {"flat": (9000,), "w": (64, 64)})
    assert messages(caplog)[0][0] == logging.WARNING
    assert "1 by default rule: ndim <= 1; a rule with" in messages(caplog)[0][1]


def test_nothing_is_said_without_compression(caplog: pytest.LogCaptureFixture) -> None:
    train(configured("identity"), SHAPES)
    assert messages(caplog) == []


def test_a_tensor_without_a_name_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        train(configured("topk(ratio=0.01)"), {"x": (9000,)}, listed=False, steps=1)
    ((level, text),) = messages(caplog)
    assert level == logging.WARNING
    assert "a tensor of shape (9000,) is averaged uncompressed, by default rule: ndim <= 1" in text


def test_a_warm_up_is_named_and_its_end_reported(caplog: pytest.LogCaptureFixture) -> None:
    train(configured("powersgd(rank=1,start_step=3)"), {"big": (400, 200)}, steps=6)
    texts = [text for _, text in messages(caplog)]
    assert {level for level, _ in messages(caplog)} == {logging.INFO}
    assert "begins at step 3, and its tensors are uncompressed until then" in texts[0]
    assert texts[1].endswith("passes 426,667: nothing is compressed before step 3")
    assert texts[2].endswith("passes 426,667")
    assert int(texts[2].split()[1].replace(",", "")) < 10_000
    assert len(texts) == 3


def test_a_change_of_specs_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    schedule = [{"use": "fp16"}, {"use": "topk(ratio=0.01)", "from_step": 2}]
    train(configured(schedule), {"big": (400, 200)}, steps=5)
    links = [
        int(text.split()[1].replace(",", "")) for _, text in messages(caplog) if " pass " in text
    ]
    assert len(links) == 2
    assert 20 * links[1] < links[0]


MODEL = {"embed.weight": (500, 64), "fc.weight": (64, 100), "fc.bias": (100,)}


@pytest.mark.parametrize(
    ("match", "text"),
    [
        ({"name": "module.embed*"}, 'name: "embed*" would match embed.weight'),
        ({"name": "fc"}, 'name: "fc.*" would match fc.weight, fc.bias'),
        ({"name": "weight"}, 'name: "*.weight" would match embed.weight, fc.weight'),
        ({"name": "embd.weight"}, "names that come near: embed.weight"),
        (
            {"name": "embed*", "ndim": 1},
            "its name matches embed.weight, its other conditions do not",
        ),
        ({"name": "unlike"}, "matches none of the 3 tensors"),
        ({"min_numel": 100_000}, "matches none of the 3 tensors"),
    ],
)
def test_a_rule_that_matches_nothing_is_a_warning(
    match: dict[str, Any], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = configured("topk(ratio=0.01)", rules=[{"match": match, "use": "identity"}])
    train(config, MODEL, steps=1)
    (warning,) = [text for level, text in messages(caplog) if level == logging.WARNING]
    assert warning.startswith("gradcomp: compress.rules[0] (")
    assert text in warning


def test_rules_behind_others_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    rules = [
        {"match": {"name": "fc*"}, "use": "fp16"},
        {"match": {"name": "fc.weight"}, "use": "int8"},
        {"match": {}, "use": "sign"},
        {"match": {"name": "embed*"}, "use": "identity"},
        {"match": {"ndim": 1}, "use": "identity"},
    ]
    train(configured("topk(ratio=0.01)", rules=rules), MODEL, steps=1)
    warnings = [text for level, text in messages(caplog) if level == logging.WARNING]
    assert warnings == [
        "gradcomp: compress.rules[3] to [4] can take no tensor: compress.rules[2] before takes all "
        "(match: {})",
        'gradcomp: compress.rules[1] ({"name": "fc.weight"}) takes no tensor: rules before it take all '
        "that it matches",
    ]
