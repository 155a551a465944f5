"""Profiles: measurements, files, advice, and the command."""

from __future__ import annotations

import json
import math
import re
import struct
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.compat.proto import event_pb2
from typer.testing import CliRunner

from gradcomp import Config, Loopback
from gradcomp.cli.app import app
from gradcomp.codec.spec import stages
from gradcomp.errors import ConfigError, GradcompError
from gradcomp.exchange.engine import Driver
from gradcomp.exchange.rounds import AllGather, Request
from gradcomp.runtime.agree.agreement import agreement_line
from gradcomp.runtime.collector import Collector
from gradcomp.runtime.measure.profile import Profile
from gradcomp.runtime.measure.profile_files import (
    write_jsonl,
    write_profile,
    write_tensorboard,
    write_trace,
)
from gradcomp.runtime.measure.profiled_engine import ProfiledEngine
from gradcomp.runtime.measure.stats import Stats
from gradcomp.runtime.pipeline import Pipeline
from gradcomp.tools.model_shapes import model_shapes
from gradcomp.tools.profile_model import ModelProfile, RuleProfile, profile_model
from gradcomp.tools.profile_remarks import remarks_on
from gradcomp.tools.step_model import Link, StepTime
from support.gradients import one_stream

SHAPES = {"first": (64, 96), "second": (96, 64), "bias": (64,)}

EXCHANGES = [
    *((stage.example, "auto") for stage in stages() if stage.kind in ("codec", "algorithm")),
    ("signum|sign", "auto"),
    ("dgc(ratio=0.05,warmup_epochs=0)", "auto"),
    ("residual|topk(ratio=0.05)", "sra"),
    ("residual|topk(ratio=0.05)", "sparse_allreduce"),
    ("residual|topk(ratio=0.05)", "two_level"),
]


def gradients(step: int, ranks: int = 2) -> dict[str, list[Any]]:
    return one_stream(SHAPES, ranks, step)


def config_of(spec: str, exchange: str = "auto", **sections: Any) -> Config:
    compress = {"default": spec, "exchange": exchange, "bucket_bytes": 40_000}
    if exchange == "two_level":
        compress["ranks_per_node"] = 2
    return Config.from_mapping({"version": 1, "compress": compress, **sections})


def profiled(
    spec: str, exchange: str = "auto", *, steps: int = 3, error: bool = False
) -> tuple[Loopback, Profile]:
    loop = Loopback(config_of(spec, exchange), 2)
    loop.set_epoch(0)
    first, _ = (stats.start_profile(error=error) for stats in loop.stats)
    for step in range(steps):
        loop.step(gradients(step))
    return loop, first


# ------------------------------------------------------------------- measuring


@pytest.mark.parametrize(("spec", "exchange"), EXCHANGES)
def test_a_profile_changes_nothing_and_adds_up(spec: str, exchange: str) -> None:
    loop, profile = profiled(spec, exchange)
    plain = Loopback(config_of(spec, exchange), 2)
    plain.set_epoch(0)
    for step in range(3):
        expected = plain.step(gradients(step))
    again = Loopback(config_of(spec, exchange), 2)
    again.set_epoch(0)
    for stats in again.stats:
        stats.start_profile()
    for step in range(3):
        found = again.step(gradients(step))
    for name, averages in expected.items():
        for one, other in zip(averages, found[name], strict=True):
            np.testing.assert_array_equal(one, other)
    assert [step.step for step in profile.steps] == [0, 1, 2]
    assert profile.total.sent_bytes == plain.stats[0].sent_bytes == loop.stats[0].sent_bytes
    assert profile.total.dense_bytes == plain.stats[0].dense_bytes
    for step in profile.steps:
        assert 0 < sum(step.phases.values()) <= step.seconds
        assert step.phases["copy"] > 0
        assert min(step.phases.values()) >= 0
        assert step.vnmse is None
    requests = [event for event in profile.events if event.request]
    assert len(requests) == profile.total.requests
    # Kinds of bytes inside a node have a name of their own.
    assert sum(event.nbytes for event in requests) == sum(profile.total.sent_bytes.values())


