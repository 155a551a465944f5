"""What a job says on stderr, with and without the application's own logging."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from gradcomp import Loopback
from gradcomp.codec.spec import parse, stages
from gradcomp.runtime.measure.stats import Stats

JOB = """
from gradcomp.runtime.pipeline import Pipeline
from gradcomp.runtime.start_report import StartReport

def train(steps):
    pipeline = Pipeline("residual|topk(ratio=0.01)", 0, 2)
    report, resolved = StartReport(pipeline), pipeline.resolve_all({"w": (100, 100)})
    report.begin(resolved)
    for _ in range(steps):
        pipeline.stats.begin_step()
        report.end_step()
        report.begin_step(resolved)
        pipeline.stats.count("allgather", 500)
        pipeline.stats.count_gradients(40000)
        pipeline.stats.steps += 1
    return report
"""
"""What rank 0's adapter calls in a job of two ranks."""


def stderr_of(lines: str, log: str | None = None) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "GRADCOMP_LOG"}
    if log is not None:
        environment["GRADCOMP_LOG"] = log
    job = subprocess.run(
        [sys.executable, "-c", JOB + lines],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return job.stderr


def test_a_job_says_what_it_compresses_and_at_its_end_what_it_sent() -> None:
    tensors, link, end = stderr_of("report = train(20)").splitlines()
    assert tensors == (
        "gradcomp: 1 of 1 tensors are compressed, 10,000 of 10,000 elements: 1 by 'residual|topk(ratio=0.01)'"
    )
    assert "bytes pass the link of a rank in a step, of 2 ranks" in link
    assert end.startswith("gradcomp: 20 steps on 2 ranks: this rank sent ")
    assert "times fewer than uncompressed gradients" in end


def test_a_compression_that_is_no_longer_used_has_ended() -> None:
    text = stderr_of("train(20); print('later', file=__import__('sys').stderr)")
    assert text.splitlines()[-1] == "later"
    assert text.count("20 steps on 2 ranks") == 1


def test_a_compression_of_a_few_averages_ends_without_a_message() -> None:
    assert " steps on " not in stderr_of("train(3)")


@pytest.mark.parametrize(
    ("level", "times"), [("WARNING", 0), ("INFO", 1)], ids=["warnings", "information"]
)
def test_an_application_with_logging_decides_by_itself(level: str, times: int) -> None:
    text = stderr_of(f"import logging; logging.basicConfig(level='{level}'); report = train(20)")
    assert text.count(" steps on 2 ranks") == times
    assert text.count("bytes pass the link") == times


def test_logging_that_is_set_up_later_gets_the_messages_instead() -> None:
    text = stderr_of(
        "import logging; report = train(20); logging.basicConfig(format='app %(message)s')"
    )
    (end,) = [line for line in text.splitlines() if " steps on 2 ranks" in line]
    assert end.startswith("app gradcomp: ")


@pytest.mark.parametrize(
    ("log", "expected"), [("quiet", []), ("info", ["link"]), ("debug", ["tensor", "link"])]
)
def test_the_variable_sets_the_level(log: str, expected: list[str]) -> None:
    text = stderr_of("report = train(20)", log)
    texts = {
        "tensor": "gradcomp: w (100, 100): 'residual|topk(ratio=0.01)'",
        "link": "pass the link",
    }
    assert [name for name, text_ in texts.items() if text_ in text] == expected


def test_another_value_of_the_variable_is_refused() -> None:
    text = stderr_of("train(1)", "loud")
    assert "ConfigError: GRADCOMP_LOG is 'loud'; it must be one of quiet, info, debug" in text


def test_statistics_have_a_text_and_stable_names() -> None:
    stats = Stats(ranks=4)
    assert str(stats).startswith("0 steps on 4 ranks: this rank sent 0 bytes in a step")
    stats.count("allgather", 100)
    stats.count_gradients(2000)
    stats.steps = 1
    found = stats.as_dict()
    assert found["sent_bytes"] == {"allgather": 100}
    assert (found["total_bytes"], found["dense_bytes"], found["ratio"]) == (100, 2000, 20.0)
    assert str(stats) == (
        "1 step on 4 ranks: this rank sent 100 bytes in a step, 20.0 times fewer than uncompressed "
        "gradients; 300 passed its link, 10.0 times fewer than ring all-reduces of them"
    )


@pytest.mark.parametrize(
    ("dense", "expected"),
    [
        (1000, "as many as uncompressed gradients"),
        (1040, "about as many as uncompressed gradients"),
        (970, "about as many as uncompressed gradients"),
        (1060, "1.1 times fewer than uncompressed gradients"),
        (800, "1.2 times as many as uncompressed gradients"),
    ],
)
def test_the_text_of_statistics_compares_in_words(dense: int, expected: str) -> None:
    stats = Stats(steps=1)
    stats.count("allgather", 1000)
    stats.count_gradients(dense)
    assert f"1 step on 1 rank: this rank sent 1,000 bytes in a step, {expected};" in str(stats)


def test_means_after_a_checkpoint_are_of_the_steps_since_then() -> None:
    first, then = (Loopback("topk(ratio=0.01)", world_size=2) for _ in range(2))
    for step in range(50):
        first.step({"w": [np.full((100, 100), step + rank, np.float32) for rank in range(2)]})
    for rank, state in zip(then.ranks, first.ranks, strict=True):
        rank.load_state_dict(state.state_dict())
    for _ in range(2):
        then.step({"w": [np.ones((100, 100))] * 2})
    before, after = first.stats[0], then.stats[0]
    assert (after.steps, after.job_steps) == (52, 2)
    assert after.bytes_per_step == pytest.approx(before.bytes_per_step, rel=0.01)
    assert str(after).startswith("2 steps on 2 ranks")


def test_the_short_text_of_a_spec_means_the_same() -> None:
    for stage in stages():
        spec = parse(stage.example)
        assert parse(spec.short).canonical == spec.canonical
        assert len(spec.short) <= len(spec.canonical)
    spec = parse("residual(beta=1)|adaptive(rate=ramp(from=4,to=1,steps=100),rank=auto)")
    assert spec.short == "residual|adaptive(rate=ramp(from=4.0,steps=100,to=1.0))"
