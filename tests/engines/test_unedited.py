"""``python -m torch_compressors.run`` and ``-m byteps_compressors.run``, with stock scripts.

test_horovod_run.py tests the part that all launchers share.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from launch import HERE, Finished, run

import torch_compressors.run

SPEC = "residual|topk(ratio=0.01)"
CANONICAL = "residual(beta=1.0,gamma=1.0)|topk(ratio=0.01,values=fp32)"
KEPT = 100
"""Elements that top-k keeps of the scripts' 10,000 weights."""

WORKERS = HERE / "workers"
DDP_SCRIPT = WORKERS / "stock_ddp_script.py"
LOCAL_SCRIPT = WORKERS / "stock_outer_script.py"
BYTEPS_SCRIPT = WORKERS / "stock_byteps_script.py"


@pytest.fixture(scope="module")
def ddp() -> Finished:
    """The script for torchrun on two ranks."""
    launcher = ["-m", "torch_compressors.run", "--compression", SPEC, DDP_SCRIPT]
    finished = run([*launcher, "--config", "not ours"], 2, "torchrun")
    assert finished.status == 0, finished.output
    return finished


def rows(output: str, step: str) -> list[dict[str, Any]]:
    """The reports on a step of the script, in the order of ranks."""
    found = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return sorted((row for row in found if row["step"] == step), key=lambda row: row["rank"])


def test_ddp_script_trains_compressed(ddp: Finished) -> None:
    first, spawned, second = rows(ddp.output, "ddp")
    assert first["total"] == second["total"]
    # The union of the elements of two ranks; those of one.
    assert KEPT < first["changed"] <= 2 * KEPT
    assert spawned["changed"] == KEPT
    for row in rows(ddp.output, "end"):
        assert (row["config"], row["name"]) == ("not ours", "__main__")


def test_ddp_script_is_told_of_it_once(ddp: Finished) -> None:
    said = f"gradcomp: DistributedDataParallel of 4 parameters compresses with {CANONICAL}; the"
    assert ddp.output.count(said) == 2, ddp.output  # torchrun's rank 0, and the spawned process
    assert ddp.output.count("tensors are compressed, ") == 2, ddp.output
    assert "gradcomp: on DDP with 2 ranks, " in ddp.output


@pytest.mark.parametrize(
    ("step", "hook"),
    [("hook", "fp16_compress_hook"), ("precision", "_reducer_allreduce_and_upcast_hook")],
)
def test_another_hook_is_refused(ddp: Finished, step: str, hook: str) -> None:
    errors = [row["error"] for row in rows(ddp.output, step)]
    assert len(errors) == 2
    for error in errors:
        assert (
            "the script gives its DistributedDataParallel model its own communication hook" in error
        )
        assert f"'{hook}'" in error
        assert "or run the script without torch_compressors.run" in error


