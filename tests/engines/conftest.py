"""Jobs of several test files: each starts once, and runs many cases."""

from __future__ import annotations

from pathlib import Path

import pytest
from launch import CaseJob, run_cases

from support.forks import TENSORFLOW
from support.scope import FULL

# With these, every process set costs messages in each cycle.
_PROCESS_SETS = {"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}
# For jobs that seldom call Horovod: its ranks exchange messages in each cycle, by default every millisecond.
_SELDOM = {"HOROVOD_CYCLE_TIME": "5"}


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files from one job to another."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="session")
def gloo2(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> CaseJob:
    """Two ranks on Gloo."""
    # hvd.join() comes before Horovod's cache of responses is full: with a full one it crashes later gathers.
    modules = [
        "uneven",
        "replicas",
        "options",
        "refusals",
        "apart",
        "rounds",
        "low_rank",
        "exchange",
    ]
    modules += ["dgc", "schedules", "policy", "encoder_thread", "horovod_device", "states:save"]
    return run_cases(modules, 2, "gloo", tmp_path_factory.mktemp("gloo2"), shared)


@pytest.fixture(scope="session")
def gloo3(tmp_path_factory: pytest.TempPathFactory, shared: Path, gloo2: CaseJob) -> CaseJob:
    """Three ranks on Gloo, which load the checkpoints of the two."""
    modules = ["replicas", "process_sets", "exchange", "states:rescale"]
    folder = tmp_path_factory.mktemp("gloo3")
    return run_cases(modules, 3, "gloo", folder, shared, environment=_PROCESS_SETS)


@pytest.fixture(scope="session")
def gloo4(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> CaseJob:
    """Four ranks on Gloo, on two hosts."""
    modules, folder = ["two_level", "exchange"], tmp_path_factory.mktemp("gloo4")
    return run_cases(modules, 4, "gloo_hosts", folder, shared, environment=_PROCESS_SETS)


@pytest.fixture(scope="session")
def mpi4(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> CaseJob:
    """Four ranks on MPI, on one host."""
    folder = tmp_path_factory.mktemp("mpi4")
    return run_cases(["two_level:basic"], 4, "mpi", folder, shared, environment=_PROCESS_SETS)


@pytest.fixture(scope="session")
def mpi2(tmp_path_factory: pytest.TempPathFactory, shared: Path, gloo2: CaseJob) -> CaseJob:
    """Two ranks on MPI, which load the checkpoints of those on Gloo."""
    modules = ["replicas", "adasum", "exchange", "states:resume", *(["low_rank"] if FULL else [])]
    return run_cases(modules, 2, "mpi", tmp_path_factory.mktemp("mpi2"), shared)


@pytest.fixture(scope="session")
def torchrun2(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> CaseJob:
    """Two ranks of torchrun, which cannot import Horovod: the cases of `ddp`, `outer` and `fsdp`."""
    folder, harness = tmp_path_factory.mktemp("torchrun2"), ["-m", "workers.torch_alone"]
    return run_cases(["torch_alone"], 2, "torchrun", folder, shared, harness)


@pytest.fixture(scope="session")
def ddp2(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> CaseJob:
    """Two ranks of torchrun."""
    modules = ["ddp_device", "ddp_thread", "ddp_features", "compiled", "trainers", "conservation"]
    modules += ["fsdp_features", "fsdp_between", "proof_times"]
    return run_cases(modules, 2, "torchrun", tmp_path_factory.mktemp("ddp2"), shared)


@pytest.fixture(scope="session")
def ddp2_horovod(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> CaseJob:
    """Two ranks of Horovod on Gloo, which also make a process group of torch."""
    modules = [
        f"{module}:with_horovod"
        for module in ("ddp", "compiled", "trainers", "conservation", "outer")
    ]
    folder = tmp_path_factory.mktemp("ddp2_horovod")
    modules.append("decisions")
    return run_cases(modules, 2, "gloo", folder, shared, environment=_SELDOM)


@pytest.fixture(scope="session")
def ddp3(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> CaseJob:
    """Three such ranks."""
    modules, folder = ["ddp:three", "trainers:three"], tmp_path_factory.mktemp("ddp3")
    return run_cases(modules, 3, "gloo", folder, shared, environment=_SELDOM)


@pytest.fixture(scope="session")
def ddp4(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> CaseJob:
    """Four such ranks."""
    modules = ["ddp:four", "fsdp:four", "fsdp_between:four", "outer:four"]
    folder = tmp_path_factory.mktemp("ddp4")
    return run_cases(modules, 4, "gloo", folder, shared, environment=_SELDOM)


_TENSORFLOW_HARNESS = ["-m", "workers.tf_harness"]


@pytest.fixture(scope="session")
def tf2(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> CaseJob:
    """Two ranks of TensorFlow on Gloo."""
    modules = ["tf_options", "tf_keras", "tf_mixed_precision", "tf_outer", "tf_replicas"]
    modules += ["tf_examples", "tf_conservation"]
    folder = tmp_path_factory.mktemp("tf2")
    return run_cases(modules, 2, "gloo", folder, shared, _TENSORFLOW_HARNESS, TENSORFLOW)


@pytest.fixture(scope="session")
def tf3(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> CaseJob:
    """Three such ranks."""
    folder = tmp_path_factory.mktemp("tf3")
    return run_cases(
        *(["tf_process_sets"], 3, "gloo", folder, shared),
        *(_TENSORFLOW_HARNESS, TENSORFLOW, _PROCESS_SETS),
    )
