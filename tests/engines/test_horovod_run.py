"""``python -m horovod_compressors.run``: compression for scripts that know nothing of it."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from launch import HERE, Finished, run

from gradcomp import Config
from gradcomp.adapter_api import run_unedited
from gradcomp.errors import GradcompError

RUN = ["-m", "horovod_compressors.run"]
SCRIPT = HERE / "workers" / "stock_script.py"
STEPS = 6
SIZES = {"float32": 4, "float16": 2, "uint8": 1}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Finished, Path]]:
    """The stock script on two ranks, with the record that Horovod keeps of its operations."""
    timeline = tmp_path_factory.mktemp("timeline") / "timeline.json"
    command = [*RUN, "--compression", "residual|topk(ratio=0.01)", SCRIPT]
    arguments = ["--steps", str(STEPS), "--config", "not ours"]
    finished = run([*command, *arguments], 2, "gloo", {"HOROVOD_TIMELINE": str(timeline)})
    assert finished.status == 0, finished.output
    return finished, timeline


def operations(timeline: Path) -> dict[str, list[tuple[str, int]]]:
    """The dtype and bytes of each operation on each tensor."""
    names: dict[int, str] = {}
    found: dict[str, list[tuple[str, int]]] = {}
    for event in json.loads(timeline.read_text()):
        if event.get("name") == "process_name":
            names[event["pid"]] = event["args"].get("name", "")
        elif "dtype" in event.get("args", {}):
            dtype, shape = event["args"]["dtype"], json.loads(event["args"]["shape"])
            size = SIZES[dtype] * math.prod(shape)
            found.setdefault(names[event["pid"]], []).append((dtype, size))
    return found


def test_script_runs_unedited(job: tuple[Finished, Path]) -> None:
    output = job[0].output
    (line,) = (line for line in output.splitlines() if "{" in line and '"same"' in line)
    result: dict[str, Any] = json.loads(line[line.index("{") :])
    assert result == {"same": True, "config": "not ours", "name": "__main__"}


def test_what_it_does_is_said_once(job: tuple[Finished, Path]) -> None:
    output = job[0].output
    for said in ("hvd.DistributedOptimizer of", "tensors are compressed, "):
        assert len(re.findall(f"gradcomp: .*{said}", output)) == 1, output
    assert "gradcomp: on Horovod with 2 ranks, " in output
    assert "compresses with residual(beta=1.0,gamma=1.0)|topk(ratio=0.01,values=fp32)" in output
    assert "instead of <class 'horovod.torch.compression.FP16Compressor'>" in output
    assert "state is not in the script's checkpoints" in output


def test_fewer_bytes_travel(job: tuple[Finished, Path]) -> None:
    """By Horovod's own account: of the 10,000 weights, 100 with their positions, and a token."""
    found = operations(job[1])
    assert found["allreduce.0.weight"] == [("float32", 4)] * STEPS
    (frames,) = (
        value for name, value in found.items() if name.endswith(".0.weight") and "gradcomp" in name
    )
    assert len(frames) == STEPS
    assert {dtype for dtype, _ in frames} == {"uint8"}
    # An all-gather's size is that of its result: the frames of both ranks.
    assert all(2 * 100 * 4 < size < 2 * 100 * 10 for _, size in frames), frames
    # Small tensors travel as they are, and not in fp16, which the script had asked for.
    assert Counter(found["allreduce.2.bias"]) == {("float32", 12): STEPS}


def test_config_files_and_overrides(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("version: 1\ncompress: {default: fp16}\n")
    (tmp_path / "b.yaml").write_text("compress: {default: 'topk(k=7)'}\n")
    command = [*RUN, "--config", "a.yaml", "--config", "b.yaml", "--set", "seed=9", SCRIPT]
    finished = run([*command, "--config", "x.yaml"], cwd=tmp_path)
    assert finished.status == 0, finished.output
    assert "of 4 parameters compresses with topk(k=7,values=fp32) instead of" in finished.output
    assert '"config": "x.yaml"' in finished.output


def test_two_level_gets_its_process_sets(tmp_path: Path) -> None:
    path = tmp_path / "compress.yaml"
    path.write_text("version: 1\ncompress: {default: int8, exchange: two_level}\n")
    command = [*RUN, "--config", path, "--set", "compress.ranks_per_node=2", SCRIPT]
    finished = run([*command, "--steps", "2", "--config", "c"], 4, "gloo")
    assert finished.status == 0, finished.output
    assert '"same": true' in finished.output


def test_a_module_in_place_of_a_script(tmp_path: Path) -> None:
    """As with python -m: a module of a package in the working directory, and a package."""
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "train.py").write_text(SCRIPT.read_text())
    (package / "__main__.py").write_text("from pkg.train import main\n\nmain()\n")
    for module in ("pkg.train", "pkg"):
        command = [*RUN, "--compression", "residual|topk(ratio=0.01)", "-m", module]
        finished = run([*command, "--steps", "2", "--config", "c"], cwd=tmp_path)
        assert finished.status == 0, finished.output
        assert "compresses with residual(" in finished.output
        assert '"same": true, "config": "c"' in finished.output
    for missing in ("pkg.missing", "missing.train"):
        finished = run([*RUN, "--compression", "fp16", "-m", missing], cwd=tmp_path)
        assert finished.status == 2, finished.output
        assert f"gradcomp: there is no module '{missing}' in {tmp_path}" in finished.output
        assert "Traceback" not in finished.output


