"""The compose file gives BytePS' roles all settings that they need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from byteps_compressors.server import REQUIRED

FOLDER = Path(__file__).resolve().parents[2] / "docker" / "byteps"
SERVICES: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
OF_WORKERS = ("DMLC_WORKER_ID", "BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE")


@pytest.mark.parametrize("service", SERVICES)
def test_each_service_knows_its_part_in_the_cluster(service: str) -> None:
    environment = SERVICES[service]["environment"]
    role = service.split("-")[0]
    assert environment["DMLC_ROLE"] == role
    needed = {*REQUIRED, "DMLC_INTERFACE", *(OF_WORKERS if role == "worker" else ())}
    assert set(environment) == needed
    assert environment["DMLC_PS_ROOT_URI"] in SERVICES


def test_as_many_services_as_the_roles_are_told() -> None:
    environments = [service["environment"] for service in SERVICES.values()]
    roles = [environment["DMLC_ROLE"] for environment in environments]
    ids = [environment.get("DMLC_WORKER_ID") for environment in environments]
    for environment in environments:
        assert environment["DMLC_NUM_WORKER"] == str(roles.count("worker"))
        assert environment["DMLC_NUM_SERVER"] == str(roles.count("server"))
    assert roles.count("scheduler") == 1
    assert {"0", "1"} == {one for one in ids if one is not None}


def test_workers_run_a_script_and_a_configuration_that_exist() -> None:
    root = FOLDER.parents[1]
    words = SERVICES["worker-0"]["command"].split()
    for word in words:
        if word.endswith((".py", ".yaml")):
            assert (root / word).is_file(), word
