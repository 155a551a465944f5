"""The gradcomp command, run as users run it."""

from __future__ import annotations

import importlib
import json
import math
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from gradcomp import Loopback, __version__, get_codec
from gradcomp.cli import show
from gradcomp.cli.app import COMMANDS, app
from gradcomp.cli.spec_cell import fold_spec
from gradcomp.codec.spec import StageInfo, parse, stages
from gradcomp.config.schema import MOMENTUM_CORRECTION, load_config
from gradcomp.tools.model_shapes import model_shapes
from gradcomp.tools.synthetic import synthetic_gradients

CODECS = [stage.example for stage in stages() if stage.kind == "codec"]
# Momentum correction does not take every codec; its example stands for it.
ANY_CODEC = [
    stage.name for stage in stages() if stage.kind == "memory" and stage.name != MOMENTUM_CORRECTION
]
SPECS = [
    *CODECS,
    *(f"{memory}|{codec}" for memory in ANY_CODEC for codec in CODECS),
    *(
        stage.example
        for stage in stages()
        if stage.kind in ("memory", "preset") and parse(stage.example).algorithm is None
    ),
]

HALF = """\
import numpy as np

from gradcomp.tools.baselines import Baseline

BASELINES = [
    Baseline(
        name="numpy half",
        codec="fp16",
        encode=lambda x: [x.astype(np.float16)],
        decode=lambda parts, numel: parts[0].astype(np.float32),
        set_threads=lambda count: None,
    )
]
"""

CONFIG = """\
version: 1
compress:
  default: residual|topk(ratio=0.01)
  rules:
    - {match: {name: "*.bias"}, use: fp16}
    - {match: {name: "conv*", min_numel: 10, ndim: [2, 4]}, use: bf16}
"""


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE", "GRADCOMP_THREADS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def config_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text(CONFIG)
    return "a.yaml"


def run(*args: str, stdin: bytes | None = None) -> str:
    """The output of a command that must succeed."""
    result = CliRunner().invoke(app, args, input=stdin)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    assert result.stdout.isascii()
    # A line that is one long word, such as a spec, has no place to break.
    assert all(len(line) <= 80 or " " not in line for line in result.stdout.splitlines())
    assert all(line == line.rstrip() for line in result.stdout.splitlines())
    return result.stdout


def run_json(*args: str) -> Any:
    result = CliRunner().invoke(app, [*args, "--json"])
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return json.loads(result.stdout)


def fail(*args: str) -> str:
    """The message of a command that must refuse its input."""
    result = CliRunner().invoke(app, args)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert "Traceback" not in result.stderr
    return result.stderr


# ---------------------------------------------------------------- the command itself


def test_version_and_help() -> None:
    assert run("--version") == f"gradcomp {__version__}\n"
    text = run("--help")
    for command in ("list", "explain", "check", "inspect", "bench", "polar-demo"):
        assert f"\n  {command} " in text
        assert "--help" in run(command, "--help")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names values as the pages do, and ends with an example that the command accepts."""
    text = run(command, "-h")
    assert text == run(command, "--help")
    for python in ("<", ">", "{", "[[", "list["):
        assert python not in text.replace(">=", "")
    *_, heading, _, example, last = text.split("\n")
    assert (heading, last) == ("  Example:", "")
    program, name, *arguments = shlex.split(example)
    assert (program, name) == ("gradcomp", command)
    monkeypatch.chdir(tmp_path)
    for file in ("frame.bin", "compress.yaml"):
        Path(file).touch()
    found = typer.main.get_command(app).get_command(None, command)  # type: ignore[attr-defined]
    with found.make_context(command, arguments):
        pass


def test_progress_is_seen_without_a_terminal_where_lines_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(show, "_EVERY", 0.0)
    for lines in (True, False):
        with show.progress("codecs", 3, lines=lines) as advance:
            for _ in range(3):
                advance()
    assert capsys.readouterr().err == "codecs: 1 of 3\ncodecs: 2 of 3\n"


def test_a_mistyped_command_gets_the_nearest() -> None:
    assert "No such command 'lst'. Did you mean 'list'?" in fail("lst")
    assert "Did you mean 'explain'?" in fail("explian", "fp16")
    assert "Did you mean" not in fail("xyz")


def test_completion_of_commands_and_options() -> None:
    def completed(words: str) -> str:
        shell = {"_GRADCOMP_COMPLETE": "complete_bash", "COMP_WORDS": words}
        shell["COMP_CWORD"] = str(words.count(" "))
        return subprocess.run(
            [sys.executable, "-m", "gradcomp"],
            env={**os.environ, **shell},
            capture_output=True,
            text=True,
        ).stdout

    assert completed("gradcomp ex").split() == ["explain"]
    assert completed("gradcomp explain --mo").split() == ["--model"]
    assert "--install-completion" in run("-h")


@pytest.mark.parametrize("width", range(12, 80, 7))
def test_specs_are_folded_between_their_parts(width: int) -> None:
    spec = parse("residual(beta=0.5)|topk(ratio=0.01,values=fp16)|raw32").canonical
    lines = fold_spec(spec, width)
    assert "".join(map(str.strip, lines)) == spec
    for line in lines:
        assert len(line) <= width or len(re.findall("[,(|].", line)) == 0
        assert line == spec or line[-1] in "|,()" or spec.endswith(line.strip())
    assert (len(lines) == 1) == (width >= len(spec))


OWN = """\
import torch

