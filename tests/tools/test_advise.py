"""The predictor of `gradcomp advise`: its laws, its cache, and the command as users run it."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

from gradcomp import Config, Pipeline, load_config
from gradcomp.cli.app import app
from gradcomp.codec.spec import parse
from gradcomp.errors import GradcompError
from gradcomp.exchange.link import dense_link_bytes
from gradcomp.runtime.loopback import Loopback
from gradcomp.tools.advise import calibrate
from gradcomp.tools.advise.accuracy import _all, accuracy_text
from gradcomp.tools.advise.cache import SpeedCache
from gradcomp.tools.advise.calibrate import (
    RequestLaw,
    Speeds,
    config_of,
    measure_speeds,
    ticks,
)
from gradcomp.tools.advise.copies import seconds_of_copy
from gradcomp.tools.advise.laws import Features, Law, Point, fit_law
from gradcomp.tools.advise.predict import UNCOMPRESSED, Job, predict
from gradcomp.tools.advise.predictions import PriorMaker
from gradcomp.tools.advise.rank import candidates
from gradcomp.tools.advise.wire import ENGINES
from gradcomp.tools.model_shapes import model_shapes
from gradcomp.tools.step_model import Link
from gradcomp.tools.synthetic import LATE_STEP, synthetic_gradients
from support.speeds import GATHERED, PASSES, speeds_of

ROOT = Path(__file__).resolve().parents[2]
SHAPES = model_shapes("resnet20")
ENGINE = pytest.mark.parametrize("engine", ENGINES)


@pytest.fixture(scope="module")
def gathered() -> Speeds:
    return speeds_of(*GATHERED)


def job(engine: str = "horovod", ranks: int = 4, rate: float = 1e8, **other: float) -> Job:
    return Job(SHAPES, ranks, Link(rate), ENGINES[engine], **other)  # type: ignore[arg-type]


def test_fit_finds_the_law() -> None:
    law = Law((2.0, 0.0, 0.5, 0.0, 0.0), (0.0, 0.0, 0.25, 0.0, 0.0), (0.0,) * 5)
    sizes = [
        Features(1, 1, 1e4, 100, 100),
        Features(1, 9, 1e5, 300, 300),
        Features(1, 1, 1e6, 1000, 1000),
    ]
    points = [Point(size, ranks, law.at(size, ranks)) for size in sizes for ranks in (2, 4)]
    fitted = fit_law(points)
    for size, ranks in [(Features(3, 30, 5e6, 2500, 2500), 3), (sizes[2], 64)]:
        assert fitted.at(size, ranks) == pytest.approx(law.at(size, ranks), rel=0.02)


def test_fit_of_nothing_costs_nothing() -> None:
    assert fit_law([Point(Features(1, 1, 10, 5, 2), 2, 0.0)]).at(Features(5, 5, 5, 5, 5), 9) == 0


@pytest.mark.parametrize(
    ("spec", "exchange"),
    [GATHERED, ("residual|int8", "sra"), ("fp16", "reduce"), ("powersgd(rank=2)", "auto")],
)
def test_predicted_bytes_are_those_of_real_rounds(spec: str, exchange: str) -> None:
    ranks = 4
    loop = Loopback(config_of(spec, exchange), ranks)
    loop.begin_at(LATE_STEP, SHAPES)
    rng = np.random.default_rng(0)
    loop.step({name: synthetic_gradients(rng, shape, ranks) for name, shape in SHAPES.items()})
    # DDP makes no further requests.
    found = predict(job("torch", ranks), spec, exchange, speeds_of(spec, exchange))
    assert found.link_bytes == pytest.approx(loop.stats[0].link_bytes, rel=0.03)


@ENGINE
def test_uncompressed_bytes_are_a_ring(engine: str) -> None:
    nbytes = 4 * sum(map(math.prod, SHAPES.values()))
    assert predict(job(engine, 8), UNCOMPRESSED).link_bytes == dense_link_bytes(nbytes, 8)


@ENGINE
def test_a_faster_link_is_never_slower(engine: str, gathered: Speeds) -> None:
    rates = [10.0**power for power in range(5, 14)]
    for spec, exchange, speeds in [(UNCOMPRESSED, "auto", None), (*GATHERED, gathered)]:
        one = job(engine, compute=0.05)
        steps = [
            predict(replace(one, link=Link(rate)), spec, exchange, speeds).seconds for rate in rates
        ]
        assert steps == sorted(steps, reverse=True)
        assert steps[0] > 2 * steps[-1]


@ENGINE
def test_more_ranks_are_never_faster(engine: str, gathered: Speeds) -> None:
    for spec, exchange, speeds in [(UNCOMPRESSED, "auto", None), (*GATHERED, gathered)]:
        steps = [
            predict(job(engine, ranks), spec, exchange, speeds).seconds
            for ranks in (1, 2, 4, 8, 16, 64)
        ]
        assert steps == sorted(steps)


@ENGINE
def test_infinite_bandwidth_leaves_the_work(engine: str, gathered: Speeds) -> None:
    one = job(engine, rate=math.inf, compute=0.2)
    found = predict(one, *GATHERED, gathered)
    assert found.stages["wire"] == found.stages["latency"] == 0
    work = sum(found.stages[stage] for stage in ("model", "encode", "decode", "copy"))
    assert work <= found.seconds <= work + found.stages["engine"]


@ENGINE
def test_one_rank_sends_nothing(engine: str, gathered: Speeds) -> None:
    found = predict(job(engine, ranks=1, compute=0.2), *GATHERED, gathered)
    assert found.link_bytes == found.stages["engine"] == found.stages["wire"] == 0


@ENGINE
def test_without_computation_nothing_hides_the_wire(engine: str) -> None:
    found = predict(job(engine, rate=1e6), UNCOMPRESSED)
    assert found.seconds >= found.stages["wire"] + found.stages["latency"]
    hidden = predict(job(engine, rate=1e6, compute=2.0), UNCOMPRESSED)
    assert hidden.seconds < found.seconds + 2.0


def test_computation_takes_at_least_its_time(gathered: Speeds) -> None:
    assert predict(job(compute=0.5), *GATHERED, gathered).seconds >= 0.5


def test_computation_on_the_host_shares_its_cores(gathered: Speeds) -> None:
    """It takes longer where ranks have less than a core each."""
    assert predict(job(host_compute=0.5), *GATHERED, gathered).seconds >= 0.5
    for cores, slow in ((1.0, 1), (0.5, 2)):
        there = replace(job("torch", cores=cores), link=Link(math.inf), ranks=1)
        own = predict(there, *GATHERED, gathered)
        added = predict(replace(there, host_compute=0.25), *GATHERED, gathered)
        assert added.seconds - own.seconds == pytest.approx(slow * 0.25)
        assert added.stages["model"] == pytest.approx(slow * 0.25)


def test_shared_cores_slow_own_work(gathered: Speeds) -> None:
    whole, half = (predict(job(cores=cores), *GATHERED, gathered) for cores in (1.0, 0.5))
    assert half.stages["encode"] == pytest.approx(2 * whole.stages["encode"])
    assert half.stages["wire"] == whole.stages["wire"]


def test_ranks_of_one_node_use_no_link() -> None:
    found = predict(job(ranks=4, ranks_per_node=4), UNCOMPRESSED)
    assert found.link_bytes == found.stages["wire"] == 0


def test_two_level_passes_fewer_bytes() -> None:
    one = replace(job("torch", ranks=8), ranks_per_node=2)
    speeds = {name: speeds_of(GATHERED[0], name) for name in ("gather", "two_level(gather)")}
    flat, two = (predict(one, GATHERED[0], name, speeds[name]) for name in speeds)
    assert two.link_bytes < flat.link_bytes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ranks": 0}, "ranks is 0; it must be at least 1"),
        ({"ranks_per_node": 3}, "4 ranks do not fill nodes of 3"),
        ({"compute": -1.0}, "computation is -1 s; it must be at least 0"),
        ({"host_compute": math.inf}, "computation is inf s; it must be at least 0 and finite"),
        ({"cores": 0.0}, "cores is 0; it must be above 0"),
        ({"shapes": {}}, "the model has no parameters"),
    ],
)
def test_numbers_out_of_range(change: dict[str, object], message: str) -> None:
    with pytest.raises(GradcompError, match=re.escape(message)):
        replace(job(), **change)  # type: ignore[arg-type]


def test_links_out_of_range() -> None:
    with pytest.raises(GradcompError, match="bandwidth is 0 bit/s; it must be above 0: give"):
        Link(0.0)
    with pytest.raises(GradcompError, match="latency is -1 s; it must be at least 0"):
        Link(1e9, -1.0)


def test_speeds_survive_the_cache(
    gathered: Speeds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache = SpeedCache()
    cache.keep_speeds(*GATHERED, gathered)
    cache.keep_copy_byte(2, 1e-10)
    again = SpeedCache()
    assert again.speeds(*GATHERED) == gathered
    assert again.speeds(parse(GATHERED[0]).canonical, "gather") == gathered
    assert again.speeds("fp16", "reduce") is None
    assert again.copy_byte(2) == 1e-10
    assert again.copy_byte(1) is None
    saved = json.loads(cache.path.read_text())
    for other in ({"version": "0.0"}, {"measurement": 1}):
        cache.path.write_text(json.dumps(saved | {"key": {**saved["key"], **other}}))
        assert SpeedCache().speeds(*GATHERED) is None
    cache.path.write_text(json.dumps(saved))
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "torch", None)
        assert SpeedCache().copy_byte(2) is None
    assert SpeedCache().copy_byte(2) == 1e-10
    cache.path.write_text("{")
    assert SpeedCache().copy_byte(2) is None


@pytest.mark.parametrize("at_once", [1, 3])
@pytest.mark.parametrize("with_torch", [False, True])
def test_seconds_of_copies_at_once(
    at_once: int, with_torch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not with_torch:
        monkeypatch.setitem(sys.modules, "torch", None)
    threads = torch.get_num_threads()
    assert seconds_of_copy(at_once, nbytes=1 << 16) > 0
    assert torch.get_num_threads() == threads


def test_speeds_of_several_pairs_have_ticks_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    small = [{"a": (128, 128)}, {"a": (128, 160)}] * 2
    assert len(small) == len(calibrate._MODELS)
    monkeypatch.setattr(calibrate, "_MODELS", small)
    calls: list[None] = []
    pairs = [("fp16", "reduce"), GATHERED]
    fp16, gathered = measure_speeds(pairs, lambda: calls.append(None))
    assert len(calls) == len(pairs) * ticks
    assert [one.kind for one in fp16.requests] == ["allreduce float16"]
    assert [one.kind for one in gathered.requests] == ["allgather"]


def test_long_measurements_are_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []
    clock = iter(range(10**6))
    monkeypatch.setattr(
        calibrate.time, "perf_counter", lambda: next(clock)
    )  # a second for each pair
    measure = calibrate._measure

    def counted(config: Config, *args: object) -> object:
        measured.append(config.compress.default.canonical)
        return measure(config, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(calibrate, "_measure", counted)
    monkeypatch.setattr(calibrate, "_MODELS", [{"a": (128, 128)}] * 4)
    for longest, passes in ((10.0, 3), (1.0, 1)):
        measured.clear()
        monkeypatch.setattr(calibrate, "_LONG", longest)
        calls: list[None] = []
        measure_speeds([("fp16", "reduce")], lambda calls=calls: calls.append(None))
        assert len(measured) == passes * 4 * 2
        assert len(calls) == ticks


def test_a_cache_that_cannot_be_written(
    gathered: Speeds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    cache = SpeedCache()
    cache.keep_speeds(*GATHERED, gathered)
    assert cache.speeds(*GATHERED) == gathered


def test_candidates_name_each_pattern_once() -> None:
    found = candidates(["residual|int8"], ranks=8, ranks_per_node=2)
    assert [one.exchange for one in found if one.compresses] == [
        "gather",
        "sra",
        "two_level(gather)",
        "two_level(sra)",
    ]
    assert found[0].spec == UNCOMPRESSED


def test_accuracy_is_that_of_the_results() -> None:
    page = (ROOT / "docs/results/README.md").read_text(encoding="utf-8")
    for one in _all():
        parse(one.spec)
        section = page.split(f"# {one.section}\n")[1].split("\n#")[0]
        rows = {
            cells[0]: cells[2]
            for line in section.splitlines()
            if line.startswith("| ") and len(cells := [x.strip() for x in line.split("|")[1:]]) > 3
        }
        digits = len(rows["uncompressed"].split(" ")[0].split(".")[1])
        for name, mean, spread in [
            ("uncompressed", one.baseline, one.baseline_spread),
            (one.run, one.result, one.result_spread),
        ]:
            assert rows[name] == f"{mean:.{digits}f} ± {spread:.{digits}f}", one


def test_accuracy_by_the_parameters_named() -> None:
    assert accuracy_text("fp16") == "3 of 3"
    assert accuracy_text("powersgd(rank=2,variant=library)") == "3 of 3"
    assert accuracy_text("dgc(ratio=0.001,warmup_epochs=0)") == "3 of 4"
    assert accuracy_text("residual|polar(rate=0.0625)") == "1 of 1"
    assert accuracy_text("powersgd(rank=3)") == "-"
    assert accuracy_text("residual|topk(ratio=0.02)") == "-"


# The command.


def gradcomp(*arguments: str, cache: Path, code: int = 0) -> Result:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibrate, "_PASSES", PASSES)
        environment = {"XDG_CACHE_HOME": str(cache), "COLUMNS": "80"}
        done = CliRunner().invoke(app, ["advise", *arguments], env=environment)
    assert done.exit_code == code, done.output
    return done


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("advise-cache")


COMMON = ("--spec", "fp16", "--spec", "residual|topk(ratio=0.01)")


def test_command_compresses_on_a_slow_link(cache: Path) -> None:
    arguments = ("resnet20", "--ranks", "4", "--bandwidth", "10", *COMMON)
    text = gradcomp(*arguments, cache=cache).stdout
    assert all(len(line) <= 80 or "model.named_parameters()" in line for line in text.splitlines())
    assert 'default: "residual|topk(ratio=0.01)"' in text
    assert "Compression.from_config(" in text
    found = json.loads(gradcomp(*arguments, "--json", cache=cache).stdout)
    rows = found["candidates"]
    assert [row["seconds"] for row in rows] == sorted(row["seconds"] for row in rows)
    assert rows[0]["spec"] == "residual|topk(ratio=0.01)"
    assert {row["spec"] for row in rows} == {UNCOMPRESSED, "fp16", "residual|topk(ratio=0.01)"}
    assert all(row["exchange"] != "auto" for row in rows if row["spec"] != UNCOMPRESSED)
    assert sum(rows[0]["stages"].values()) == pytest.approx(rows[0]["seconds"] + rows[0]["hidden"])


def test_rows_are_grouped_by_spec(cache: Path) -> None:
    specs = ("--spec", "fp16", "--spec", "residual|sign")
    text = gradcomp("resnet20", "--ranks", "4", "--bandwidth", "10", *specs, cache=cache).stdout
    rows = text.split("spec  ")[1].split("\n\n")[0].splitlines()[1:]
    named = [row.split("  ")[0] for row in rows]
    groups = {"fp16": 3, "residual|sign": 2, "do not compress": 1}
    for spec, exchanges in groups.items():
        at = named.index(spec)
        assert named[at + 1 : at + exchanges] == [""] * (exchanges - 1)
    assert len(named) == sum(groups.values())


def test_command_leaves_fast_links_alone(cache: Path) -> None:
    arguments = ("resnet20", "--ranks", "4", "--bandwidth", "1e6", "--compute", "500", *COMMON)
    found = gradcomp(*arguments, "--engine", "torch", cache=cache).stdout
    assert "Do not compress: leave the script as it is." in found
    assert "ddp_hook" not in found


def test_pasted_configuration_is_valid(cache: Path, tmp_path: Path) -> None:
    arguments = ("resnet20", "--ranks", "8", "--nodes", "4", "--bandwidth", "10")
    text = gradcomp(*arguments, "--spec", "residual|sign", cache=cache).stdout
    path = tmp_path / "compress.yaml"
    path.write_text(text.split("compress.yaml:\n\n")[1].split("\n\n")[0])
    Loopback(load_config([path]), 8)


def test_calibration_is_kept_and_repeated(cache: Path) -> None:
    arguments = ("resnet20", "--ranks", "2", "--bandwidth", "10", "--spec", GATHERED[0])
    gradcomp(*arguments, cache=cache)
    before = calibrations(cache)
    gradcomp(*arguments, cache=cache)
    assert calibrations(cache) == before
    gradcomp(*arguments, "--recalibrate", cache=cache)
    after = calibrations(cache)
    assert after.keys() == before.keys()
    assert sum(after[name] != before[name] for name in before) == 1


def calibrations(cache: Path) -> dict[str, str]:
    """A file for each number of threads: one rank on a host has more of them than two."""
    return {path.name: path.read_text() for path in (cache / "gradcomp").glob("speeds-*.json")}


def test_models_from_files_and_functions(cache: Path, tmp_path: Path) -> None:
    shapes = tmp_path / "shapes.yaml"
    shapes.write_text("fc.weight: [1000, 512]\nfc.bias: [1000]\n")
    common = ("--ranks", "2", "--bandwidth", "100", "--spec", "fp16")
    assert "513,000 elements" in gradcomp(str(shapes), *common, cache=cache).stdout
    (tmp_path / "my_model.py").write_text(
        "import torch\n\ndef make():\n    return torch.nn.Linear(512, 1000)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "gradcomp", "advise", "my_model:make", *common],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "XDG_CACHE_HOME": str(cache), "COLUMNS": "200"},
        check=False,
    )
    assert "513,000 elements" in done.stdout, done.stderr


CONFIG = "version: 1\ncompress: {default: residual|topk(ratio=0.01), policy: auto}\n"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "compress.yaml"
    path.write_text(CONFIG)
    return path


def saved(config: Path, cache: Path, *arguments: str) -> Pipeline:
    """A rank of a job with the predictions that the command has written."""
    path = config.with_name("prior.yaml")
    given = ("resnet20", "--ranks", "4", "--config", str(config), "--save", str(path))
    text = gradcomp(*given, *arguments, cache=cache).stdout
    assert "predictions for 3 groups of tensors; train with" in " ".join(text.split())
    return Pipeline(load_config([config, path]), 0, 4)


def decided(pipeline: Pipeline) -> dict[str, list[str]]:
    """The choices of the first step, by the names of those left out."""
    resolved = pipeline.resolve_all(SHAPES).values()
    groups = [one.group for one in resolved if one.group is not None]
    with pytest.raises(StopIteration) as stop:
        next(pipeline.policy.begin_step(groups, 0.0, 0.0))
    return {one.choice: one.left_out for one in stop.value.value}


def test_saved_predictions_decide_what_is_clear(cache: Path, config: Path) -> None:
    slow = saved(config, cache, "--bandwidth", "10", "--compute", "1")
    assert decided(slow) == {"compressed": ["dense", "fp16"]}
    assert len(slow.policy.decisions) == 3
    # Computation hides all exchanges, so that they must be measured.
    fast = saved(config, cache, "--bandwidth", "10000", "--compute", "2000")
    assert decided(fast) == {}


def test_predictions_are_those_of_a_job_with_one_group_alone(
    gathered: Speeds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache = SpeedCache()
    cache.keep_speeds(*GATHERED, gathered)
    text = f"compress.rules=[{{match: {{name: blocks.8.conv2.weight}}, use: {GATHERED[0]}}}]"
    settings = ["version=1", "compress.default=identity", "compress.policy=auto", text]
    one = job("torch", compute=0.1)
    prior = PriorMaker.of(load_config([], settings), one)
    (group,) = prior.groups
    names = prior.groups[group]
    assert names == ["blocks.8.conv2.weight"]
    assert [one.exchange for one in prior.candidates] == ["gather", "reduce"]
    cache.keep_speeds("fp16", "reduce", speeds_of("fp16", "reduce"))
    (entry,) = prior.predictions(cache)["groups"]
    alone = replace(one, shapes={names[0]: SHAPES[names[0]]}, costs=replace(one.costs, copies=0))
    expected = {
        "dense": predict(alone, UNCOMPRESSED),
        "fp16": predict(alone, "fp16", "reduce", cache.speeds("fp16", "reduce")),
        "compressed": predict(alone, *GATHERED, gathered),
    }
    for way, step in expected.items():
        assert entry[way] == pytest.approx(step.seconds, rel=1e-3)


def test_groups_between_nodes_need_nodes() -> None:
    settings = ["version=1", "compress.default=fp16", "compress.exchange=two_level"]
    settings.append("compress.policy=auto")
    config = load_config([], settings)
    assert not PriorMaker.of(config, job(ranks=4)).groups
    nodes = PriorMaker.of(config, replace(job(ranks=4), ranks_per_node=2))
    assert [one.exchange for one in nodes.candidates] == ["two_level(reduce)"]


@pytest.mark.parametrize(
    ("settings", "arguments", "message"),
    [
        (CONFIG, [], "--compute is 0, and --save needs it above 0"),
        (CONFIG.replace("auto", "always"), ["--compute", "9"], "compress.policy is always, and"),
        (CONFIG, ["--compute", "9", "--save", "nowhere/prior.yaml"], "cannot be written (No such"),
    ],
)
def test_wrong_predictions(
    settings: str, arguments: list[str], message: str, config: Path, cache: Path
) -> None:
    config.write_text(settings)
    path = str(config.with_name("prior.yaml"))
    common = ["resnet20", "--ranks", "2", "--bandwidth", "1", "--config", str(config)]
    done = gradcomp(*common, "--save", path, *arguments, cache=cache, code=2)
    assert message in done.stderr
    assert not Path(path).exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["resnet20", "--ranks", "2", "--bandwidth", "1", "--save", "x"], "each with --config"),
        (["resnet21", "--ranks", "2", "--bandwidth", "1"], "model 'resnet21': expected one of"),
        (["os:getcwd", "--ranks", "2", "--bandwidth", "1"], "which has no named_parameters()"),
        (["os:nothing", "--ranks", "2", "--bandwidth", "1"], "expected one of"),
        (["resnet20", "--bandwidth", "1"], "--ranks is missing: give it, or run under"),
        (["resnet20", "--ranks", "2"], "--bandwidth is missing"),
        (["resnet20", "--ranks", "2", "--bandwidth", "-1"], "bandwidth is -1e+06 bit/s; it must"),
        (["resnet20", "--ranks", "4", "--nodes", "3", "--bandwidth", "1"], "--nodes is 3; it must"),
        (["resnet20", "--ranks", "2", "--bandwidth", "1", "--engine", "mpi"], "must be one of"),
        (["resnet20", "--ranks", "2", "--bandwidth", "1", "--spec", "topk(9)"], "topk"),
        (["resnet20", "--measure"], "run `horovodrun -np N gradcomp advise ... --measure`"),
        (["resnet20", "--measure", "--ranks", "2"], "--ranks is 2, and --measure finds it"),
    ],
)
def test_wrong_input(arguments: list[str], message: str, cache: Path) -> None:
    assert message in gradcomp(*arguments, cache=cache, code=2).stderr


def test_wrong_shapes(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "shapes.json"
    for text, message in [
        ('{"w": [0]}', "w: the shape is [0]; expected a list of whole numbers above 0"),
        ("[1, 2]", "is not a mapping"),
        ("{", "is not a YAML or JSON file"),
    ]:
        path.write_text(text)
        done = gradcomp(str(path), "--ranks", "2", "--bandwidth", "1", cache=cache, code=2)
        assert message in done.stderr


def test_requests_of_a_law_keep_their_kind(gathered: Speeds) -> None:
    (request,) = gathered.requests
    assert isinstance(request, RequestLaw)
    assert (request.kind, request.group) == ("allgather", "all")
    assert Speeds.from_json(json.loads(json.dumps(gathered.to_json()))) == gathered
