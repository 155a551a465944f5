"""Changed copies of the kernels and of copies to the host, which tests must refuse."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu.processes import ROOT

Mutate = Callable[[str, str], Path]


@pytest.fixture
def mutant(tmp_path: Path) -> Mutate:
    """Copies gradcomp_torch, with one text of its code for GPUs replaced, and returns the copy's parent."""

    def make(before: str, after: str) -> Path:
        copy = tmp_path / "gradcomp_torch"
        shutil.copytree(ROOT / "gradcomp_torch", copy, ignore=shutil.ignore_patterns("__pycache__"))
        code = [
            *(copy / "gpu").rglob("*.py"),
            copy / "staging.py",
            *(copy / name for name in ("devices.py", "float_copies.py", "host_copies.py")),
        ]
        files = [path for path in code if before in path.read_text()]
        assert files, f"no file has {before!r}"
        for path in files:
            path.write_text(path.read_text().replace(before, after))
        return tmp_path

    return make
