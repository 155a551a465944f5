"""What `scripts/test quick` says about an environment that lacks something."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

import missing


def test_versions_are_compared_without_their_local_part() -> None:
    numpy = version("numpy")
    pins = [
        f"numpy=={numpy}",
        f"torch=={version('torch').partition('+')[0]}",
        "numpy==0.1",
        "none==1",
    ]
    assert missing.lacks(pins) == [f"numpy==0.1, instead of {numpy}", "none==1"]


def test_a_core_older_than_its_sources_is_named(tmp_path: Path) -> None:
    for folder in ("csrc", "gradcomp"):
        (tmp_path / folder).mkdir()
    source, core = tmp_path / "csrc" / "a.cpp", tmp_path / "gradcomp" / "_core.cpython-311.so"
    source.touch()
    assert "the compiled core" in missing.core_lacks(tmp_path)[0]
    core.touch()
    os.utime(source, (1, 1))
    assert missing.core_lacks(tmp_path) == []
    os.utime(core, (0, 0))
    assert missing.core_lacks(tmp_path) == ["a core compiled after the last change of csrc/a.cpp"]
