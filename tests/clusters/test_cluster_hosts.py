"""docker/hosts: containers that reach one another by ssh, for Horovod, torchrun and BytePS' launcher."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from containers import DIGITS, END_LIMIT, HOSTS, LIMIT, ROOT, Running, job, run

from elastic.job import end_after, rows_in
from elastic.laws import check_replicas, complete, lives_of, sizes_of

TOP_K = ["--compression", "residual|topk(ratio=0.01)"]
SHORT = ["--set", "train.epochs=2"]
TRAIN = ["python", "scripts/train.py", *DIGITS, *SHORT]
SCRIPTS = ["--volume", f"{ROOT}/tests/engines/workers:/scripts:ro"]
HOROVODRUN = ["horovodrun", "-np", "4", "-H", "a:2,b:2"]
# MPI waits in loops: ranks that leave the processor to others are faster where hosts share one.
YIELD = "--mpi-args=--mca mpi_yield_when_idle 1"
ENGINES = {"gloo": ["--gloo"], "mpi": ["--mpi", YIELD]}


@pytest.fixture(autouse=True)
def _readable(tmp_path: Path) -> None:
    """Hosts see the test's folder, and their user is another one."""
    tmp_path.chmod(0o755)


def lines(output: str) -> list[dict[str, Any]]:
    """The objects of JSON in the output, wherever a launcher puts them."""
    found = [line[line.index("{") :] for line in output.splitlines() if '{"' in line]
    return [json.loads(line[: line.rindex("}") + 1]) for line in found]


@pytest.mark.parametrize("controller", ENGINES)
def test_horovod_trains(tmp_path: Path, controller: str) -> None:
    command = [*HOROVODRUN, *ENGINES[controller], *TRAIN, *TOP_K, "--output", "runs/horovod"]
    summary = run([*HOSTS, "a", "b", "--", *command], tmp_path).summary()
    assert len(summary["parameters_sha256"]) == 4
    assert len(set(summary["parameters_sha256"])) == 1
    assert summary["sent_bytes_per_step"] < summary["tcp_bytes_per_step"]


@pytest.mark.parametrize("controller", ENGINES)
def test_horovod_compresses_an_unedited_script(tmp_path: Path, controller: str) -> None:
    (tmp_path / "compress.yaml").write_text(
        "version: 1\ncompress: {default: 'residual|topk(ratio=0.01)'}\n"
    )
    volumes = [*SCRIPTS, "--volume", f"{tmp_path}:/config:ro"]
    launcher = ["python", "-m", "horovod_compressors.run", "--config", "/config/compress.yaml"]
    command = [*HOROVODRUN, *ENGINES[controller], *launcher, "/scripts/stock_script.py"]
    ended = run([*HOSTS, *volumes, "a", "b", "--", *command], tmp_path)
    assert ended.code == 0, ended.output
    assert "compresses with residual(beta=1.0,gamma=1.0)|topk(ratio=0.01" in ended.output
    (result,) = (line for line in lines(ended.output) if "same" in line)
    assert result["same"]


def test_two_levels_of_horovod(tmp_path: Path) -> None:
    """Each host is a node: its first rank alone sends to the other one."""
    options = ["--config", "configs/dgc/two_level.yaml", "--output", "runs/two-level"]
    command = [*HOROVODRUN, "--gloo", *TRAIN, *options]
    summary = run([*HOSTS, "a", "b", "--", *command], tmp_path).summary()
    assert len(summary["parameters_sha256"]) == 4
    assert len(set(summary["parameters_sha256"])) == 1


def test_elastic_job_loses_a_host(tmp_path: Path) -> None:
    """A new host joins, and another one dies: an unedited script goes on with those that are left."""
    rows = tmp_path / "rows"
    rows.mkdir()
    rows.chmod(0o777)
    (tmp_path / "last").write_text("1000000")
    discover = tmp_path / "discover"
    discover.write_text("#!/bin/sh\ncat /job/hosts\n")
    discover.chmod(0o755)
    (tmp_path / "hosts").write_text("a:1\nb:1\n")
    volumes = ["--volume", f"{tmp_path}:/job", "--volume", f"{ROOT}/benchmarks:/benchmarks:ro"]
    variables = ["env", "PYTHONHASHSEED=0", "PYTHONPATH=/benchmarks"]
    horovodrun = ["horovodrun", "--gloo", "-np", "2", "--min-np", "2", "--max-np", "4"]
    horovodrun += ["--network-interface", "eth0", "--host-discovery-script", "/job/discover"]
    script = [
        "python",
        "-m",
        "horovod_compressors.run",
        *TOP_K,
        "/scripts/stock_elastic_example.py",
    ]
    command = [*variables, *horovodrun, *script, "/job/rows"]
    hosts = [*HOSTS, "--elastic", *SCRIPTS, *volumes, "a", "b", "c", "--", *command]
    with job(hosts, tmp_path) as running:
        steps_of(running, rows, 2)
        (tmp_path / "hosts").write_text("a:1\nb:1\nc:1\n")
        steps_of(running, rows, 3)
        running.kill("b")
        end_after(tmp_path / "last", steps_of(running, rows, 2) + 5)
        ended = running.end()
    assert ended.code == 0, ended.output
    assert (
        "hosts: host b was killed by signal 9 (SIGKILL); the job goes on without it" in ended.output
    )
    lives = lives_of(rows_in(rows))
    assert sizes_of(lives) == [2, 3, 2]
    check_replicas(lives)
    for life in lives:
        for step in complete(life).values():
            assert 0 < step[0]["sent"] <= 0.01 * step[0]["size"] + 1e-3


