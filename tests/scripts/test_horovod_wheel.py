"""The Horovod wheel builder: edits, cache key, environment. Nothing is compiled here."""

from __future__ import annotations

import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from wheels import common as wheels
from wheels import horovod_wheel as hw

EXTENSION = "horovod/torch/mpi_lib_v2.cpython-311-x86_64-linux-gnu.so"
TENSORFLOW_EXTENSION = "horovod/tensorflow/mpi_lib.cpython-311-x86_64-linux-gnu.so"

TORCH = hw.Recipe(None, "x86_64")
BOTH = hw.Recipe("2.21.0", "x86_64")
CUDA = hw.Recipe(None, "x86_64", cuda=True)
ALL = hw.Recipe("2.21.0", "x86_64", cuda=True)


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
    top = directory / hw.HOROVOD.directory
    for edit in edits:
        path = top / edit.file
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(f"before\n{edit.old}after\n")
    archive = directory / "horovod.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(top, arcname=top.name)
    return archive


class TestEdits:
    def test_names_tell_the_edits_apart(self) -> None:
        names = [edit.name for edit in ALL.edits]
        assert len(set(names)) == len(names)

    @pytest.mark.parametrize("edit", ALL.edits, ids=lambda edit: str(edit.name))
    def test_each_changes_something_for_a_reason(self, edit: Any) -> None:
        assert edit.old != edit.new
        assert edit.old.endswith("\n") == (edit.new + edit.old[-1:]).endswith("\n")
        assert edit.reason

    def test_process_sets_learn_the_interface_before_its_first_use(self, tmp_path: Path) -> None:
        (edit,) = (edit for edit in hw.EDITS if edit.name == "gloo-interface")
        path = tmp_path / edit.file
        path.parent.mkdir(parents=True)
        path.write_text(f"{edit.old}\n  device_attr.iface = gloo_iface_;\n")
        wheels.apply_edit(tmp_path, edit)
        text = path.read_text()
        assert text.index("gloo_iface_ = global_context.gloo_iface_;") < text.index("device_attr")


