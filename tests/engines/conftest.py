"""Jobs of several test files: each starts once, and runs many cases."""

from __future__ import annotations

from pathlib import Path

import pytest
from launch import CaseJob, run_cases

from support.scope import FULL


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files from one job to another."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="session")
def gloo2(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> CaseJob:
    """Two ranks on Gloo."""
    modules = ["replicas", "options", "refusals", "apart", "rounds", "low_rank", "exchange", "dgc"]
    modules += ["schedules", "policy", "uneven", "encoder_thread", "horovod_device", "states:save"]
    return run_cases(modules, 2, "gloo", tmp_path_factory.mktemp("gloo2"), shared)


@pytest.fixture(scope="session")
def gloo3(tmp_path_factory: pytest.TempPathFactory, shared: Path, gloo2: CaseJob) -> CaseJob:
    """Three ranks on Gloo, which load the checkpoints of the two."""
    modules = ["replicas", "process_sets", "exchange", "states:rescale"]
    return run_cases(modules, 3, "gloo", tmp_path_factory.mktemp("gloo3"), shared)


@pytest.fixture(scope="session")
def gloo4(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> CaseJob:
    """Four ranks on Gloo, on two hosts."""
    return run_cases(
        ["two_level", "exchange"], 4, "gloo_hosts", tmp_path_factory.mktemp("gloo4"), shared
    )


@pytest.fixture(scope="session")
def mpi4(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> CaseJob:
    """Four ranks on MPI, on one host."""
    return run_cases(["two_level:basic"], 4, "mpi", tmp_path_factory.mktemp("mpi4"), shared)


@pytest.fixture(scope="session")
def mpi2(tmp_path_factory: pytest.TempPathFactory, shared: Path, gloo2: CaseJob) -> CaseJob:
    """Two ranks on MPI, which load the checkpoints of those on Gloo."""
    modules = ["replicas", "adasum", "exchange", "states:resume", *(["low_rank"] if FULL else [])]
    return run_cases(modules, 2, "mpi", tmp_path_factory.mktemp("mpi2"), shared)


@pytest.fixture(scope="session")
def ddp2(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> CaseJob:
    """Two ranks of Horovod on Gloo, which also make a process group of torch."""
    return run_cases(
        [
            "ddp",
            "ddp_device",
            "ddp_thread",
            "trainers",
            "fsdp",
            "fsdp_features",
            "fsdp_between",
            "outer",
            "compiled",
            "ddp_features",
        ],
        2,
        "gloo",
        tmp_path_factory.mktemp("ddp2"),
        shared,
    )


@pytest.fixture(scope="session")
def ddp3(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> CaseJob:
    """Three such ranks."""
    return run_cases(
        ["ddp:three", "trainers:three"], 3, "gloo", tmp_path_factory.mktemp("ddp3"), shared
    )


@pytest.fixture(scope="session")
def ddp4(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> CaseJob:
    """Four such ranks."""
    modules = ["ddp:four", "fsdp:four", "fsdp_between:four", "outer:four"]
    return run_cases(modules, 4, "gloo", tmp_path_factory.mktemp("ddp4"), shared)


_TENSORFLOW_HARNESS = ["-m", "workers.tf_harness"]


@pytest.fixture(scope="session")
def tf2(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> CaseJob:
    """Two ranks of TensorFlow on Gloo."""
    modules = ["tf_options", "tf_keras", "tf_mixed_precision", "tf_outer", "tf_replicas"]
    modules += ["tf_examples"]
    folder = tmp_path_factory.mktemp("tf2")
    return run_cases(modules, 2, "gloo", folder, shared, _TENSORFLOW_HARNESS)


@pytest.fixture(scope="session")
def tf3(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> CaseJob:
    """Three such ranks."""
    folder = tmp_path_factory.mktemp("tf3")
    return run_cases(["tf_process_sets"], 3, "gloo", folder, shared, _TENSORFLOW_HARNESS)
