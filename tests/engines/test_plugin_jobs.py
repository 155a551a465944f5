"""Codecs of plug-ins in jobs of several processes, installed and built as docs/plugins.md says."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import test_byteps
from launch import ENVIRONMENT, HERE, run

from support.plugins import build_native, install_python, package

SCRIPT = HERE / "workers" / "stock_script.py"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_python(tmp_path_factory.mktemp("python"))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_native(tmp_path_factory.mktemp("native"))


@pytest.mark.parametrize("spec", ["residual|bf8", "residual|absmax8"])
def test_horovod(installed: Path, library: Path, spec: str) -> None:
    command = ["-m", "horovod_compressors.run", "--compression", spec, SCRIPT]
    environment = {
        "PYTHONPATH": os.pathsep.join([ENVIRONMENT["PYTHONPATH"], str(installed)]),
        "GRADCOMP_PLUGINS": str(library),
    }
    finished = run(command, 2, "gloo", environment)
    assert finished.status == 0, finished.output
    (line,) = (line for line in finished.output.splitlines() if '"same"' in line)
    assert json.loads(line[line.index("{") :])["same"] is True
    assert f"|{spec.partition('|')[2]}(" in finished.output


CASES = ["plugin_codec", "plugin_training", "plugin_in_python"]


@pytest.fixture(scope="module")
def byteps(
    installed: Path, library: Path, tmp_path_factory: pytest.TempPathFactory
) -> test_byteps.BytepsJob:
    """Two workers and one server, which find the library by GRADCOMP_PLUGINS."""
    path = os.pathsep.join([test_byteps.ENVIRONMENT["PYTHONPATH"], str(installed)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(test_byteps.ENVIRONMENT, "PYTHONPATH", path)
        patch.setitem(test_byteps.ENVIRONMENT, "GRADCOMP_PLUGINS", str(library))
        folder = tmp_path_factory.mktemp("byteps")
        return test_byteps.run_cases(folder, 2, 1, CASES, "workers.byteps_plugins")


@pytest.mark.parametrize("case", CASES)
def test_case_of_byteps(byteps: test_byteps.BytepsJob, case: str) -> None:
    byteps.check(case)


def test_byteps_finds_the_library_of_a_package(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"import pathlib\nPATH = pathlib.Path({str(library)!r})\n"
    named = package(tmp_path / "site", "with_library", "absmax8 = with_library:PATH", module)
    path = os.pathsep.join([test_byteps.ENVIRONMENT["PYTHONPATH"], str(named)])
    monkeypatch.setitem(test_byteps.ENVIRONMENT, "PYTHONPATH", path)
    job = test_byteps.run_cases(tmp_path, 2, 1, ["plugin_training"], "workers.byteps_plugins")
    first, second = job.check("plugin_training")
    assert first == second


def test_workers_of_byteps_have_equal_weights(byteps: test_byteps.BytepsJob) -> None:
    first, second = byteps.check("plugin_training")
    assert first == second