class TestBuildEnvironment:
    def test_keeps_out_what_would_steer_the_build(self) -> None:
        base = {"HOROVOD_WITHOUT_GLOO": "1", "PATH": "/bin", "MAKEFLAGS": "-j99"}
        environment = hw.build_environment(base, TORCH.options, jobs=3)
        assert "HOROVOD_WITHOUT_GLOO" not in environment
        assert environment["PATH"] == "/bin"
        assert environment["MAKEFLAGS"] == "-j3"
        assert environment["HOROVOD_WITH_GLOO"] == environment["HOROVOD_WITH_MPI"] == "1"

    def test_x86_flags_are_for_x86_only(self) -> None:
        assert "-mavx" in TORCH.options["HOROVOD_BUILD_ARCH_FLAGS"]
        assert "HOROVOD_BUILD_ARCH_FLAGS" not in hw.Recipe(None, "aarch64").options

    def test_tensorflow_is_asked_for_or_kept_out(self) -> None:
        assert TORCH.options["HOROVOD_WITHOUT_TENSORFLOW"] == "1"
        assert "HOROVOD_WITH_TENSORFLOW" not in TORCH.options
        assert BOTH.options["HOROVOD_WITH_TENSORFLOW"] == "1"
        assert "HOROVOD_WITHOUT_TENSORFLOW" not in BOTH.options


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
        with pytest.raises(wheels.BuildError, match="not Open MPI's"):
            hw.open_mpi_version()

    def test_says_what_to_install(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(wheels.BuildError, match="apt-get install libopenmpi-dev"):
            hw.open_mpi_version()


class TestCommandLine:
    @pytest.mark.parametrize(
        ("recipe", "frameworks"),
        [
            (TORCH, "torch2.13.0+cpu"),
            (BOTH, "torch2.13.0+cpu-tensorflow2.21.0"),
            (CUDA, "torch2.13.0"),
        ],
    )
    def test_key_names_all_that_the_wheel_depends_on(
        self,
        recipe: hw.Recipe,
        frameworks: str,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.setattr(wheels, "torch_version", lambda: frameworks.split("-")[0][5:])
        monkeypatch.setattr(hw, "tensorflow_version", lambda: recipe.tensorflow)
        monkeypatch.setattr(hw, "open_mpi_version", lambda: "4.1.4")
        monkeypatch.setattr(hw.platform, "machine", lambda: "x86_64")
        monkeypatch.setattr(sys, "argv", ["horovod_wheel.py", "--print-key"])
        assert wheels.main(hw.HOROVOD, hw.wheel_key, hw.make) == 0
        digest = wheels.recipe_digest(hw.HOROVOD, recipe.edits, recipe.options)
        tag = sys.implementation.cache_tag
        expected = f"horovod0.28.1-{frameworks}-{tag}-openmpi4.1.4-x86_64-{digest}\n"
        assert capsys.readouterr().out == expected

    def test_missing_torch_is_one_clear_line(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def no_torch(name: str) -> str:
            raise wheels.importlib.metadata.PackageNotFoundError(name)

        monkeypatch.setattr(wheels.importlib.metadata, "version", no_torch)
        monkeypatch.setattr(sys, "argv", ["horovod_wheel.py", "--print-key"])
        assert wheels.main(hw.HOROVOD, hw.wheel_key, hw.make) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "scripts/requirements.txt" in captured.err
        assert captured.err.count("\n") == 1


class TestMake:
    @pytest.mark.parametrize(
        ("recipe", "extensions"),
        [
            (TORCH, [EXTENSION]),
            (BOTH, [EXTENSION, TENSORFLOW_EXTENSION]),
            (CUDA, [EXTENSION]),
        ],
    )
    def test_builds_the_edited_source(
        self,
        recipe: hw.Recipe,
        extensions: list[str],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        archive = write_archive(tmp_path, recipe.edits)

        def pip_wheel(source: Path, target: Path, environment: dict[str, str]) -> None:
            for edit in recipe.edits:
                text = (source / edit.file).read_text()
                assert edit.new in text
                assert edit.old in edit.new or edit.old not in text
            assert environment["HOROVOD_WITH_MPI"] == "1"
            target.mkdir()
            write_wheel(target, *extensions)

        monkeypatch.setattr(hw, "tensorflow_version", lambda: recipe.tensorflow)
        version = "2.13.0" if recipe.cuda else "2.13.0+cpu"
        monkeypatch.setattr(wheels, "torch_version", lambda: version)
        monkeypatch.setattr(wheels, "download", lambda release, directory: archive)
        monkeypatch.setattr(wheels, "pip_wheel", pip_wheel)
        assert hw.make(tmp_path / "work").parent == tmp_path / "work" / "wheels"

    def test_stops_at_an_edit_that_does_not_fit(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        archive = write_archive(tmp_path, hw.EDITS[1:])
        monkeypatch.setattr(wheels, "download", lambda release, directory: archive)
        with pytest.raises(wheels.BuildError, match=hw.EDITS[0].name):
            hw.make(tmp_path / "work")

    def test_refuses_a_wheel_without_an_extension(self, tmp_path: Path) -> None:
        wheel = write_wheel(tmp_path, f"root/build/{EXTENSION}", "horovod/__init__.py")
        with pytest.raises(wheels.BuildError, match="no horovod/torch/mpi_lib_v2"):
            hw.check_wheel(wheel, TORCH.extensions)
        wheel = write_wheel(tmp_path, EXTENSION)
        hw.check_wheel(wheel, TORCH.extensions)
        with pytest.raises(wheels.BuildError, match="no horovod/tensorflow/mpi_lib"):
            hw.check_wheel(wheel, BOTH.extensions)


def test_tensorflow_goes_by_either_name(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"tensorflow": "2.21.0"}

    def version(name: str) -> str:
        if name not in versions:
            raise hw.importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(hw.importlib.metadata, "version", version)
    assert hw.tensorflow_version() == "2.21.0"
    versions.clear()
    assert hw.tensorflow_version() is None
