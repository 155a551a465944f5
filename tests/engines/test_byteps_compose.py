"""The services of docker/byteps/compose.yaml, as processes of this machine."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from launch import HERE

from byteps_compressors.launch import _free_port

ROOT = HERE.parents[1]
FOLDER = ROOT / "docker/byteps"
LIMIT = 300
SHORT = ["--set", "train.epochs=1", "--set", "train.steps_per_epoch=3"]


def environment(service: dict[str, Any], folder: Path, port: int) -> dict[str, str]:
    """The service's environment, except for settings by which containers are apart."""
    folder.mkdir()
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("BYTEPS_", "DMLC_", "PORT"))}
    here = {
        "DMLC_PS_ROOT_URI": "localhost",
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_INTERFACE": "lo",
        "BYTEPS_SOCKET_PATH": str(folder),
        "BYTEPS_SHM_TAG": f"{folder.parent.name}-{folder.name}-",
        "OMP_NUM_THREADS": "1",
    }
    return {**clean, **service["environment"], **here}


def command(service: dict[str, Any], output: Path) -> list[str]:
    """The service's command, or the image's where the service has none."""
    (of_image,) = re.findall(
        r"^CMD (\[.*\])$", (ROOT / "docker/Dockerfile").read_text(), re.MULTILINE
    )
    words = shlex.split(service["command"]) if "command" in service else json.loads(of_image)
    assert words[0] == "python"
    if "--output" not in words:
        return [sys.executable, *words[1:]]
    words[words.index("--output") + 1] = str(output)
    return [sys.executable, *words[1:], *SHORT]


def test_the_services_train(tmp_path: Path) -> None:
    services = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    port = _free_port()
    output = tmp_path / "run"
    processes = {}
    try:
        for name, service in services.items():
            with (tmp_path / f"{name}.log").open("w") as log:
                processes[name] = subprocess.Popen(
                    command(service, output),
                    cwd=ROOT,
                    env=environment(service, tmp_path / name, port),
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
        for name, one in processes.items():
            code = one.wait(LIMIT)
            assert code == 0, f"{name}:\n{(tmp_path / f'{name}.log').read_text()}"
    finally:
        for one in processes.values():
            one.kill()
            one.wait()
        for left in Path("/dev/shm").glob(f"*{tmp_path.name}-*"):
            left.unlink()
    summary = json.loads((output / "summary.json").read_text())
    first, second = summary["parameters_sha256"]
    assert first == second
