"""Real BytePS jobs: a scheduler, servers and workers, started by the launcher."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from launch import HERE, PATHS, CaseJob, Finished, read_reports
from workers.byteps_model import PARTITION_BYTES

from support.forks import TORCH, python

CASES = [
    *("codecs", "two_way", "tails", "dtypes", "integers", "checkpoints"),
    *(
        "codecs_by_name",
        "summable",
        "uneven_data",
        "compiled_model",
        "refusals",
        "training",
        "totals",
    ),
]
LIMIT = 300
ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join([*map(str, PATHS), os.environ.get("PYTHONPATH", "")]),
    "BYTEPS_PARTITION_BYTES": str(PARTITION_BYTES),
    "PS_KEY_LOG": "1",
    "OMP_NUM_THREADS": "1",
}


def command(
    logs: Path,
    workers: int,
    servers: int,
    *program: str | Path,
    imported: tuple[str, ...] = TORCH,
) -> list[str]:
    counts = ["--workers", str(workers), "--servers", str(servers)]
    launcher = [sys.executable, "-m", "byteps_compressors.launch", *counts, "--logs", str(logs)]
    return [*launcher, "--timeout", str(LIMIT), "--", *python(imported), *map(str, program)]


def run(
    folder: Path,
    workers: int,
    servers: int,
    *program: str | Path,
    imported: tuple[str, ...] = TORCH,
) -> Any:
    return subprocess.run(
        command(folder / "logs", workers, servers, *program, imported=imported),
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=LIMIT + 60,
        check=False,
    )


@dataclass(frozen=True)
class BytepsJob(CaseJob):
    """A job of workers that ran cases."""

    logs: Path


def run_cases(
    folder: Path, workers: int, servers: int, cases: list[str], module: str = "workers.byteps_cases"
) -> BytepsJob:
    began = time.monotonic()
    done = run(folder, workers, servers, "-m", module, folder, *cases)
    finished = Finished(done.returncode, done.stdout + done.stderr, time.monotonic() - began)
    assert finished.status == 0, finished.output
    return BytepsJob(finished, read_reports(folder, workers), folder / "logs")


def start(log: Path, program: list[str], **environment: str) -> subprocess.Popen[str]:
    """Start a job of `workers.byteps_forever`; returns the launcher once ``log`` says that the
    job is under way."""
    process = subprocess.Popen(
        program,
        env={**os.environ, **ENVIRONMENT, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + LIMIT
    while not (log.exists() and "under way" in log.read_text()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return process


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> BytepsJob:
    """Two workers, two servers."""
    return run_cases(tmp_path_factory.mktemp("byteps2"), 2, 2, CASES)


@pytest.mark.parametrize("case", CASES)
def test_two_workers_two_servers(job: BytepsJob, case: str) -> None:
    job.check(case)


def test_training_reaches_the_uncompressed_accuracy_with_equal_weights(job: BytepsJob) -> None:
    first, second = job.check("training")
    assert first == second  # accuracies, and digests of the weights
    uncompressed, _ = first.pop("identity")
    assert uncompressed > 0.93
    for spec, (accuracy, _) in first.items():
        assert accuracy > uncompressed - 0.02, spec


def test_the_servers_saw_the_bytes_that_the_workers_counted(job: BytepsJob) -> None:
    counted = sum(pushed for pushed, _, _ in job.check("totals"))
    assert sum(sum(sizes[2:]) for sizes in pushes(job.logs)) == counted


def test_three_workers_one_server(tmp_path: Path) -> None:
    job = run_cases(tmp_path, 3, 1, ["replicas", "own_compressors_of_byteps"])
    job.check("own_compressors_of_byteps")
    first, second, third = job.check("replicas")
    assert first == second == third
    weights = [sizes[2:] for sizes in pushes(job.logs) if sizes[0] == 64 * 128 * 4]
    # Top-k of 1% of 8192 elements: 82 values and their indices instead of 32768 bytes.
    assert min(max(sizes) for sizes in weights) < 450


class TestRestarts:
    """Two-way error feedback over the end of a job."""

    def train(self, folder: Path, servers: int, name: str, *options: str) -> Any:
        """The report of worker 0, after a check that worker 1 has the same."""
        reports = folder / name
        reports.mkdir()
        done = run(reports, 2, servers, "-m", "workers.byteps_resume", folder, reports, *options)
        assert done.returncode == 0, done.stdout + done.stderr
        one, other = (json.loads((reports / f"rank{rank}.json").read_text()) for rank in range(2))
        assert one == other
        return one

    def test_a_new_job_goes_on_where_another_one_was_saved(self, tmp_path: Path) -> None:
        first = self.train(tmp_path, 2, "first", "first")
        assert first["again"] == first["later"]
        for name, digest in first["forgotten"].items():
            assert digest != first["later"][name], name  # so servers do keep something of it
        # Tensors are not on the servers on which they were.
        second = self.train(tmp_path, 1, "second")
        assert second["later"] == first["later"]

    def test_a_worker_that_asks_alone_ends_the_job(self, tmp_path: Path) -> None:
        done = run(tmp_path, 2, 1, "-m", "workers.byteps_asking")
        assert done.returncode == 1
        assert "all must call state_dict" in done.stderr


def pushes(logs: Path) -> list[list[int]]:
    """The sizes of pushes, for each partition with a compressor and each worker.

    The first is the whole partition, and the second the compressor's arguments.
    """
    result = []
    for log in logs.glob("server-*.log"):
        sizes: dict[tuple[str, str], list[int]] = {}
        text = log.read_text()
        for key, sender, size in re.findall(r"push key=(\d+)\s+sender=(\d+)\s+size=(\d+)", text):
            sizes.setdefault((key, sender), []).append(int(size))
        own = set(re.findall(r"register compressor for key=(\d+)", text))
        result += [of for (key, _), of in sizes.items() if key in own]
    return result


class TestTraining:
    """scripts/train.py, which is to work as under Horovod."""

    ROOT = HERE.parents[1]

    def train(self, folder: Path, *arguments: str) -> Any:
        config = self.ROOT / "configs/digits/mlp.yaml"
        settings = ["--engine", "byteps", "--config", str(config), "--output", str(folder / "run")]
        spec = ["--compression", "residual|topk(ratio=0.01)", "--set", "version=1"]
        script = self.ROOT / "scripts/train.py"
        return run(folder, 2, 1, script, *settings, *spec, *arguments)

    @pytest.mark.full  # test_byteps_docker trains with it, too
    def test_trains_and_resumes(self, tmp_path: Path) -> None:
        epochs = ["--set", "train.epochs=1", "--set", "train.steps_per_epoch=5"]
        first = self.train(tmp_path, *epochs, "--set", "train.checkpoint_every=1")
        assert first.returncode == 0, first.stdout + first.stderr
        summary = json.loads((tmp_path / "run/summary.json").read_text())
        one, other = summary["parameters_sha256"]
        assert one == other
        # 301,066 parameters: 1% of the matrices' elements, and vectors uncompressed.
        assert 30 < summary["compression_ratio"] < 80
        epochs[1] = "train.epochs=2"
        again = self.train(tmp_path, *epochs, "--resume")
        assert again.returncode == 0, again.stdout + again.stderr
        assert "resuming from" in again.stdout

    def test_needs_the_launcher(self, tmp_path: Path) -> None:
        config = str(self.ROOT / "configs/digits/mlp.yaml")
        done = subprocess.run(
            [sys.executable, "scripts/train.py", "--engine", "byteps", "--config", config],
            cwd=self.ROOT,
            env={k: v for k, v in os.environ.items() if not k.startswith("DMLC_")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        assert "byteps_compressors.launch" in done.stderr


class TestDeaths:
    @pytest.mark.parametrize(
        "victim",
        [
            pytest.param("worker 1", marks=pytest.mark.full),  # it is stopped below
            "server 0",
            pytest.param("scheduler", marks=pytest.mark.full),
        ],
    )
    def test_a_killed_role_ends_the_job(self, tmp_path: Path, victim: str) -> None:
        logs = tmp_path / "logs"
        program = command(logs, 2, 1, "-m", "workers.byteps_forever")
        launcher = start(logs / "worker-0.log", program)
        supervisors = psutil.Process(launcher.pid).children()
        roles = [role for one in supervisors for role in one.children()]
        tags = [role.environ().get("BYTEPS_SHM_TAG", "none") for role in roles]
        (process,) = (role for role in roles if name_of(role) == victim)
        began = time.monotonic()
        process.send_signal(signal.SIGKILL)
        _, errors = launcher.communicate(timeout=60)
        assert time.monotonic() - began < 30
        assert launcher.returncode == 1
        assert f"launch: {victim} was killed by signal 9 (SIGKILL)" in errors
        assert not any(role.is_running() and role.status() != "zombie" for role in roles)
        assert not any(one.is_running() for one in supervisors)
        left = [path.name for path in Path("/dev/shm").iterdir()]
        assert not [name for name in left if any(tag in name for tag in tags)]

    @pytest.mark.parametrize(
        "victim", ["worker 1", pytest.param("server 0", marks=pytest.mark.full)]
    )
    def test_a_stopped_role_ends_the_job(self, tmp_path: Path, victim: str) -> None:
        logs = tmp_path / "logs"
        program = command(logs, 2, 1, "-m", "workers.byteps_forever")
        program[program.index("--timeout") : program.index("--timeout")] = [
            "--stopped-timeout",
            "2",
        ]
        launcher = start(logs / "worker-0.log", program)
        supervisors = psutil.Process(launcher.pid).children()
        roles = [role for one in supervisors for role in one.children()]
        (process,) = (role for role in roles if name_of(role) == victim)
        process.send_signal(signal.SIGSTOP)
        _, errors = launcher.communicate(timeout=60)
        assert launcher.returncode == 1
        assert f"launch: {victim} was stopped by a signal (SIGSTOP)" in errors
        assert not any(role.is_running() and role.status() != "zombie" for role in roles)

    def test_an_exception_in_a_worker_ends_the_job(self, tmp_path: Path) -> None:
        done = run(tmp_path, 2, 1, "-m", "workers.byteps_failing")
        assert done.returncode == 1
        assert "launch: worker 1 ended with exit code 1" in done.stderr
        assert "ValueError: worker 1 gives up" in done.stderr

    @pytest.mark.parametrize(
        ("other", "blamed", "exit_code"),
        [
            ("time.sleep(0.5); sys.exit(5)", "worker 1 ended with exit code 5", 5),
            ("time.sleep(60)", "worker 0 was killed by signal 6 (SIGABRT) while worker 1", 1),
        ],
    )
    def test_an_abort_is_blamed_on_what_fails_beside_it(
        self, tmp_path: Path, other: str, blamed: str, exit_code: int
    ) -> None:
        script = (
            f"import os, sys, time\nif os.environ['DMLC_WORKER_ID'] == '0': os.abort()\n{other}\n"
        )
        done = run(tmp_path, 2, 1, "-c", script, imported=())
        assert done.returncode == exit_code
        assert f"launch: {blamed}" in done.stderr

    def test_the_exit_code_is_the_workers(self, tmp_path: Path) -> None:
        assert run(tmp_path, 1, 1, "-m", "workers.byteps_failing", "5").returncode == 5


class TestSeveralMachines:
    """Through a program that does as ssh does, but stays on this machine."""

    SSH = """#!/bin/sh