def test_a_sharded_model_is_said_to_be_uncompressed(ddp: Finished) -> None:
    said = "gradcomp: the gradients of models of fully_shard are not compressed"
    assert ddp.output.count(said) == 1, ddp.output


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("dgc(ratio=0.01)", "applies the optimizer's momentum"),
        ("residual(lr=scale)|topk(ratio=0.01)", "follows the optimizer's learning rate"),
        ("dion", "gives steps of the optimizer Dion"),
    ],
)
def test_specs_that_need_the_optimizer(
    spec: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert torch_compressors.run.main(["--compression", spec, str(DDP_SCRIPT)]) == 2
    message = capsys.readouterr().err
    assert message.startswith("gradcomp: ")
    assert reason in message
    assert "call torch_compressors.ddp_hook(config, model, optimizer) in the script" in message


@pytest.fixture(scope="module")
def outer_jobs() -> dict[str, Any]:
    """Parts of a script on two ranks, which average after every third step."""
    launcher = ["-m", "torch_compressors.run", "--compression", "residual|int8", "--outer", "3"]
    finished = run([*launcher, LOCAL_SCRIPT], 2, "torchrun")
    assert finished.status == 0, finished.output
    said = "of 6 parameters compresses every 3 steps, as OuterStep does, with residual"
    assert said in finished.output
    lines = [json.loads(line) for line in finished.output.splitlines() if line.startswith("{")]
    return {line["part"]: line.get("found", line.get("error")) for line in lines}


@pytest.mark.parametrize("part", ["accumulation", "skipped_steps"])
def test_outer_steps_of_ddp_scripts(outer_jobs: dict[str, Any], part: str) -> None:
    """Also with steps that a GradScaler skips on one rank."""
    assert outer_jobs[part] == [False, False, True, False, False, True]


def test_two_models_of_one_optimizer(outer_jobs: dict[str, Any]) -> None:
    assert outer_jobs["two_models"] == [False, False, True]


def test_parameters_that_an_optimizer_gets_later(outer_jobs: dict[str, Any]) -> None:
    trained, later = outer_jobs["later_parameters"]
    assert trained == [False, False, True, False, False, True]
    assert later == [True, False, False, True, False, False]


def test_buffers_stay_with_their_rank(outer_jobs: dict[str, Any]) -> None:
    assert outer_jobs["buffers"] is False


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("two_optimizers", "'0.weight' has two optimizers, SGD and SGD; with --outer a parameter"),
        ("zero", "ZeroRedundancyOptimizer steps each parameter on one rank, and with --outer"),
        ("join", "give all ranks equally many batches, or leave --outer out"),
    ],
)
def test_scripts_that_outer_steps_refuse(
    outer_jobs: dict[str, Any], part: str, message: str
) -> None:
    assert message in outer_jobs[part]


def run_byteps(folder: Path) -> Finished:
    """A job of two workers and one server; the output is that of the launcher and both workers."""
    counts = ["--workers", "2", "--servers", "1", "--logs", folder / "logs"]
    launcher = ["-m", "byteps_compressors.launch", *counts, "--timeout", "300", "--"]
    ours = [sys.executable, "-m", "byteps_compressors.run", "--compression", SPEC, BYTEPS_SCRIPT]
    finished = run([*launcher, *ours, folder, "--config", "not ours", "--steps", "12"])
    logs = (folder / "logs").glob("worker-*.log")
    return Finished(
        finished.status, finished.output + "".join(map(Path.read_text, logs)), finished.seconds
    )


def test_byteps_script_trains_compressed(tmp_path: Path) -> None:
    finished = run_byteps(tmp_path)
    assert finished.status == 0, finished.output
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first["total"] == second["total"]
    assert first["changed"] == second["changed"] == KEPT  # the server compresses the sum
    assert (first["config"], first["name"]) == ("not ours", "__main__")
    said = (
        f"gradcomp: bps.DistributedOptimizer of 4 parameters compresses with {CANONICAL} instead "
    )
    # On worker 0 alone: the launcher shows its log.
    assert finished.output.count(said) == 2, finished.output
    assert "instead of <class 'byteps.torch.compression.FP16Compressor'>" in finished.output
    assert finished.output.count("gradcomp: on BytePS with 2 ranks, ") == 2, finished.output
    assert finished.output.count("gradcomp: 12 steps on 2 ranks: this rank sent ") == 2
    assert "uncompressed gradients; 0 passed" not in finished.output
    assert "; no faults" in finished.output


def test_byteps_script_without_the_optimizer(tmp_path: Path) -> None:
    """A single worker, which needs no server."""
    alone = {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "1", "DMLC_WORKER_ID": "0"}
    alone |= {"BYTEPS_LOCAL_RANK": "0", "BYTEPS_LOCAL_SIZE": "1"}
    alone |= {"BYTEPS_SOCKET_PATH": str(tmp_path), "BYTEPS_SHM_TAG": f"{tmp_path.name}-"}
    command = ["-m", "byteps_compressors.run", "--compression", SPEC, BYTEPS_SCRIPT, tmp_path]
    finished = run([*command, "--plain"], environment=alone)
    assert finished.status == 0, finished.output
    said = f"gradcomp: {BYTEPS_SCRIPT} never called bps.DistributedOptimizer, so nothing was"
    assert finished.output.count(said) == 1, finished.output
    assert finished.output.count("gradcomp: the gradients of byteps.torch.parallel.Distrib") == 1
