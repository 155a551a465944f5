"""The manifests of docker/kubernetes: fields, and agreement with the images and the scripts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from gradcomp import Config
from support.kubernetes import Container, JobSet, MPIJob, PyTorchJob, Variable

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docker" / "kubernetes"
KINDS: dict[str, Any] = {"mpijob": MPIJob, "pytorchjob": PyTorchJob, "jobset": JobSet}
COMPOSE = ROOT / "docker" / "byteps" / "compose.yaml"


def manifest(name: str) -> Any:
    return yaml.safe_load((FOLDER / f"{name}.yaml").read_text())


def read(name: str) -> Any:
    return KINDS[name].model_validate(manifest(name))


def containers(name: str) -> list[Container]:
    """All containers of a manifest."""
    found: list[Container] = []
    parts: list[Any] = [manifest(name)]
    while parts:
        part = parts.pop()
        if isinstance(part, dict):
            for key in ("containers", "initContainers"):
                found += [Container.model_validate(one) for one in part.get(key, ())]
            parts += part.values()
        elif isinstance(part, list):
            parts += part
    return found


def test_every_manifest_is_tested() -> None:
    assert {path.stem for path in FOLDER.glob("*.yaml")} == set(KINDS)


@pytest.mark.parametrize("name", KINDS)
def test_fields(name: str) -> None:
    read(name)


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("mpijob", ["spec", "slotPerWorker"], 1),
        ("mpijob", ["spec", "slotsPerWorker"], "1"),
        ("mpijob", ["spec", "launcherCreationPolicy"], "Later"),
        ("mpijob", ["apiVersion"], "kubeflow.org/v1"),
        ("pytorchjob", ["spec", "nprocPerNode"], 1),
        ("pytorchjob", ["spec", "pytorchReplicaSpecs", "Master", "restartPolicy"], "Sometimes"),
        ("jobset", ["spec", "successPolicy", "operator"], "Most"),
        ("jobset", ["metadata", "name"], "gradcomp_byteps"),
    ],
)
def test_wrong_fields_are_found(name: str, path: list[str], value: object) -> None:
    changed = manifest(name)
    part = changed
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    with pytest.raises(ValidationError, match=re.escape(path[-1])):
        KINDS[name].model_validate(changed)


@pytest.mark.parametrize("name", KINDS)
def test_images_and_files_exist(name: str) -> None:
    built = {
        match[1]: path
        for path in (ROOT / "docker").rglob("Dockerfile")
        for match in re.finditer(
            r"^#   docker build -f \S+ (?:--build-arg \S+ )?-t (\S+) \.$", path.read_text(), re.M
        )
    }
    for container in containers(name):
        assert container.image in built
        for word in [*container.command, *container.args]:
            file = word.partition("=")[2] or word
            if file.endswith((".py", ".yaml")):
                assert (ROOT / file).is_file(), word


@pytest.mark.parametrize("name", KINDS)
def test_the_script_takes_its_options(name: str) -> None:
    script = (ROOT / "scripts" / "train.py").read_text()
    words = [word for one in containers(name) for word in one.args if word.startswith("--")]
    options = dict(word.split("=", 1) for word in words)
    assert set(options) == {"--engine", "--config", "--compression", "--output"}
    for option in options:
        assert f'        "{option}",\n' in script
    assert f'"{options["--engine"]}"' in script
    assert Config.from_spec(options["--compression"]).compress.default


def test_mpi_starts_a_rank_on_each_worker() -> None:
    spec = read("mpijob").spec
    (launcher,) = spec.mpi_replica_specs.launcher.template.spec.containers
    ranks = int(launcher.command[launcher.command.index("-np") + 1])
    assert ranks == spec.slots_per_worker * spec.mpi_replica_specs.worker.replicas
    (worker,) = spec.mpi_replica_specs.worker.template.spec.containers
    assert worker.command[0] == "/usr/sbin/sshd"
    assert "mkdir -p /run/sshd" in (FOLDER / "Dockerfile").read_text()
    assert "openssh-server" in (ROOT / "docker" / "Dockerfile").read_text()


def test_the_operator_of_pytorch_finds_its_container() -> None:
    replicas = read("pytorchjob").spec.pytorch_replica_specs
    assert replicas.master.replicas == 1
    for one in (replicas.master, replicas.worker):
        assert [container.name for container in one.template.spec.containers] == ["pytorch"]


def test_roles_of_byteps_have_the_settings_of_the_compose_file() -> None:
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    jobs = {job.name: job.template.spec for job in read("jobset").spec.replicated_jobs}
    for role, service in (("scheduler", "scheduler"), ("server", "server"), ("worker", "worker-0")):
        (container,) = jobs[role].template.spec.containers
        found = {one.name: one for one in container.env}
        expected = services[service]["environment"]
        assert set(found) == set(expected)
        for name, variable in found.items():
            if name not in ("DMLC_PS_ROOT_URI", "DMLC_WORKER_ID"):
                assert variable.value == expected[name], f"{role}: {name}"
        assert jobs[role].completion_mode == "Indexed"
        assert jobs[role].backoff_limit == 0
    assert jobs["worker"].completions == jobs["worker"].parallelism
    assert str(jobs["worker"].completions) == services["worker-0"]["environment"]["DMLC_NUM_WORKER"]


def test_byteps_finds_its_scheduler() -> None:
    jobset = read("jobset")
    name, network = jobset.metadata.name, jobset.spec.network
    host = f"{name}-scheduler-0-0.{network.subdomain}"
    for job in jobset.spec.replicated_jobs:
        pod = job.template.spec.template.spec
        if job.name == "scheduler":
            (address,) = (one for one in pod.containers[0].env if one.name == "DMLC_PS_ROOT_URI")
            assert address.value_from.field_ref.field_path == "status.podIP"
            continue
        for container in (*pod.init_containers, *pod.containers):
            assert Variable(name="DMLC_PS_ROOT_URI", value=host) in container.env
        assert pod.init_containers