while [ "$1" = -o ]; do shift 2; done
[ "$1" = -- ] || exit 64
shift
echo "$1" >> "$(dirname "$0")/machines"
shift
env -i HOME="$HOME" PATH=/usr/bin:/bin sh -c "$*"
"""

    @pytest.fixture
    def launcher(self, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
        """Starts two workers, one of them elsewhere, that never end by themselves."""
        ssh = tmp_path / "bin/ssh"
        ssh.parent.mkdir()
        ssh.write_text(self.SSH)
        ssh.chmod(0o755)
        hostfile = tmp_path / "hosts"
        hostfile.write_text("127.0.0.1\nelsewhere.example slots=1  # two machines\n")
        options = ["--hostfile", hostfile, "--interface", "lo", "--env", "FOR_ALL"]
        log = tmp_path / "logs/worker-1.log"
        path = os.pathsep.join([str(ssh.parent), os.environ["PATH"]])
        program = command(log.parent, 2, 2, "-m", "workers.byteps_forever")
        program = [*program[:3], *map(str, options), *program[3:]]
        process = start(log, program, PATH=path, FOR_ALL="a b'c")
        yield process
        process.kill()

    def test_a_lost_connection_ends_the_job_everywhere(
        self, launcher: subprocess.Popen[str], tmp_path: Path
    ) -> None:
        machines = (tmp_path / "bin/machines").read_text().split()
        assert machines == ["elsewhere.example"] * 2  # a server and a worker
        everything = psutil.Process(launcher.pid).children(recursive=True)
        (remote,) = (one for one in everything if one.environ().get("DMLC_WORKER_ID") == "1")
        assert remote.environ()["FOR_ALL"] == "a b'c"
        assert "HOROVOD" not in "".join(remote.environ())
        remote.parent().parent().send_signal(signal.SIGKILL)  # what stands for ssh
        _, errors = launcher.communicate(timeout=60)
        assert launcher.returncode == 1
        assert "worker 1 was killed by signal 9 (SIGKILL) on elsewhere.example" in errors
        psutil.wait_procs(everything, timeout=10)
        assert not any(one.is_running() for one in everything)


def name_of(process: psutil.Process) -> str:
    environment = process.environ()
    role = environment["DMLC_ROLE"]
    if role == "worker":
        return f"worker {environment['DMLC_WORKER_ID']}"
    return "server 0" if role == "server" else role
