"""``gradcomp doctor`` in real environments: complete, bare, and with faults."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zlib
from pathlib import Path
from typing import Any

import decoder
import numpy as np
import pytest
from packaging.requirements import Requirement

from gradcomp.tools.probes import FRAME_CRC, one_frame

ROOT = Path(__file__).resolve().parents[2]
ENGINES = ("PyTorch", "TensorFlow", "Horovod, PyTorch", "Horovod, TensorFlow", "BytePS")


def examined(
    python: str, *options: str, folder: Path = ROOT, **environment: str
) -> tuple[int, dict[str, Any]]:
    """The exit code, and the findings by name."""
    done = subprocess.run(
        [python, "-m", "gradcomp", "doctor", "--json", *options],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), **environment},
    )
    assert done.stderr == ""
    return done.returncode, {found["name"]: found for found in json.loads(done.stdout)}


class Bare:
    """A virtual environment that has the requirements of gradcomp and nothing else."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=False)
        self.python = str(folder / "bin" / "python")
        (self.packages,) = folder.glob("lib/python*/site-packages")
        names, wanted = set(), ["gradcomp"]
        while wanted:
            name = wanted.pop()
            if name in names:
                continue
            names.add(name)
            found = importlib.metadata.distribution(name)
            for text in found.requires or ():
                needed = Requirement(text)
                if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                    wanted.append(needed.name)
            for top in {Path(file).parts[0] for file in found.files or ()} - {".."}:
                place = Path(str(found.locate_file(top)))
                if "editable" not in top and not (self.packages / top).exists():
                    (self.packages / top).symlink_to(place)

    def add(self, package: str, code: str) -> None:
        (self.packages / package).mkdir()
        (self.packages / package / "__init__.py").write_text(code)


@pytest.fixture
def bare(tmp_path: Path) -> Bare:
    return Bare(tmp_path / "bare")


def test_all_parts_of_a_complete_environment_work() -> None:
    code, found = examined(sys.executable)
    states = {name: one["status"] for name, one in found.items()}
    assert code == 0
    # No part of scripts/setup.
    for name in ("CUDA", "ssh"):
        assert states.pop(name) in ("works", "missing")
    assert set(states.values()) == {"works"}, found
    assert {*ENGINES, "torch.distributed", "BytePS plug-in", "Lightning", "torchft"} <= set(states)
    assert "gloo, mpi" in found["Horovod, PyTorch"]["detail"]
    assert found["core"]["fix"] is None


def test_the_frame_is_one_of_the_wire_format() -> None:
    frame = one_frame()
    assert zlib.crc32(frame) == FRAME_CRC
    expected = (np.arange(4096) * 7919 % 1009 - 504) / 256
    assert abs(decoder.decode(frame, "int8(bucket=512,rounding=nearest)") - expected).max() < 0.01


def test_engines_that_are_not_there_are_no_fault(bare: Bare) -> None:
    code, found = examined(bare.python)
    assert code == 0
    assert found["core"]["status"] == "works", found["core"]
    for name in ENGINES:
        assert found[name]["status"] == "missing"
        assert "pip install" in found[name]["fix"] or "./scripts/setup" in found[name]["fix"]
    assert "Lightning" not in found


def test_packages_that_fail_die_and_hang(bare: Bare) -> None:
    bare.add("torch", "raise ImportError('libtorch.so: undefined symbol: x')")
    bare.add("byteps", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    bare.add("torchft", "import time; time.sleep(1000)")
    code, found = examined(bare.python, "--timeout", "15")
    assert code == 1
    assert found["PyTorch"]["status"] == "broken"
    assert found["PyTorch"]["detail"] == "ImportError: libtorch.so: undefined symbol: x"
    assert "pip install torch" in found["PyTorch"]["fix"]
    assert "SIGILL" in found["BytePS"]["detail"]
    assert found["BytePS"]["fix"].startswith("GRADCOMP_BYTEPS_MARCH=x86-64 ./scripts/setup")
    assert found["torchft"]["detail"].startswith("no answer within 15 s")
    assert found["core"]["status"] == "works", found["core"]
    assert found["Horovod, PyTorch"]["status"] == "missing"


def test_a_pytorch_that_is_too_old_is_named(bare: Bare) -> None:
    bare.add("torch", "__version__ = '2.3.1+cpu'")
    code, found = examined(bare.python)
    assert (code, found["PyTorch"]["status"]) == (1, "broken")
    assert found["PyTorch"]["detail"].startswith("ConfigError: PyTorch 2.3.1+cpu is too old")
    assert "pip install torch" in found["PyTorch"]["fix"]


def test_a_core_that_does_not_load(bare: Bare, tmp_path: Path) -> None:
    without = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "gradcomp", tmp_path / "gradcomp", ignore=without)
    core = tmp_path / "gradcomp" / f"_core{sysconfig.get_config_var('EXT_SUFFIX')}"
    core.write_bytes(b"no library")
    code, found = examined(bare.python, folder=tmp_path)
    assert (code, found["core"]["status"]) == (1, "broken")
    assert core.name in found["core"]["detail"]
    assert "pip install" in found["core"]["fix"]
    done = subprocess.run(
        [bare.python, "-m", "gradcomp", "list"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("gradcomp: the compiled core of gradcomp does not load (")
    assert f"run {found['core']['fix']}" in done.stderr


def test_tools_that_are_not_there_or_fail(bare: Bare, tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    ssh = tmp_path / "tools" / "ssh"
    ssh.write_text("#!/bin/sh\nexit 3\n")
    ssh.chmod(0o755)
    code, found = examined(bare.python, PATH=str(ssh.parent))
    assert code == 1
    assert found["C++ compiler"]["status"] == "missing"
    assert found["C++ compiler"]["fix"].startswith("apt-get install g++")
    assert (found["ssh"]["status"], found["mpirun"]["status"]) == ("broken", "missing")
    assert found["ssh"]["detail"] == f"{ssh} -V: it ended with exit code 3"
    code, found = examined(bare.python, CXX="false")
    assert (code, found["C++ compiler"]["status"]) == (1, "broken")


def test_the_table_ends_with_the_lines_that_help(bare: Bare) -> None:
    done = subprocess.run(
        [bare.python, "-m", "gradcomp", "doctor"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"},
    )
    assert done.returncode == 0
    assert done.stdout.splitlines()[0].split() == ["part", "state", "found"]
    assert "\nBytePS: ./scripts/setup --engines byteps" in done.stdout
    assert done.stdout.endswith("all that is installed works\n")