def steps_of(running: Running, rows: Path, size: int) -> int:
    """Wait for more steps of this number of ranks; returns the last one."""
    began = time.time()
    deadline = time.monotonic() + LIMIT
    while True:
        steps = {r["step"] for r in rows_in(rows) if r["time"] > began and r["size"] == size}
        if len(steps) >= 5:
            return int(max(steps))
        assert running.process.poll() is None, running.output
        assert time.monotonic() < deadline, f"no steps of {size} ranks:\n{running.output}"
        time.sleep(0.5)


def torchrun_on_two_hosts(folder: Path, name: str, *options: str) -> dict[str, Any]:
    """Train on four ranks; returns the summary. All ranks must end with the same parameters."""
    torchrun = ["torchrun", "--nnodes", "2", "--nproc-per-node", "2"]
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "a:29500"]
    script = ["scripts/train.py", "--engine", "torch", *DIGITS, *SHORT, *options]
    command = [*torchrun, *rendezvous, *script, "--output", f"runs/{name}"]
    ended = run([*HOSTS, "--everywhere", "a", "b", "--", *command], folder)
    summary: dict[str, Any] = ended.summary()
    assert len(summary["parameters_sha256"]) == 4
    assert len(set(summary["parameters_sha256"])) == 1
    return summary


def test_ddp_on_two_hosts(tmp_path: Path) -> None:
    torchrun_on_two_hosts(tmp_path, "ddp", *TOP_K)


def test_gossip_on_two_hosts(tmp_path: Path) -> None:
    """In the last step all ranks take the average of their models."""
    method = ["--algorithm", "sgp", "--topology", "npdde"]
    summary = torchrun_on_two_hosts(tmp_path, "gossip", *method)
    assert summary["compression_ratio"] == 1  # to one peer in each step


def test_byteps_by_ssh(tmp_path: Path) -> None:
    """byteps_compressors.launch --hostfile, over the ssh of containers."""
    (tmp_path / "hosts").write_text("a slots=1\nb slots=1\n")
    options = ["--image", "gradcomp-byteps", "--volume", f"{tmp_path}:/config:ro"]
    launch = ["python", "-m", "byteps_compressors.launch", "--hostfile", "/config/hosts"]
    launch += ["--servers", "2", "--interface", "eth0", "--"]
    script = [*TRAIN, "--engine", "byteps", *TOP_K, "--output", "runs/byteps"]
    summary = run([*HOSTS, *options, "a", "b", "--", *launch, *script], tmp_path).summary()
    first, second = summary["parameters_sha256"]
    assert first == second


@pytest.mark.parametrize("where", ["b", "$(getent hosts b | cut -d ' ' -f 1)"], ids=["key", "name"])
def test_unknown_keys_of_hosts_are_refused(tmp_path: Path, where: str) -> None:
    """A host that has got another key, and one under another name."""
    renew = "rm ~/.ssh/host_key*; ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/host_key; kill -HUP 1"
    steps = ["ssh b hostname", f'ssh b "{renew}"' if where == "b" else "true", "sleep 1"]
    command = ["sh", "-c", "; ".join([*steps, f"ssh {where} echo let in"])]
    ended = run([*HOSTS, "a", "b", "--", *command], tmp_path)
    assert ended.code == 255
    assert "\nb\n" in ended.output
    assert "Host key verification failed" in ended.output
    assert "let in" not in ended.output


@pytest.mark.parametrize("name", ["a", "b"])
def test_the_end_of_a_host_ends_the_job(tmp_path: Path, name: str) -> None:
    long = ["--set", "train.epochs=1000", "--output", "runs/long"]
    with job([*HOSTS, "a", "b", "--", *HOROVODRUN, "--gloo", *TRAIN, *long], tmp_path) as running:
        running.wait_for("epoch 2/1000")
        running.kill(name)
        began = time.monotonic()
        ended = running.end()
        assert time.monotonic() - began < END_LIMIT
    assert ended.code == 1
    assert (
        f"hosts: host {name} was killed by signal 9 (SIGKILL), so the job was ended" in ended.output
    )


def test_interruption_of_hosts_leaves_nothing(tmp_path: Path) -> None:
    long = ["--set", "train.epochs=1000", "--output", "runs/long"]
    with job([*HOSTS, "a", "b", "--", *HOROVODRUN, "--gloo", *TRAIN, *long], tmp_path) as running:
        running.wait_for("epoch 2/1000")
        running.process.send_signal(signal.SIGINT)
        ended = running.end(END_LIMIT)
    assert ended.code == 130
