"""The Horovod wheel builder: edits, cache key, environment. Nothing is compiled here."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
import tarfile
import threading
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "horovod_wheel.py"


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("horovod_wheel", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their own module up
    spec.loader.exec_module(module)
    return module


hw = load_script()

EDIT = hw.Edit(name="newer", file="sub/lists.txt", old="std 14\n", new="std 17\n", reason="why")
OPTIONS = {"HOROVOD_WITH_GLOO": "1"}
EXTENSION = "horovod/torch/mpi_lib_v2.cpython-311-x86_64-linux-gnu.so"


def write_source(root: Path, text: str) -> Path:
    path = root / "sub" / "lists.txt"
    path.parent.mkdir()
    path.write_text(text)
    return path


def fake_mpicxx(directory: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = directory / "mpicxx"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(directory))


def write_wheel(directory: Path, *names: str) -> Path:
    path = directory / "horovod-0.28.1-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "")
    return path


def write_archive(directory: Path, edits: tuple[Any, ...]) -> Path:
    """A source archive in which each of ``edits`` fits."""
    top = directory / f"horovod-{hw.HOROVOD_VERSION}"
    for edit in edits:
        path = top / edit.file
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(f"before\n{edit.old}after\n")
    archive = directory / "horovod.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(top, arcname=top.name)
    return archive


class TestApplyEdit:
    def test_replaces_the_text_and_nothing_else(self, tmp_path: Path) -> None:
        path = write_source(tmp_path, "a\nstd 14\nstd 20\n")
        hw.apply_edit(tmp_path, EDIT)
        assert path.read_text() == "a\nstd 17\nstd 20\n"

    @pytest.mark.parametrize(("text", "count"), [("std 11\n", 0), ("std 14\nstd 14\n", 2)])
    def test_refuses_a_text_that_does_not_occur_once(
        self, tmp_path: Path, text: str, count: int
    ) -> None:
        path = write_source(tmp_path, text)
        with pytest.raises(hw.BuildError, match=r"'newer' of sub/lists\.txt") as error:
            hw.apply_edit(tmp_path, EDIT)
        assert f"occurs {count} times" in str(error.value)
        assert repr(EDIT.old) in str(error.value)
        assert path.read_text() == text

    def test_names_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(hw.BuildError, match=r"'newer': there is no file sub/lists\.txt"):
            hw.apply_edit(tmp_path, EDIT)


class TestEdits:
    def test_names_tell_the_edits_apart(self) -> None:
        names = [edit.name for edit in hw.EDITS]
        assert len(set(names)) == len(names)

    @pytest.mark.parametrize("edit", hw.EDITS, ids=lambda edit: str(edit.name))
    def test_each_changes_something_for_a_reason(self, edit: Any) -> None:
        assert edit.old != edit.new
        assert edit.old.endswith("\n") == edit.new.endswith("\n")
        assert edit.reason

    def test_process_sets_learn_the_interface_before_its_first_use(self, tmp_path: Path) -> None:
        (edit,) = (edit for edit in hw.EDITS if edit.name == "gloo-interface")
        path = tmp_path / edit.file
        path.parent.mkdir(parents=True)
        path.write_text(f"{edit.old}\n  device_attr.iface = gloo_iface_;\n")
        hw.apply_edit(tmp_path, edit)
        text = path.read_text()
        assert text.index("gloo_iface_ = global_context.gloo_iface_;") < text.index("device_attr")


class TestRecipeDigest:
    @pytest.mark.parametrize("field", ["file", "old", "new"])
    def test_changes_with_what_an_edit_does(self, field: str) -> None:
        changed = dataclasses.replace(EDIT, **{field: "other"})
        assert hw.recipe_digest([changed], OPTIONS) != hw.recipe_digest([EDIT], OPTIONS)

    def test_changes_with_the_options_and_the_number_of_edits(self) -> None:
        digests = {
            hw.recipe_digest([EDIT], OPTIONS),
            hw.recipe_digest([], OPTIONS),
            hw.recipe_digest([EDIT], {"HOROVOD_WITH_GLOO": "0"}),
        }
        assert len(digests) == 3

    def test_does_not_change_with_the_wording_of_a_reason(self) -> None:
        reworded = dataclasses.replace(EDIT, reason="said better")
        assert hw.recipe_digest([reworded], OPTIONS) == hw.recipe_digest([EDIT], OPTIONS)


class TestBuildEnvironment:
    def test_keeps_out_what_would_steer_the_build(self) -> None:
        base = {"HOROVOD_WITHOUT_GLOO": "1", "PATH": "/bin", "MAKEFLAGS": "-j99"}
        environment = hw.build_environment(base, "x86_64", jobs=3)
        assert "HOROVOD_WITHOUT_GLOO" not in environment
        assert environment["PATH"] == "/bin"
        assert environment["MAKEFLAGS"] == "-j3"
        assert environment["HOROVOD_WITH_GLOO"] == environment["HOROVOD_WITH_MPI"] == "1"

    def test_x86_flags_are_for_x86_only(self) -> None:
        assert "-mavx" in hw.horovod_options("x86_64")["HOROVOD_BUILD_ARCH_FLAGS"]
        assert "HOROVOD_BUILD_ARCH_FLAGS" not in hw.horovod_options("aarch64")

    def test_compiles_at_least_one_file_at_a_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert hw.compile_jobs() >= 1
        monkeypatch.setattr(hw, "BYTES_PER_COMPILE_JOB", 2**60)
        assert hw.compile_jobs() == 1


class TestOpenMpiVersion:
    def test_is_read_from_the_compiler_wrapper(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fake_mpicxx(tmp_path, monkeypatch, "echo 'mpicxx: Open MPI 4.1.4 (Language: C++)'")
        assert hw.open_mpi_version() == "4.1.4"

    @pytest.mark.parametrize("script", ["echo 'mpicxx for MPICH version 4.0.2'", "exit 1"])
    def test_refuses_another_mpi(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
    ) -> None:
        fake_mpicxx(tmp_path, monkeypatch, script)
        with pytest.raises(hw.BuildError, match="not Open MPI's"):
            hw.open_mpi_version()

    def test_says_what_to_install(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(hw.BuildError, match="apt-get install libopenmpi-dev"):
            hw.open_mpi_version()


class TestCommandLine:
    def test_key_names_all_that_the_wheel_depends_on(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(hw, "torch_version", lambda: "2.13.0+cpu")
        monkeypatch.setattr(hw, "open_mpi_version", lambda: "4.1.4")
        monkeypatch.setattr(hw.platform, "machine", lambda: "x86_64")
        monkeypatch.setattr(sys, "argv", ["horovod_wheel.py", "--print-key"])
        assert hw.main() == 0
        digest = hw.recipe_digest(hw.EDITS, hw.horovod_options("x86_64"))
        tag = sys.implementation.cache_tag
        expected = f"horovod0.28.1-torch2.13.0+cpu-{tag}-openmpi4.1.4-x86_64-{digest}\n"
        assert capsys.readouterr().out == expected

    def test_missing_torch_is_one_clear_line(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def no_torch(name: str) -> str:
            raise hw.importlib.metadata.PackageNotFoundError(name)

        monkeypatch.setattr(hw.importlib.metadata, "version", no_torch)
        monkeypatch.setattr(sys, "argv", ["horovod_wheel.py", "--print-key"])
        assert hw.main() == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "scripts/requirements.txt" in captured.err
        assert captured.err.count("\n") == 1


class TestBuild:
    def test_takes_a_wheel_that_is_there(self, tmp_path: Path) -> None:
        wheel = write_wheel(tmp_path, EXTENSION)
        assert hw.build(tmp_path) == wheel

    def test_result_is_complete_and_leftovers_are_removed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        archive = write_archive(tmp_path, hw.EDITS)
        out = tmp_path / "out"
        (out / "build-interrupted").mkdir(parents=True)

        def pip_wheel(command: list[str], environment: dict[str, str]) -> None:
            source = Path(command[-1])
            for edit in hw.EDITS:
                assert edit.new in (source / edit.file).read_text()
            assert environment["HOROVOD_WITH_MPI"] == "1"
            (option,) = (word for word in command if word.startswith("--wheel-dir="))
            target = Path(option.partition("=")[2])
            target.mkdir()
            write_wheel(target, EXTENSION)

        monkeypatch.setattr(hw, "download", lambda directory: archive)
        monkeypatch.setattr(hw, "run", pip_wheel)
        wheel = hw.build(out)
        assert wheel.parent == out
        assert sorted(path.name for path in out.iterdir()) == [wheel.name, "lock"]

    def test_failure_leaves_nothing_that_looks_like_a_wheel(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        archive = write_archive(tmp_path, hw.EDITS[1:])
        monkeypatch.setattr(hw, "download", lambda directory: archive)
        with pytest.raises(hw.BuildError, match=hw.EDITS[0].name):
            hw.build(tmp_path / "out")
        assert [path.name for path in (tmp_path / "out").iterdir()] == ["lock"]

    def test_refuses_a_wheel_without_the_extension(self, tmp_path: Path) -> None:
        wheel = write_wheel(tmp_path, f"root/build/{EXTENSION}", "horovod/__init__.py")
        with pytest.raises(hw.BuildError, match="no horovod/torch/mpi_lib_v2"):
            hw.check_wheel(wheel)

    def test_failed_command_is_named(self, capfd: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(hw.BuildError, match="exit status 3 from: sh -c exit 3"):
            hw.run(["sh", "-c", "exit 3"])
        assert capfd.readouterr().out == "+ sh -c exit 3\n"

    def test_second_build_waits_for_the_first(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        order = []

        def second() -> None:
            with hw.exclusive(tmp_path):
                order.append("second")

        with hw.exclusive(tmp_path):
            thread = threading.Thread(target=second)
            thread.start()
            thread.join(timeout=0.2)
            order.append("first")
        thread.join(timeout=10)
        assert order == ["first", "second"]
        assert "waiting for another build" in capfd.readouterr().out