@pytest.mark.parametrize(
    ("spec", "used"),
    [
        ("residual|topk(ratio=0.05)", {"encode", "decode", "copy"}),
        ("signum|sign", {"compensate", "encode", "decode", "copy"}),
        ("dgc(ratio=0.05,warmup_epochs=0)", {"compensate", "encode", "decode", "copy"}),
        ("powersgd(rank=2,start_step=0)", {"encode", "decode", "copy"}),
        ("atomo(rank=2)", {"encode", "decode", "copy"}),
        ("fp16", {"encode", "decode", "copy"}),
        ("identity", {"copy"}),
    ],
)
def test_stages_of_specs(spec: str, used: set[str]) -> None:
    _, profile = profiled(spec)
    assert {phase for phase, seconds in profile.total.phases.items() if seconds} == used
    first = Pipeline(config_of(spec))
    assert set(profile.total.tensors) == {
        name for bucket in first.buckets(first.resolve_all(SHAPES)) for name in bucket[:1]
    }


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> float:
        self.now += seconds
        return seconds


def test_no_second_is_counted_twice() -> None:
    clock = Clock()
    profile = Profile(Stats(), clock=clock)
    profile.begin_step()
    clock.wait(1)

    def outer() -> None:
        clock.wait(2)
        profile.measure("encode", None, clock.wait, 4)
        profile.measure("compensate", None, inner)

    def inner() -> None:
        clock.wait(8)
        profile.measure("decode", None, clock.wait, 16)

    profile.measure("copy", "a", outer)
    clock.wait(32)
    profile.measure("wait", "b", clock.wait, 64)
    clock.wait(128)  # of the next step's forward pass
    profile.begin_step()
    (step,) = profile.steps
    assert step.tensors == {
        "a": {"copy": 2, "encode": 4, "compensate": 8, "decode": 16},
        "b": {"wait": 64},
    }
    assert (step.begin, step.seconds) == (100, 127)
    assert profile.total.seconds == 127


def test_a_function_that_raises_is_counted_too() -> None:
    clock = Clock()
    profile = Profile(Stats(), clock=clock)

    def fail() -> None:
        clock.wait(3)
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        profile.measure("encode", "a", fail)
    profile.measure("decode", "a", clock.wait, 2)
    assert profile.total.tensors == {"a": {"encode": 3, "decode": 2}}


def test_a_step_that_failed_does_not_stop_the_next_one() -> None:
    pipeline = Pipeline("topk(ratio=0.05)", 0, 2)
    profile = pipeline.stats.start_profile()
    profile.begin_step()
    pipeline.round("w", np.ones((64, 96), np.float32)).send(None)
    assert profile.steps == []
    profile.begin_step()
    one = pipeline.round("w", np.ones((64, 96), np.float32))
    request = next(one)
    with pytest.raises(StopIteration):
        one.send([request.frame] * 2)
    assert [step.requests for step in profile.steps] == [1, 1]


