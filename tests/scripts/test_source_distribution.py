"""The source distribution has all that a build needs, and packages built from it have the C header."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gradcomp.capi import core_library
from pages.site_pages import ROOT, tracked

SOURCES = [path for path in tracked("csrc", "gradcomp*", "*_compressors") if path.exists()]
ROOT_FILES = ("LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py")


def setup(folder: Path, *command: str) -> None:
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", *command], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, made in a copy of the repository."""
    copy = tmp_path_factory.mktemp("copy")
    for path in (*SOURCES, *map(Path, ROOT_FILES)):
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, copy / path)
    setup(copy, "sdist")
    (archive,) = (copy / "dist").glob("gradcomp-*.tar.gz")
    (copy / "unpacked").mkdir()
    subprocess.run(["tar", "-xzf", archive, "-C", copy / "unpacked"], check=True)
    (folder,) = (copy / "unpacked").iterdir()
    return folder


def test_every_source_is_in_it(unpacked: Path) -> None:
    missing = [
        str(path)
        for path in SOURCES
        if not (unpacked / path).is_file()
        or (unpacked / path).read_bytes() != (ROOT / path).read_bytes()
    ]
    assert missing == []
    assert len(SOURCES) > 200


def test_the_packages_have_the_header(unpacked: Path, tmp_path: Path) -> None:
    setup(unpacked, "build_py", "--build-lib", str(tmp_path))
    shutil.copy(core_library(), tmp_path / "gradcomp")
    program = "from gradcomp.capi import include_folder; print(include_folder())"
    found = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert found.stdout.strip() == str(tmp_path / "gradcomp" / "include"), found.stderr
    header = tmp_path / "gradcomp" / "include" / "gradcomp" / "gradcomp.h"
    assert header.read_bytes() == (ROOT / "csrc/include/gradcomp/gradcomp.h").read_bytes()