def make():
    return torch.nn.Sequential(torch.nn.Linear(100, 50), torch.nn.Linear(50, 7, bias=False))
"""


def test_commands_take_models_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("shapes.yaml").write_text("{0.weight: [50, 100], 0.bias: [50], 1.weight: [7, 50]}\n")
    Path("mine_of_cli.py").write_text(OWN)
    for model in ("shapes.yaml", "mine_of_cli:make"):
        step = run_json("explain", "fp16", "--model", model)["step"]
        assert step["dense_bytes"] == 4 * (50 * 100 + 50 + 7 * 50)
        taken = run_json("check", "fp16", "--model", model)["tensors"]
        assert {row["name"]: row["shape"] for row in taken} == {
            "0.weight": [50, 100],
            "0.bias": [50],
            "1.weight": [7, 50],
        }
        profiled = run_json("profile", "fp16", "--model", model, "--workers", "2", "--steps", "1")
        assert sum(row["tensors"] for row in profiled["rules"]) == 3
    for command in ("explain", "check", "profile"):
        assert "model 'gpt9': expected one of" in fail(command, "fp16", "--model", "gpt9")


@pytest.mark.parametrize(
    ("command", "place"), [(name, one.place) for name, one in COMMANDS.items()]
)
def test_help_has_the_first_line_of_each_command(command: str, place: str) -> None:
    module, name = place.split(".")
    function = getattr(importlib.import_module(f"gradcomp.cli.{module}"), name)
    first = function.__doc__.splitlines()[0]
    assert COMMANDS[command].summary == first
    listed = " ".join(run("--help").split())
    assert f"{command} {first}" in listed
    assert first in " ".join(run(command, "--help").split())


def test_as_a_process() -> None:
    command = [sys.executable, "-W", "error", "-m", "gradcomp"]
    result = subprocess.run([*command, "explain", "topkk"], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("gradcomp: unknown stage 'topkk'")
    assert "Traceback" not in result.stderr
    result = subprocess.run([*command, "--version"], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, f"gradcomp {__version__}\n")


@pytest.mark.parametrize("command", ["list", "list --json", "--help", "--version"])
def test_output_that_cannot_be_written(command: str) -> None:
    program = [sys.executable, "-W", "error", "-m", "gradcomp", *command.split()]
    with open("/dev/full", "w") as full:
        result = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, text=True)
    assert result.returncode == 2
    assert result.stderr == "gradcomp: [Errno 28] No space left on device\n"
    read, write = os.pipe()
    os.close(read)
    result = subprocess.run(program, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (result.returncode, result.stderr) == (1, "")


# ---------------------------------------------------------------- list, explain


def test_list_shows_every_stage() -> None:
    text = run("list").split()
    for stage in stages():
        assert stage.name in text
    rows = run_json("list")
    assert [row["name"] for row in rows] == [stage.name for stage in stages()]
    assert {row["name"]: row["exchange"] for row in rows}["topk"] == "gather"


@pytest.mark.parametrize("stage", stages(), ids=lambda stage: stage.name)
def test_list_shows_a_stage_in_full(stage: StageInfo) -> None:
    text = " ".join(run("list", stage.name).split())
    assert " ".join(stage.paper.split()) in text
    for param in stage.params:
        default = "" if param.default is None else f" = {param.default}"
        assert f"{param.name}{default}, in {param.range}: {param.doc}" in text
    assert [row["name"] for row in run_json("list", stage.name)] == [stage.name]


def test_list_of_an_unknown_stage() -> None:
    assert "unknown stage 'topkk': did you mean 'topk'? `gradcomp list` shows all" in fail(
        "list", "topkk"
    )


@pytest.mark.parametrize("spec", SPECS)
def test_explain_every_stage(spec: str) -> None:
    text = run("explain", spec)
    canonical = parse(spec).canonical
    assert text.startswith(canonical + "\n")
    data = run_json("explain", spec)
    assert data["canonical"] == canonical
    assert "|".join(stage["name"] for stage in data["stages"]) == "|".join(
        stage.name for stage in parse(spec).stages
    )
    for numel, size in data["max_bytes"].items():
        assert f"{int(numel):,}" in text
        assert f"{size:,}" in text


@pytest.mark.parametrize("spec", CODECS)
def test_explain_bounds_what_is_sent(spec: str) -> None:
    x = np.random.default_rng(0).standard_normal((50, 20), np.float32)
    data = run_json("explain", spec)
    codec = get_codec(spec)
    sent = codec.encode(x) if data["exchange"] == "gather" else codec.encode_payload(x)
    assert sent.nbytes <= data["max_bytes"]["1000"]


COMPARED = [
    "identity",
    "residual|topk(ratio=0.01)",
    "powersgd(rank=2,start_step=9)",
    "qsgd(levels=7)|rans",
]


def test_explain_compares_specs_by_what_a_step_sends() -> None:
    rows = run_json("explain", *COMPARED, "--model", "digits-mlp")
    text = run("explain", *COMPARED, "--model", "digits-mlp")
    shapes = model_shapes("digits-mlp")
    vectors = sum(shape[0] for shape in shapes.values() if len(shape) == 1)
    elements = sum(math.prod(shape) for shape in shapes.values())
    for spec, row in zip(COMPARED, rows, strict=True):
        step = row.pop("step")
        assert row == run_json("explain", spec)
        assert step["model"] == "digits-mlp"
        (chosen,) = (one for one in step["rules"] if one["rule"] == "compress.default")
        assert chosen["exchange"] == row["exchange"]
        # The warm-up is over, in which powersgd sends everything.
        loop = Loopback(spec.replace("start_step=9", "start_step=0"), 4)
        rng = np.random.default_rng(0)
        for _ in range(2):
            grads = {n: synthetic_gradients(rng, shape, 4) for n, shape in shapes.items()}
            loop.step(grads)
        counted = {
            "sent_bytes": loop.stats[0].bytes_per_step,
            "link_bytes": loop.stats[0].link_bytes / 2,
            "link_ratio": loop.stats[0].link_ratio,
        }
        for key, expected in counted.items():
            assert step[key] == pytest.approx(expected, rel=1e-2)  # of any rank
        assert f"{step['sent_bytes']:,.0f}" in text
        assert step["dense_bytes"] == 4 * elements
        if spec == "identity":
            assert (step["dense_tensors"], step["compressed_numel"]) == (len(shapes), 0)
            assert step["bits_per_element"] is None
        else:
            assert (step["dense_tensors"], step["compressed_numel"]) == (3, elements - vectors)
            sent = 8 * (step["sent_bytes"] - 4 * vectors) / (elements - vectors)
            assert step["bits_per_element"] == pytest.approx(sent)
            assert f"{sent:.3f}" in text


def test_explain_of_a_model_comes_after_the_explanation() -> None:
    alone = run("explain", "fp16")
    assert run("explain", "fp16", "--model", "digits-mlp").startswith(alone)
    assert "step" not in run_json("explain", "fp16")
    assert run_json("explain", "fp16", "--model", "digits-mlp")["step"]["dense_tensors"] == 3
    assert "expected one of digits-mlp" in fail("explain", "fp16", "--model", "vgg")


def test_explain_takes_one_spec_for_a_configuration_if_ranks_or_settings_are_given() -> None:
    ranks = run_json("explain", "fp16", "--workers", "2")
    assert (ranks["canonical"], ranks["step"]["workers"]) == (parse("fp16").canonical, 2)
    configured = run_json("explain", "fp16", "--set", "seed=1")
    assert set(configured) == {"step"}
    assert configured["step"]["model"] == ranks["step"]["model"] == "resnet20"
    assert "got 2 specs" in fail("explain", "fp16", "bf16", "--set", "seed=1")


def test_a_model_is_counted_under_the_last_spec_of_a_list(tmp_path: Path) -> None:
    path = tmp_path / "list.yaml"
    use = "[{use: identity}, {use: fp16, from_step: 9}]"
    path.write_text(f"version: 1\ncompress: {{default: {use}}}\n")
    step = run_json("explain", str(path), "--model", "digits-mlp")["step"]
    rules = {rule["rule"]: rule["spec"] for rule in step["rules"]}
    assert rules["compress.default"] == parse("fp16").canonical
    assert step["bits_per_element"] == 16


def test_a_bad_spec_is_shown_with_a_caret() -> None:
    _, spec, caret = fail("explain", "residual|topk(ratio=7)").splitlines()
    assert spec[caret.index("^")] == "7"
    assert "ratio" in fail("bench", "topk")


# ---------------------------------------------------------------- check


def test_check_shows_the_rules_in_order(config_file: str) -> None:
    text = run("check", config_file)
    names = [
        "compress.rules[0]",
        "compress.rules[1]",
        "default rule: ndim <= 1",
        "default rule: numel < 4096",
        "compress.default",
    ]
    assert sorted(names, key=text.index) == names
    for part in ("name: *.bias", "name: conv*", "min_numel: 10", "ndim: 2, 4", "all others"):
        assert part in text
    assert [rule["rule"] for rule in run_json("check", config_file)["rules"]] == names


TENSORS = {"fc.weight": (512, 64), "fc.bias": (512,), "conv1.weight": (8, 1, 3, 3), "scale": ()}


def test_check_tells_what_each_tensor_takes(config_file: str) -> None:
    args = []
    for name, shape in TENSORS.items():
        args += ["--tensor", f"{name}={'x'.join(map(str, shape))}"]
    config = load_config([config_file])
    taken = run_json("check", config_file, *args)["tensors"]
    assert [tensor["name"] for tensor in taken] == list(TENSORS)
    for tensor in taken:
        expected = config.resolve(tensor["name"], TENSORS[tensor["name"]])
        assert tuple(tensor["shape"]) == TENSORS[tensor["name"]]
        assert (tensor["rule"], tensor["spec"]) == (expected.rule, expected.spec.canonical)
    text = run("check", config_file, *args)
    assert "512x64" in text
    assert "scalar" in text


def test_check_composes_files_specs_and_overrides(config_file: str) -> None:
    Path("b.yaml").write_text("seed: 4\n")
    data = run_json("check", config_file, "b.yaml", "--set", "compress.rules=[]", "randomk(k=3)")
    assert data["seed"] == 4
    assert data["rules"][-1]["spec"] == parse("randomk(k=3)").canonical
    assert len(data["rules"]) == 3


def test_check_shows_exchanges_where_they_are_asked_for(config_file: str) -> None:
    assert "exchange" not in run("check", config_file)
    assert "exchange" in run("check", "int8", "--set", "compress.exchange=sra")
    args = ("int8", "--set", "compress.exchange=sra", "--tensor", "w=64x64", "--tensor", "b=64")
    data = run_json("check", *args)
    assert [rule["exchange"] for rule in data["rules"]] == ["dense", "dense", "sra"]
    assert [tensor["exchange"] for tensor in data["tensors"]] == ["sra", "dense"]


def test_check_shows_specs_that_follow_one_another(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        "version: 1\ncompress:\n  default:\n    - fp16\n"
        "    - {from_step: 9, use: residual|sign, exchange: sra}\n"
        "    - {from_step: 20, use: powersgd, state: drop}\n"
    )
    text = run("check", str(path), "--tensor", "w=64x64")
    for part in ("from step 9:", "from step 20, state dropped:", "sra"):
        assert part in text
    data = run_json("check", str(path), "--tensor", "w=64x64")
    for row in (data["rules"][-1], data["tensors"][0]):
        assert row["spec"] == parse("fp16").canonical
        assert row["exchange"] == "reduce"
        assert [(one["exchange"], one["state"]) for one in row["then"]] == [
            ("sra", "carry"),
            ("algorithm", "drop"),
        ]
        assert [one["from_step"] for one in row["then"]] == [9, 20]
    assert "then" not in data["rules"][0]


def test_check_takes_a_bare_spec_and_its_overrides() -> None:
    assert "policy" not in run("check", "fp16")
    assert "policy: auto" in run("check", "fp16", "--set", "compress.policy=auto")
    data = run_json("check", "fp16", "--set", "seed=9")
    assert data["policy"] == "always"
    assert data["seed"] == 9
    assert data["rules"][-1]["spec"].startswith("fp16")


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["nope.yaml"], "nope.yaml: cannot be read (No such file"),
        (["configs/nope"], "configs/nope: cannot be read"),
        (["fp17"], "unknown stage 'fp17'"),
        (["fp16", "bf16"], "got 2 specs, 'fp16', 'bf16'; give one at most"),
        (["a.yaml", "--set", "sed=3"], "override 'sed=3': sed: unknown key, did you mean 'seed'?"),
        (["fp16", "--tensor", "w"], "--tensor 'w': expected NAME=SHAPE"),
        (["fp16", "--tensor", "w=3x"], "--tensor 'w=3x': expected NAME=SHAPE"),
        (["fp16", "--tensor", "=3"], "--tensor '=3': expected NAME=SHAPE"),
        (["fp16", "--tensor", "w=-3"], "--tensor 'w=-3': expected NAME=SHAPE"),
        ([], "Missing argument 'CONFIG'"),
        (["fp16", "--tensor", f"a={'9' * 5000}"], "sizes of at most 18 digits"),
    ],
)
def test_check_refuses(config_file: str, args: list[str], part: str) -> None:
    assert part in fail("check", *args)


# ---------------------------------------------------------------- inspect


@pytest.fixture(params=CODECS)
def frame(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "frame.bin"
    get_codec(request.param).encode(np.arange(1000.0), seed=1).tofile(path)
    return path


def test_inspect_shows_the_header(frame: Path) -> None:
    data = frame.read_bytes()
    info = run_json("inspect", str(frame))
    assert info["numel"] == 1000
    assert info["total_bytes"] == len(data)
    assert info["crc_ok"] is True
    text = run("inspect", str(frame))
    assert info["codec_name"] in text
    assert text.startswith(f"{frame}:\n")
    assert f"{info['payload_bytes']:,} bytes" in text
    dump = text[text.index("header:") :].splitlines()[1:]
    header = b"".join(bytes.fromhex(line[8:56]) for line in dump)
    assert header == data[: len(data) - info["payload_bytes"] - 4]


def test_inspect_reads_standard_input(frame: Path) -> None:
    args = ("inspect", "--json")
    assert run(*args, "-", stdin=frame.read_bytes()) == run(*args, str(frame))


def test_inspect_fails_on_a_damaged_frame(frame: Path) -> None:
    data = bytearray(frame.read_bytes())
    data[-5] ^= 1
    frame.write_bytes(data)
    result = CliRunner().invoke(app, ["inspect", str(frame)])
    assert result.exit_code == 1
    assert "DOES NOT MATCH" in result.stdout
    result = CliRunner().invoke(app, ["inspect", str(frame), "--json"])
    assert result.exit_code == 1
    assert json.loads(result.stdout)["crc_ok"] is False


def test_inspect_refuses_what_is_no_frame(frame: Path) -> None:
    frame.write_bytes(frame.read_bytes()[:9])
    assert f"{frame}: truncated frame: 9 bytes" in fail("inspect", str(frame))
    assert "No such file" in fail("inspect", str(frame.with_name("nope")))
    assert "does not begin with 'GCMP'" in fail("inspect", "/dev/zero")


def test_inspect_reads_no_more_than_the_frame(frame: Path) -> None:
    endless = f"cat {frame} /dev/zero | {sys.executable} -m gradcomp inspect -"
    result = subprocess.run(["sh", "-c", endless], capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    size = len(frame.read_bytes())
    assert f"the frame has {size + 1} bytes; its header promises {size}" in result.stderr


# ---------------------------------------------------------------- bench


@pytest.mark.parametrize("spec", SPECS)
def test_bench_measures_every_spec(spec: str) -> None:
    result = run_json("bench", spec, "--numel", "5000", "--repeats", "2")
    encode = "compensate+encode+update" if parse(spec).stateful else "encode"
    assert [row["operation"] for row in result["timings"]] == [
        "memcpy",
        encode,
        "decode",
        "decode_add",
    ]
    for row in result["timings"]:
        assert row["ns_per_element"] > 0
        assert row["ns_iqr"] >= 0
        assert math.isclose(row["gb_per_s"] * row["ns_per_element"], 4)
    assert result["timings"][0]["speed_to_memcpy"] == 1
    assert result["spec"] == parse(spec).at(0, 0).canonical
    assert result["bits_per_element"] == 8 * result["wire_bytes"] / 5000


@pytest.fixture
def half(tmp_path: Path) -> list[str]:
    """The arguments that add a baseline."""
    path = tmp_path / "half.py"
    path.write_text(HALF)
    return ["--baselines", str(path)]


def test_bench_all_has_a_row_for_every_codec_and_baseline(tmp_path: Path, half: list[str]) -> None:
    gradients = [tmp_path / "net.npz", tmp_path / "text.npz"]
    for gradient, end in zip(gradients, (1, 2), strict=True):
        np.savez(gradient, w=np.linspace(-1, end, 5000, dtype=np.float16))
    picture = tmp_path / "survey.png"
    result = run_json(
        *("bench", "--all", *half, "--numel", "5000", "--repeats", "1", "--plot", str(picture)),
        *(argument for gradient in gradients for argument in ("--data", str(gradient))),
    )
    assert (result["numel"], result["repeats"], result["threads"]) == (5000, 1, [1])
    *codecs, baseline = result["rows"]
    assert [row["spec"] for row in codecs] == [parse(codec).canonical for codec in CODECS]
    for row in codecs:
        assert not row["baseline"]
        assert set(row["vnmse"]) == {"gauss", "laplace", "net", "text"}
        assert [timing["operation"] for timing in row["timings"]] == [
            *("memcpy", "encode", "decode", "decode_add")
        ]
    assert baseline["spec"] == "numpy half"
    assert baseline["baseline"]
    assert baseline["bits_per_element"] == 16
    assert set(baseline["vnmse"]) == {"gauss", "laplace", "net", "text"}
    assert baseline["vnmse"]["gauss"] == pytest.approx(4.3e-8, rel=0.1)
    [comparison] = result["comparisons"]
    assert comparison["spec"] == "fp16(overflow=inf)"
    assert comparison["baseline"] == "numpy half"
    ours = next(row for row in codecs if row["codec"] == "fp16")
    for place, operation in enumerate(("encode", "decode"), start=1):
        times = [row["timings"][place]["speed_to_memcpy"] for row in (ours, baseline)]
        assert comparison[operation] == pytest.approx(times[0] / times[1])
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_bench_all_as_tables(half: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradcomp.tools.survey.survey_specs", lambda: ["fp16", "bf16"])
    result = CliRunner().invoke(
        app,
        [
            *("bench", "--all", *half, "--numel", "5000", "--repeats", "1"),
            *("--threads=1", "--threads=2"),
        ],
    )
    assert result.exit_code == 0
    errors, speeds, scaling, comparison = (
        [line.split() for line in table.splitlines()] for table in result.stdout.split("\n\n")[2::2]
    )
    for rows in (errors, speeds):
        assert [row[0] for row in rows] == ["spec", "fp16(overflow=inf)", "bf16", "numpy"]
    assert errors[0] == ["spec", "bits", "gauss", "laplace"]
    assert speeds[-1][-2:] == ["-", "-"]
    assert [row[-7] for row in scaling[1:]] == ["1", "2"] * 3
    assert [row[-5] for row in scaling[1::2]] == ["1.00"] * 3
    assert [row[3] for row in comparison[1:]] == ["1", "2"]


def test_tables_of_bench_all_fit_a_terminal(tmp_path: Path, half: list[str]) -> None:
    names = [f"a-model-of-a-long-name-{number}" for number in range(4)]
    for name in names:
        np.savez(tmp_path / f"{name}.npz", w=np.linspace(-1, 1, 3000, dtype=np.float32))
    data = [argument for name in names for argument in ("--data", str(tmp_path / f"{name}.npz"))]
    text = run("bench", "--all", *half, "--numel", "5000", "--repeats", "1", "--threads=2", *data)
    assert max(map(len, text.splitlines())) <= 80
    words = text.split()
    assert all(words.count(name) == 1 for name in names)


def test_bench_all_wants_columns_of_different_names(tmp_path: Path) -> None:
    first, second = tmp_path / "a" / "net.npz", tmp_path / "net.npz"
    first.parent.mkdir()
    for path in (first, second):
        np.savez(path, w=np.ones(3, np.float32))
    message = fail("bench", "--all", "--data", str(first), "--data", str(second))
    assert f"{second}: there is a column 'net' already" in message
    gauss = second.rename(tmp_path / "gauss.npz")
    assert "column 'gauss'" in fail("bench", "--all", "--data", str(gauss))


def test_bench_wants_a_spec_or_all() -> None:
    for args in (["bench"], ["bench", "fp16", "--all"], ["bench", "fp16", "--plot", "x.png"]):
        result = CliRunner().invoke(app, args)
        assert result.exit_code == 2
        assert "--all" in result.stderr


@pytest.mark.parametrize(
    ("spec", "wire_bytes", "vnmse"),  # frames have 28 bytes of their own, top-k a count of 8
    [
        ("identity", 4000, 0.0),
        ("fp16", 2000, 4e-8),
        ("bf16", 2028, 3e-6),
        ("topk(k=1000)|raw32", 8036, 0.0),
        ("randomk(ratio=0.5)", 2000, 0.5),
        ("residual|randomk(ratio=0.5)", 2000, 0.5),
    ],
)
def test_bench_reports_bytes_and_loss(spec: str, wire_bytes: int, vnmse: float) -> None:
    result = run_json("bench", spec, "--numel", "1000", "--repeats", "1")
    assert result["wire_bytes"] == wire_bytes
    assert math.isclose(result["vnmse"], vnmse, rel_tol=0.3)


def test_bench_as_a_table() -> None:
    text = run("bench", "residual|topk(ratio=0.01)", "--numel", "5000", "--repeats", "2")
    for part in ("residual(", "5,000 elements", "memcpy", "compensate+encode+update", "IQR"):
        assert part in text


def test_bench_measures_with_several_numbers_of_threads() -> None:
    args = ("bench", "fp16", "--numel", "200000", "--repeats", "2")
    result = run_json(*args, "--threads", "2", "--threads", "1", "--threads", "2")
    assert result["threads"] == [2, 1]
    rows = [(row["operation"], row["threads"]) for row in result["timings"]]
    operations = ("encode", "decode", "decode_add")
    assert rows == [("memcpy", 1), *((name, count) for count in (2, 1) for name in operations)]
    assert all(row["scaling"] == 1 for row in result["timings"][:4])
    assert all(row["scaling"] > 0 for row in result["timings"])
    assert run_json(*args)["threads"] == [1]  # restored
    text = run(*args, "--threads", "1", "--threads", "2")
    for part in ("1 and 2 thread(s)", "threads  scaling"):
        assert part in text


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["--numel", "0"], "numel is 0; it must be at least 1"),
        (["--repeats", "0"], "repeats is 0; it must be at least 1"),
        (["--threads", "1", "--threads", "0"], "threads is 0; it must be at least 1"),
        (["--threads", "100000"], "threads is 100000; it must be at most"),
        (["--numel", str(2**40)], str(2**40)),
        (["--numel", "many"], "Invalid value for '--numel'"),
    ],
)
def test_bench_refuses(args: list[str], part: str) -> None:
    assert part in fail("bench", "fp16", *args)


# ---------------------------------------------------------------- explain: bytes of a model


@pytest.mark.parametrize(
    ("model", "numel"),
    # As published, but for the digits models: those of scripts/train.py.
    [
        *[("resnet20", 269_722), ("resnet50", 25_557_032), ("digits-mlp", 301_066)],
        *[("vgg16", 138_357_544), ("bert-base", 109_482_240), ("gpt2", 124_439_808)],
    ],
)
def test_model_shapes_have_the_published_size(model: str, numel: int) -> None:
    assert sum(map(math.prod, model_shapes(model).values())) == numel


def test_explain_counts_what_a_loopback_sends(config_file: str) -> None:
    shapes = model_shapes("digits-mlp")
    # Raw indices: the size of coded ones depends on the gradients.
    plain = "compress.default=residual|topk(ratio=0.01)|raw32"
    result = run_json(
        *("explain", config_file, "--set", plain),
        *("--workers", "2", "--steps", "2", "--model", "digits-mlp"),
    )["step"]
    loop = Loopback(load_config([config_file], [plain]), 2)
    for _ in range(2):
        loop.step({name: [np.ones(shape)] * 2 for name, shape in shapes.items()})
    assert result["sent_bytes"] == loop.stats[0].bytes_per_step
    assert result["dense_bytes"] == sum(4 * math.prod(shape) for shape in shapes.values())
    assert math.isclose(result["ratio"], loop.stats[0].ratio)
    assert sum(rule["sent_bytes"] for rule in result["rules"]) == result["sent_bytes"]
    assert sum(rule["tensors"] for rule in result["rules"]) == len(shapes)
    assert {rule["rule"] for rule in result["rules"]} == {
        "compress.rules[0]",
        "compress.default",
    }
    assert 0 < result["vnmse"] < 2


def test_a_run_without_compression_loses_and_saves_nothing() -> None:
    result = run_json("explain", "identity", "--workers", "3", "--model", "digits-cnn")["step"]
    assert result["ratio"] == 1
    assert result["vnmse"] < 1e-12
    assert {rule["spec"] for rule in result["rules"]} == {"identity"}


@pytest.mark.parametrize(
    ("spec", "exchange", "workers", "ratio", "link_ratio"),
    [
        ("bf16", "auto", 2, 2, 2),
        ("bf16", "auto", 16, 1.88, 2),
        ("bf16", "gather", 16, 2, 0.25),
        ("int8", "gather", 16, 4, 0.5),
        ("fp16", "auto", 16, 2, 2),
    ],
)
def test_explain_counts_what_passes_a_link(
    spec: str, exchange: str, workers: int, ratio: float, link_ratio: float
) -> None:
    settings = ("--workers", str(workers), "--model", "digits-mlp", "--steps", "1")
    args = ("explain", spec, *settings, "--set", f"compress.exchange={exchange}")
    result = run_json(*args)["step"]
    dense = 2 * (workers - 1) / workers * result["dense_bytes"]
    assert result["dense_link_bytes"] == pytest.approx(dense)
    assert result["ratio"] == pytest.approx(ratio, rel=0.03)
    assert result["link_ratio"] == pytest.approx(link_ratio, rel=0.03)
    text = run(*args)
    assert f"{result['link_bytes']:,.0f}" in text
    assert max(map(len, text.splitlines())) <= 80
    warnings = [line for line in text.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == len(result["warnings"]) == (link_ratio < 1)
    if warnings:
        times = f"compress.default: {1 / link_ratio:.1f} times as many bytes pass a rank's link"
        assert times in result["warnings"][0]
        assert "exchange: sra" in result["warnings"][0]
        sra = run_json(*args, "--set", "compress.exchange=sra")["step"]
        assert sra["warnings"] == []
        assert sra["link_ratio"] == pytest.approx(ratio, rel=0.03)
    (rule,) = (one for one in result["rules"] if one["rule"] == "compress.default")
    if exchange == "auto":
        assert f"exchange of compress.default: {rule['exchange']}, as " in text
        assert rule["exchange_reason"]


def test_inner_steps_divide_the_bytes() -> None:
    explain = ["explain", "int8", "--model", "digits-cnn"]
    one, local = (run_json(*explain, "--outer", outer)["step"] for outer in ("1", "30"))
    for key in ("sent_bytes", "link_bytes", "bits_per_element"):
        assert local[key] == pytest.approx(one[key] / 30)
    for key in ("ratio", "link_ratio"):
        assert local[key] == pytest.approx(one[key] * 30)
    assert "each of 30 inner steps" in " ".join(run(*explain, "--outer", "30").split())


def test_a_run_draws_the_same_gradients_again() -> None:
    args = ["explain", "topk(ratio=0.1)", "--workers", "2", "--model", "digits-cnn"]
    first, again = (run_json(*args)["step"] for _ in range(2))
    other = run_json(*args, "--set", "seed=1")["step"]
    assert first["vnmse"] == again["vnmse"] != other["vnmse"]


@pytest.mark.parametrize("model", ["digits-cnn", "digits-mlp", "resnet20"])
def test_a_configuration_as_a_table(config_file: str, model: str) -> None:
    text = run("explain", config_file, "--workers", "2", "--steps", "1", "--model", model)
    total = sum(map(math.prod, model_shapes(model).values()))
    for part in (
        f"{total:,} elements",
        "compress.default",
        "compress.rules[0]",
        "vNMSE of the average",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["--workers", "0"], "workers is 0; it must be at least 1"),
        (["--workers", "2", "--steps", "0"], "steps is 0; it must be at least 1"),
        (["--workers", "100000000"], "MiB; at most"),
        (["--workers", "2", "--steps", "1000001"], "it must be at most 1000000"),
        (["--workers", "2", "--model", "vgg"], "model 'vgg': expected one of digits-mlp"),
    ],
)
def test_explain_refuses(args: list[str], part: str) -> None:
    assert part in fail("explain", "fp16", *args)


# ---------------------------------------------------------------- polar-demo


def test_polar_demo_measures_draws_and_repeats(tmp_path: Path) -> None:
    picture = tmp_path / "demo.png"
    args = ["polar-demo", "--length", "64", "--length", "1000", "--bits", "20000", "--seed", "3"]
    args += ["--rate", "0.25", "--rate", "0.5"]
    measured = run_json(*args, "--plot", str(picture))
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert (measured["bits"], measured["seed"]) == (20000, 3)
    points = measured["points"]
    assert [(p["length"], p["rate"]) for p in points] == [
        (64, 0.25),
        (64, 0.5),
        (1000, 0.25),
        (1000, 0.5),
    ]
    for point in points:
        assert point["bound"] < point["distortion"] < (1 - point["rate"]) / 2
    assert points[2]["distortion"] < points[0]["distortion"]
    assert points[3]["bound"] == pytest.approx(0.1100278644)
    assert run_json(*args) == measured
    text = run(*args)
    assert f"{points[0]['distortion']:.4f}" in text


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["--length", "0"], "--length is 0; it must be from 1 to 1048576"),
        (["--length", "1048577"], "--length is 1048577; it must be from 1 to 1048576"),
        (["--rate", "1.5"], "--rate is 1.5; it must be from 0 to 1"),
        (["--rate", "nan"], "--rate is nan"),
        (["--bits", "0"], "--bits is 0; it must be from 1 to 2^30"),
        (["--seed", "-1"], "--seed is -1; it must not be negative"),
        (["--source", "noise"], "--source is 'noise'; it must be bits or normal"),
        (["--source", "normal", "--rate", "5"], "it must be from 1/32 to 4"),
        (["--source", "normal", "--length", "64"], "it must be 1024, 4096 or 16384"),
        (["--source", "normal", "--bits", "0"], "it must be 4096 to 2^28"),
        (["--source", "normal", "--seed", "-1"], "--seed is -1; it must not be negative"),
    ],
)
def test_polar_demo_refuses(args: list[str], part: str) -> None:
    assert part in fail("polar-demo", *args)


def test_polar_demo_of_normal_values(tmp_path: Path) -> None:
    picture = tmp_path / "demo.png"
    args = ["polar-demo", "--source", "normal", "--length", "1024", "--bits", "65536"]
    args += ["--rate", "0.25", "--rate", "1"]
    measured = run_json(*args, "--plot", str(picture))
    assert picture.read_bytes().startswith(b"\x89PNG")
    points = measured["points"]
    polar, ecsq, topk = points[:3]
    assert polar["name"] == "polar(n=1024,rate=0.25,unbiased=false)"
    assert 0 < polar["gap"] < ecsq["gap"] < topk["gap"]
    # Theory of the best quantizer of normal values at 1 bit: 1.44 dB.
    assert points[4]["gap"] == pytest.approx(1.44, abs=0.01)
    assert points[3]["gap"] < 0.5
    assert points[6]["name"] == "sign"
    assert f"{polar['vnmse']:.4f}" in run(*args)


def test_polar_demo_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    args = ["--length", "8", "--rate", "0.5", "--bits", "8", "--plot", "x.png"]
    assert "a plot needs matplotlib: pip install matplotlib" in fail("polar-demo", *args)