class Alone:
    """The collectives of one rank, which take a second each."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def start(self, request: Request) -> Request:
        return request

    def finish(self, request: Request) -> Any:
        self.clock.wait(1)
        return [request.frame] if isinstance(request, AllGather) else request.array


def test_drivers_wait_for_the_network() -> None:
    clock = Clock()
    pipeline = Pipeline("residual|topk(ratio=0.05)")
    engine = ProfiledEngine(Alone(clock), pipeline.stats)
    collector = Collector(Driver(engine), pipeline, SHAPES)
    for profile in (None, Profile(pipeline.stats, clock=clock)):
        pipeline.stats.profile = profile
        collector.begin_step()
        for name, shape in SHAPES.items():
            resolved = collector.resolve(name, shape)
            collector.add(resolved, np.ones(shape, np.float32), 4 * math.prod(shape))
        for name in SHAPES:
            collector.finish(name)
    (step,) = profile.steps
    assert step.phases["wait"] == 2
    assert {name: one.get("wait") for name, one in step.tensors.items()} == {
        "second+1": 1,
        "bias": 1,
    }
    kinds = [(event.request, event.phase) for event in profile.events if event.request]
    assert sorted(kinds) == [("bias", "allreduce"), ("second+1", "allgather")]


@pytest.mark.parametrize(("spec", "exchange"), EXCHANGES)
def test_errors_are_those_of_the_averages(spec: str, exchange: str) -> None:
    config = config_of(spec, exchange)
    plain, compared = Loopback(config, 2), Loopback(config, 2)
    for loop in (plain, compared):
        loop.set_epoch(0)
    profiles = [stats.start_profile(error=True) for stats in compared.stats]
    expected, expected_of_tensors = [], []
    for step in range(2):
        grads = gradients(step)
        averages, found = plain.step(grads), compared.step(grads)
        error = norm = 0.0
        of_tensors = {}
        for name, of_ranks in grads.items():
            np.testing.assert_array_equal(averages[name][0], found[name][0])
            exact = np.mean(of_ranks, axis=0, dtype=np.float64)
            error += np.sum((averages[name][0] - exact) ** 2)
            norm += np.sum(exact**2)
            of_tensors[name] = np.sum((averages[name][0] - exact) ** 2) / np.sum(exact**2)
        expected.append(error / norm)
        expected_of_tensors.append(of_tensors)
    for profile in profiles:
        found = [step.vnmse for step in profile.steps]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-12)
        for step, of_tensors in zip(profile.steps, expected_of_tensors, strict=True):
            for name, one in step.errors.items():  # of the tensors that are compressed
                np.testing.assert_allclose(one.vnmse, of_tensors[name], rtol=1e-4, atol=1e-12)
            assert step.errors
        assert profile.total.phases["error"] > 0
    # The exact averages are no part of the compression.
    assert compared.stats[0].sent_bytes == plain.stats[0].sent_bytes


def test_an_average_that_is_not_finite_has_an_error_that_is_not() -> None:
    loop = Loopback("fp16", 2)
    for stats in loop.stats:
        stats.start_profile(error=True)
    loop.step({"w": [np.full((64, 96), 1e30, np.float32)] * 2})
    assert loop.stats[0].profile.total.vnmse == math.inf


def test_profiles_forget_old_steps_but_not_their_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradcomp.runtime.measure.profile.KEPT_STEPS", 3)
    loop, profile = profiled("fp16", steps=5)
    assert [step.step for step in profile.steps] == [2, 3, 4]
    assert profile.total.step == 5
    assert profile.total.sent_bytes == loop.stats[0].sent_bytes


def test_profiles_end() -> None:
    loop, profile = profiled("fp16", steps=2)
    loop.stats[0].stop_profile()
    loop.step(gradients(2))
    assert len(profile.steps) == 2
    assert loop.stats[0].profile is None


# ----------------------------------------------------------------------- files


def test_jsonl(tmp_path: Path) -> None:
    loop, profile = profiled("residual|topk(ratio=0.05)", error=True)
    write_jsonl(profile, tmp_path / "new" / "profile.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "new/profile.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2]
    sent = sum((Counter(row["sent_bytes"]) for row in rows), Counter())
    assert sent == loop.stats[0].sent_bytes
    for row in rows:
        assert sum(row["phases"].values()) <= row["seconds"]
        of_tensors = sum(sum(one.values()) for one in row["tensors"].values())
        np.testing.assert_allclose(of_tensors, sum(row["phases"].values()))
        assert 0 < row["vnmse"] < 2
        assert row["dense_bytes"] == 4 * sum(math.prod(shape) for shape in SHAPES.values())


@pytest.mark.parametrize("spec", ["residual|topk(ratio=0.05)", "powersgd(start_step=0)", "fp16"])
def test_trace(tmp_path: Path, spec: str) -> None:
    loop, profile = profiled(spec)
    write_trace(profile, tmp_path / "trace.json", rank=1)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {1}
    slices = [event for event in events if event["ph"] == "X"]
    ends: list[float] = []
    for event in sorted(slices, key=lambda event: (event["ts"], -event["dur"])):
        while ends and ends[-1] <= event["ts"]:
            ends.pop()
        # Within the slice around it, to the rounding of a double of microseconds.
        assert not ends or event["ts"] + event["dur"] <= ends[-1] + 1e-3
        assert ends or event["cat"] == "step"
        ends.append(event["ts"] + event["dur"])
    steps = [event for event in slices if event["cat"] == "step"]
    sent = sum((Counter(event["args"]["sent_bytes"]) for event in steps), Counter())
    assert sent == loop.stats[0].sent_bytes
    begun = {event["id"]: event for event in events if event["ph"] == "b"}
    ended = {event["id"]: event for event in events if event["ph"] == "e"}
    assert len(begun) == profile.total.requests
    assert begun.keys() == ended.keys()
    for number, event in begun.items():
        assert event["name"] == ended[number]["name"]
        assert event["ts"] <= ended[number]["ts"]
    assert sum(event["args"]["bytes"] for event in begun.values()) == sum(sent.values())


def test_requests_have_the_names_that_engines_see(tmp_path: Path) -> None:
    loop = Loopback(config_of("powersgd(rank=2,start_step=0,variant=paper)"), 2)
    profile = loop.stats[0].start_profile()
    loop.step(gradients(0))
    expected = []
    for names in loop.ranks[0].buckets(loop.ranks[0].resolve_all(SHAPES)):
        pipeline = Pipeline(config_of("powersgd(rank=2,start_step=0,variant=paper)"))
        one = pipeline.bucket_round(
            names[0], {name: np.ones(SHAPES[name], np.float32) for name in names}
        )
        try:
            request = next(one)
            while True:
                expected.append(request.name)
                request = one.send(request.array)
        except StopIteration:
            pass
    assert [event.request for event in profile.events if event.request] == expected
    assert any(name.endswith(".p0") for name in expected)


def records(path: Path) -> list[bytes]:
    """TFRecords: a length, its checksum, the data, its checksum."""
    data, found = path.read_bytes(), []
    while data:
        (length,) = struct.unpack_from("<Q", data)
        found.append(data[12 : 12 + length])
        data = data[16 + length :]
    return found


def test_tensorboard(tmp_path: Path) -> None:
    _, profile = profiled("residual|topk(ratio=0.05)", error=True)
    write_tensorboard(profile, tmp_path / "events")
    (path,) = (tmp_path / "events").iterdir()
    assert path.name.startswith("events.out.tfevents.")
    first, *events = map(event_pb2.Event.FromString, records(path))
    assert first.file_version == "brain.Event:2"
    assert [event.step for event in events] == [0, 1, 2]
    for event, step in zip(events, profile.steps, strict=True):
        scalars = {value.tag: value.simple_value for value in event.summary.value}
        assert scalars["gradcomp/bytes/allgather"] == step.sent_bytes["allgather"]
        assert scalars["gradcomp/seconds/encode"] == pytest.approx(step.phases["encode"])
        assert scalars["gradcomp/vnmse"] == pytest.approx(step.vnmse)
        assert scalars["gradcomp/ratio"] > 1


def test_without_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.record_writer", None)
    with pytest.raises(GradcompError, match=r"pip install tensorboard\), or write JSON lines"):
        write_tensorboard(Profile(Stats()), tmp_path)


def test_compressions_of_one_rank_have_files_of_their_own(tmp_path: Path) -> None:
    _, profile = profiled("fp16")
    for rank in (0, 1, 0):
        write_profile(profile, tmp_path, rank)
    names = ("rank0", "rank0-2", "rank1")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        f"{name}.{kind}" for name in names for kind in ("jsonl", "trace.json")
    )


# --------------------------------------------------------------- configuration


def test_a_configuration_asks_for_a_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_exit: list[Any] = []
    monkeypatch.setattr("atexit.register", lambda *call: at_exit.append(call))
    folder = tmp_path / "profile"
    stats = {"profile": str(folder), "error": True}
    pipeline = Pipeline(config_of("fp16", stats=stats), 1, 2)
    pipeline.profiled(Alone(Clock()))
    assert pipeline.stats.profile is not None
    assert pipeline.stats.compares
    ((function, *arguments),) = at_exit
    function(*arguments)
    assert {path.name for path in folder.iterdir()} == {"rank1.jsonl", "rank1.trace.json"}
    plain = Pipeline(config_of("fp16"))
    plain.profiled(Alone(Clock()))
    assert plain.stats.profile is None
    assert not plain.stats.compares


def test_a_job_names_the_files_of_its_profile(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    profile = Stats().start_profile()
    with caplog.at_level("INFO"):
        write_profile(profile, tmp_path, 1)
        assert caplog.text == ""
        write_profile(profile, tmp_path, 0)
    for name in ("rank0.jsonl", "rank0.trace.json"):
        assert f"{tmp_path / name}" in caplog.text
    assert f"(gradcomp report {tmp_path})" in caplog.text


def test_profiles_are_no_part_of_what_checkpoints_depend_on(tmp_path: Path) -> None:
    plain = config_of("fp16")
    folder = str(tmp_path)
    timed = config_of("fp16", stats={"profile": folder})
    compared = config_of("fp16", stats={"profile": folder, "error": True})
    assert plain.digest_text() == timed.digest_text() == compared.digest_text()
    # But ranks that measure errors make requests of their own.
    lines = [agreement_line(one, SHAPES, None) for one in (plain, timed, compared)]
    assert lines[0] == lines[1] != lines[2]


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"profil": "x"}, r"stats\.profil: unknown key, did you mean 'profile'\?"),
        ({"profile": 3}, r"stats\.profile: got 3.*; expected the path of a folder"),
        ({"profile": "x", "error": "yes"}, r"stats\.error: got 'yes'; expected true or false"),
        ({"error": True}, "set stats.profile to a folder"),
        (["profile"], r"stats: got \['profile'\].*; expected a mapping"),
    ],
)
def test_bad_sections(section: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of("fp16", stats=section)


# ----------------------------------------------------------- gradcomp profile


def test_a_model_is_profiled() -> None:
    shapes = model_shapes("digits-cnn")
    config = config_of("dgc(ratio=0.01,warmup_epochs=5)")
    result = profile_model(config, shapes, 2, 2, Link(1e9))
    numel = sum(math.prod(shape) for shape in shapes.values())
    assert result.dense_bytes == 4 * numel
    # After the warm-up, of which the first epoch sends a quarter.
    assert sum(result.sent_bytes.values()) < 4 * numel / 10
    early = profile_model(config, shapes, 2, 1, Link(1e9), first_step=0)
    assert sum(early.sent_bytes.values()) > 4 * numel / 4
    assert sum(row.tensors for row in result.rules) == len(shapes)
    assert {row.rule for row in result.rules} == {
        "compress.default",
        "default rule: ndim <= 1",
        "default rule: numel < 4096",
    }
    of_rules = sum(row.seconds for row in result.rules)
    np.testing.assert_allclose(of_rules, result.computed_seconds)
    np.testing.assert_allclose(sum(result.step.stages.values()), result.step.seconds)
    wire = 8 * sum(result.sent_bytes.values()) / 1e9  # all of it, with two ranks
    np.testing.assert_allclose(result.step.stages["wire"], wire)


def modelled(wire: float, dense: float = 1.0, workers: int = 4, **phases: float) -> ModelProfile:
    parts = {
        phase: phases.get(phase, 0.001) for phase in ("compensate", "encode", "decode", "copy")
    }
    link = Link(1e9)
    return ModelProfile(
        workers=workers,
        steps=3,
        threads=1,
        link=link,
        step=StepTime.in_turn(parts, link, wire * 1e9 / 8),
        uncompressed=StepTime.in_turn({}, link, dense * 1e9 / 8),
        sent_bytes={"allgather": 1e6},
        dense_bytes=10**8,
        requests=126,
        rules=(RuleProfile("compress.default", "topk(ratio=0.01)", 10, 3, 0.1),),
    )


@pytest.mark.parametrize(
    ("result", "first", "second"),
    [
        (
            modelled(0.01, encode=0.1),
            r"8\.8 times as fast as the 1000\.0 ms .* below 9\.61 Gbit/s",
            r"^encoding takes 88% .* sampled_topk for topk",
        ),
        (modelled(0.01, decode=0.1), "times as fast", r"^decoding takes 88% .*exchange: sra"),
        (modelled(0.01, copy=0.1), "times as fast", r"^copying.* the 126 requests .*bucket_bytes"),
        (modelled(0.01, compensate=0.1), "times as fast", r"^keeping memories .*residual"),
        (modelled(0.5), "times as fast", r"^the wire takes 99% .*exchange: sra.*; a spec"),
        (modelled(0.5, workers=2), "times as fast", r"wire takes 99% of the step: a spec that"),
        (
            modelled(0.01, encode=1.5),
            r"slower than .* 659 Mbit/s: fp16, or compress\.policy: auto",
            r"^encoding takes 99%",
        ),
        (modelled(1.5), "no fewer bytes pass the link", "^the wire takes 100%"),
    ],
)
def test_remarks(result: ModelProfile, first: str, second: str) -> None:
    remarks = remarks_on(result)
    assert len(remarks) == 2
    for remark, pattern in zip(remarks, (first, second), strict=True):
        assert re.search(pattern, remark), remark


def test_one_worker_is_no_job() -> None:
    assert "give --workers the size of the job" in remarks_on(modelled(0.0, workers=1))[0]


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["profile", *arguments])
    assert result.exit_code == code, result.output
    return result.output


def test_command() -> None:
    output = run("residual|topk(ratio=0.01)", "--model", "digits-mlp", "--workers", "2")
    assert "digits-mlp, 2 workers" in output
    for line in ("encode ", "decode ", "copy ", "wire ", "all "):
        assert f"\n{line}" in output
    assert "compress.default" in output
    assert "no compression on this link" in output
    assert max(map(len, output.splitlines())) <= 80


def test_command_in_json() -> None:
    result = json.loads(
        run("fp16", "--model", "digits-mlp", "--workers", "2", "--bandwidth", "10", "--json")
    )
    assert result["bits_per_second"] == 1e7
    assert result["sent_bytes"]["allreduce"] == pytest.approx(2 * 301_066, rel=0.01)
    assert result["seconds"] == pytest.approx(
        sum(result["phases"].values()) + result["wire_seconds"]
    )
    assert "the wire takes" in " ".join(result["advice"])


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--workers", "0"), "workers is 0; it must be at least 1"),
        (("--steps", "0"), "steps is 0; it must be at least 1"),
        (("--step", "-1"), "step is -1; it must be at least 0"),
        (("--bandwidth", "0"), "the bandwidth is 0 bit/s; it must be above 0"),
        (("--bandwidth", "inf"), "the bandwidth is infinite; give the rate of a rank's link"),
        (("--model", "alexnet"), "expected one of"),
    ],
)
def test_bad_options(option: tuple[str, str], message: str) -> None:
    assert message in run("fp16", *option, code=2)
