"""docker/byteps/cluster: each role of BytePS in a container of its own."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest
from containers import BYTEPS, DIGITS, END_LIMIT, ENGINE, job, run

TRAIN = ["python", "scripts/train.py", "--engine", "byteps", *DIGITS, "--output", "runs/byteps"]
OTHERS = (15_000, 17_000)
"""Bytes that a worker sends in a step besides gradients; measured: 15,960."""

SHORT = ["--set", "train.epochs=2"]


@pytest.mark.parametrize(
    "spec", ["residual|topk(ratio=0.01)", "residual|sign", "residual|polar(rate=0.25)"]
)
def test_two_workers_train(tmp_path: Path, spec: str) -> None:
    command = [*BYTEPS, "--logs", str(tmp_path), "--", *TRAIN, *SHORT, "--compression", spec]
    summary = run(command, tmp_path).summary()
    first, second = summary["parameters_sha256"]
    assert first == second
    # Over TCP come requests and the mean loss: with each spec as many bytes.
    assert OTHERS[0] < summary["tcp_bytes_per_step"] - summary["sent_bytes_per_step"] < OTHERS[1]


def test_three_workers_and_two_servers(tmp_path: Path) -> None:
    scale = ["--workers", "3", "--servers", "2", "--logs", str(tmp_path)]
    command = [*BYTEPS, *scale, "--", *TRAIN, *SHORT, "--compression", "residual|topk(ratio=0.01)"]
    digests = run(command, tmp_path).summary()["parameters_sha256"]
    assert len(digests) == 3
    assert len(set(digests)) == 1
    assert {path.stem for path in tmp_path.glob("*.log")} == {
        "scheduler",
        *("server-0", "server-1"),
        *("worker-0", "worker-1", "worker-2"),
    }


@pytest.mark.parametrize("name", ["scheduler", "server-0", "worker-0", "worker-1"])
def test_the_end_of_a_container_ends_the_job(tmp_path: Path, name: str) -> None:
    command = [*BYTEPS, "--logs", str(tmp_path), "--", *TRAIN, "--set", "train.epochs=1000"]
    with job(command, tmp_path) as running:
        running.wait_for("epoch 2/1000")
        running.kill(name)
        began = time.monotonic()
        ended = running.end()
        assert time.monotonic() - began < END_LIMIT
    assert ended.code == 137
    assert f"cluster: {name} was killed by signal 9 (SIGKILL), so the job was ended" in ended.output


def test_interruption_leaves_nothing(tmp_path: Path) -> None:
    command = [*BYTEPS, "--logs", str(tmp_path), "--", *TRAIN, "--set", "train.epochs=1000"]
    with job(command, tmp_path) as running:
        running.wait_for("epoch 2/1000")
        running.process.send_signal(signal.SIGINT)
        ended = running.end(END_LIMIT)
    assert ended.code == 130
    assert "cluster: ended by SIGINT" in ended.output


def test_a_script_that_fails_is_named(tmp_path: Path) -> None:
    command = [*BYTEPS, "--logs", str(tmp_path), "--", *TRAIN, "--compression", "topk(ratio=2)"]
    ended = run(command, tmp_path)
    assert ended.code == 2
    assert "ended with exit code 2, so the job was ended" in ended.output


def test_another_cpu_is_refused_at_the_start() -> None:
    command = [ENGINE, "run", "--rm", "--env", "GRADCOMP_BYTEPS_MARCH=x86-64-v9", "gradcomp-byteps"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "BytePS in this image needs a CPU of level x86-64-v9, and this one" in done.stderr
    assert "--build-arg GRADCOMP_BYTEPS_MARCH=x86-64-v2" in done.stderr
