"""Codecs from outside: the examples, installed and built as docs/plugins.md says, and bad ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.plugins import ROOT, build, build_native, install_python, package

HERE = Path(__file__).resolve().parent
CASES = HERE / "plugin_cases.py"
FOLDERS = [str(ROOT), str(HERE.parent), str(HERE.parent / "golden"), str(ROOT / "scripts")]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_python(tmp_path_factory.mktemp("python"))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_native(tmp_path_factory.mktemp("native"))


def python(*command: object, paths: list[Path], libraries: str = "") -> str:
    """Output of a process of Python; it must succeed without a warning."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *map(str, command)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([*FOLDERS, *map(str, paths)]),
            "GRADCOMP_PLUGINS": libraries,
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "case",
    [
        *("round_trips", "error_feedback", "exchanges", "batches", "threads", "schedules"),
        *("summable", "ranks_compare_versions", "listed", "damaged_frames"),
        *("bad_registrations", "bad_results", "nothing_is_looked_up_before_it_is_needed"),
    ],
)
def test_case(installed: Path, library: Path, case: str) -> None:
    python(CASES, case, paths=[installed], libraries=str(library))


def test_c_interface(library: Path) -> None:
    python(CASES, "c_interface", library, paths=[], libraries=str(library))


def test_command_line(installed: Path, library: Path, tmp_path: Path) -> None:
    command = ["-m", "gradcomp", "list", "bf8", "absmax8"]
    output = python(*command, paths=[installed], libraries=str(library))
    for text in (
        "codec bf8: ",
        "codec id 0x8001, version 1",
        "threshold = 0.0, in [0, 1]",
        "(Python)",
        "(shared library)",
    ):
        assert text in output
    # A frame is shown where the plug-in is not installed, too.
    frame = tmp_path / "frame"
    python(CASES, "save_frame", frame, paths=[installed])
    python(CASES, "frames_of_unknown_plugins", frame, paths=[])
    shown = python("-m", "gradcomp", "inspect", frame, paths=[])
    assert "32769 (of a plug-in that is not installed here)" in shown
    assert "32769 (bf8)" in python("-m", "gradcomp", "inspect", frame, paths=[installed])


def test_plugins_get_matrices_where_they_ask_for_them() -> None:
    python(CASES, "matrices", paths=[])


def test_a_plugin_after_rotate_is_refused_for_a_true_reason() -> None:
    python(CASES, "refuses_rotate", paths=[])


def test_a_broken_package_is_named_and_the_others_work(installed: Path, tmp_path: Path) -> None:
    broken = package(tmp_path, "broken", "gone = module_that_is_gone:Codec")
    python(CASES, "broken_package", paths=[broken, installed])


def test_a_broken_library_is_named_and_the_others_work(library: Path) -> None:
    python(CASES, "broken_library", paths=[], libraries=f"/nowhere.so::{library}")


def test_an_entry_point_may_name_a_library(library: Path, tmp_path: Path) -> None:
    module = f"import pathlib\nPATH = pathlib.Path({str(library)!r})\n"
    named = package(tmp_path, "with_library", "absmax8 = with_library:PATH", module)
    python(CASES, "library_from_entry_point", paths=[named])
    # The variable and the entry point may name the same one.
    python(CASES, "library_from_entry_point", paths=[named], libraries=str(library))


def test_hostile_libraries(tmp_path: Path) -> None:
    faults = {"no_export": "NO_EXPORT", "abi": "ABI", "null": "NULL_FUNCTION", "caps": "CAPS"}
    faults |= {"type": "TYPE", "taken": "TAKEN", "liar": "NONE"}
    for name, fault in faults.items():
        build(HERE / "hostile_plugin.c", tmp_path / f"{name}.so", f"-D{fault}")
    python(CASES, "hostile_libraries", tmp_path, paths=[])


def test_the_page_names_the_examples() -> None:
    page = (ROOT / "docs" / "plugins.md").read_text()
    for path in ("examples/plugins/python", "examples/plugins/native/absmax8.c"):
        assert path in page
        assert (ROOT / path).exists()
