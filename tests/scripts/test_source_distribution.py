"""The source distribution has all that a build needs, and packages built from it have the C header."""

from __future__ import annotations

import email
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gradcomp.capi import core_library
from pages.site_pages import ROOT, tracked

FOLDERS = ("csrc", "gradcomp*", "*_compressors", "tests", "scripts", "benchmarks", "configs")
SOURCES = [path for path in tracked(*FOLDERS) if path.exists()]
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


def test_an_index_gets_no_links_into_the_repository(unpacked: Path) -> None:
    message = email.message_from_string((unpacked / "PKG-INFO").read_text())
    page = message.get_payload()
    assert page.startswith("# gradcomp\n")
    assert "39 methods, from float16" in page
    links = re.findall(r"\]\(([^)]*)\)", page)
    assert [link for link in links if not link.startswith("https://")] == []


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_other_systems_are_refused(system: str) -> None:
    imports = "import runpy, sys, setuptools, pybind11.setup_helpers"  # they import parts of the system's own Python
    program = f"{imports}; sys.platform = {system!r}; runpy.run_path('setup.py')"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"gradcomp is for Linux on x86-64 or 64-bit ARM, and this is {system}"
    )


def test_a_free_threaded_python_is_refused() -> None:
    """Nothing says that the bindings are safe without the lock; the variable is that of such a Python."""
    program = (
        "import runpy, sysconfig, setuptools, pybind11.setup_helpers; "
        "sysconfig.get_config_vars()['Py_GIL_DISABLED'] = 1; runpy.run_path('setup.py')"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "without a global interpreter lock (free-threaded" in done.stderr
    assert "use the Python with the lock" in done.stderr


def test_a_python_without_headers_is_refused(tmp_path: Path) -> None:
    """As Debian's python3 is without python3-dev."""
    program = (
        "import runpy, sys, setuptools, pybind11.setup_helpers; from distutils import sysconfig; "
        f"sysconfig.get_python_inc = lambda plat_specific=False: {str(tmp_path)!r}; "
        "sys.argv = ['setup.py', 'build_ext']; runpy.run_path('setup.py', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "there is no Python.h in " in done.stderr
    assert f"{tmp_path}: install them" in done.stderr
    assert "apt-get install python3-dev" in done.stderr


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