def test_states_of_elastic_jobs_hold_the_compression() -> None:
    script = SCRIPT.with_name("stock_state_script.py")
    finished = run([*RUN, "--compression", "residual|topk(ratio=0.05)", script], 2, "gloo")
    assert finished.status == 0, finished.output
    assert "went back" in finished.output


def test_jobs_that_the_script_starts_are_out_of_reach(tmp_path: Path) -> None:
    script = tmp_path / "starts.py"
    script.write_text(
        "import horovod\n\n\ndef work():\n    return 7\n\n\n"
        "if __name__ == '__main__':\n"
        "    print('result', horovod.run(work, np=2, use_gloo=True), flush=True)\n"
    )
    finished = run([*RUN, "--compression", "fp16", script])
    assert finished.status == 0, finished.output
    assert finished.output.count("gradcomp: horovod.run starts processes that") == 1
    assert finished.output.index("horovod.run starts") < finished.output.index("result [7, 7]")


def test_script_without_an_optimizer_of_horovod() -> None:
    finished = run([*RUN, "--compression", "fp16", SCRIPT, "--plain"])
    assert finished.status == 0, finished.output
    warning = (
        f"gradcomp: {SCRIPT} never called hvd.DistributedOptimizer or hvd.DistributedGradientTape, "
        "so nothing was compressed"
    )
    assert finished.output.count(warning) == 1, finished.output


def test_wrong_spec() -> None:
    finished = run([*RUN, "--compression", "residual|topq(ratio=0.01)", SCRIPT])
    assert finished.status == 2, finished.output
    *_, message, spec, caret = finished.output.rstrip().splitlines()
    assert message.startswith("gradcomp: "), finished.output
    assert "topq" in message
    assert "topk" in message
    assert caret.rstrip().endswith("^")
    assert caret.index("^") == spec.index("topq")
    assert "Traceback" not in finished.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--compression", "fp16", "missing.py"], "there is no script 'missing.py'"),
        (["--config", "missing.yaml", str(SCRIPT)], "missing.yaml: cannot be read"),
    ],
)
def test_missing_files(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from horovod_compressors.run import main

    assert main(arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--compression", "fp16", "--config", "a.yaml", str(SCRIPT)], "not allowed with argument"),
        (["--compression", "fp16"], "the following arguments are required: script, or -m MODULE"),
        (["--compression", "fp16", "-m"], "are required: script, or -m MODULE"),
    ],
)
def test_wrong_arguments(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from horovod_compressors.run import main

    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "spec", "seed"),
    [
        (["--compression", "fp16", "--set", "seed=7"], "fp16(overflow=inf)", 7),
        (["--config", "fp16", "--set", "seed=7"], "fp16(overflow=inf)", 7),
        (["--config", "seed.yaml", "--config", "bf16"], "bf16", 3),
        (["--set", "seed=7"], None, 7),
    ],
)
def test_specs_files_and_overrides_go_together(
    arguments: list[str],
    spec: str | None,
    seed: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("seed.yaml").write_text("version: 1\nseed: 3\n")
    seen: list[Config] = []

    def prepare(config: Config) -> None:
        seen.append(config)
        raise GradcompError("seen enough")

    command = [*arguments, str(SCRIPT)]
    assert run_unedited(command, "horovod_compressors", "", {}, lambda: True, prepare) == 2
    assert seen[0].seed == seed
    assert spec is None or seen[0].compress.default.canonical == spec


def test_two_specs_in_config_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    from horovod_compressors.run import main

    assert main(["--config", "fp16", "--config", "bf16", str(SCRIPT)]) == 2
    assert "got 2 specs, 'fp16', 'bf16'; give one at most" in capsys.readouterr().err


def test_script_trains_with_outer_steps() -> None:
    """Six steps, with an average after each third: the models are then equal."""
    command = [*RUN, "--compression", "residual|int8", "--outer", "3", SCRIPT, "--steps", "6"]
    finished = run(command, 2, "gloo")
    assert finished.status == 0, finished.output
    assert '"same": true' in finished.output
    said = "of 4 parameters compresses every 3 steps, as OuterStep does, with residual"
    assert finished.output.count(said) == 1


@pytest.mark.full
def test_ranks_without_an_outer_step_differ() -> None:
    finished = run([*RUN, "--compression", "int8", "--outer", "30", SCRIPT], 2, "gloo")
    assert finished.status == 0, finished.output
    assert '"same": false' in finished.output


def test_outer_steps_refuse_specs_with_a_momentum() -> None:
    finished = run([*RUN, "--compression", "dgc(ratio=0.01)", "--outer", "3", SCRIPT])
    assert finished.status != 0
    assert "leave it to the outer momentum" in finished.output
