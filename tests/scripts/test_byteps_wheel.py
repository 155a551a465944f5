"""The BytePS wheel builder: edits, cache key, stand-in for CUDA. BytePS is not compiled here."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from wheels import byteps_wheel as bw
from wheels import common as wheels

PARTS = (
    "byteps/torch/c_lib.cpython-311-x86_64-linux-gnu.so",
    "byteps/server/c_lib.cpython-311-x86_64-linux-gnu.so",
    "byteps/common/compressor/compressor_registry.h",
)


def write_wheel(directory: Path, names: tuple[str, ...]) -> Path:
    path = directory / "byteps-0.2.5.post15-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "")
    return path


class TestEdits:
    def test_names_tell_the_edits_apart(self) -> None:
        names = [edit.name for edit in bw.EDITS]
        assert len(set(names)) == len(names)

    @pytest.mark.parametrize("edit", bw.EDITS, ids=lambda edit: str(edit.name))
    def test_each_changes_something_for_a_reason(self, edit: wheels.Edit) -> None:
        assert edit.old != edit.new
        assert edit.reason
        assert edit.new == "" or edit.old.endswith("\n") == edit.new.endswith("\n")


class TestEnvironment:
    def test_keeps_out_what_would_steer_the_build(self) -> None:
        base = {"BYTEPS_WITH_UCX": "1", "PATH": "/bin", "MAKEFLAGS": "-j99", "LDFLAGS": "-s"}
        environment = bw.build_environment(base, jobs=3)
        assert "BYTEPS_WITH_UCX" not in environment
        assert "LDFLAGS" not in environment
        assert environment["PATH"] == "/bin"
        assert environment["MAKEFLAGS"] == "-j3"
        assert environment["BYTEPS_COMPILE_JOBS"] == "3"
        assert environment["BYTEPS_WITH_PYTORCH"] == "1"

    def test_takes_a_real_nccl_from_the_user(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("BYTEPS_NCCL_HOME", raising=False)
        monkeypatch.setattr(wheels, "torch_version", lambda: "2.13.0+cpu")
        without = bw.wheel_key()
        monkeypatch.setenv("BYTEPS_NCCL_HOME", "/opt/nccl")
        assert bw.build_environment({}, jobs=1)["BYTEPS_NCCL_HOME"] == "/opt/nccl"
        assert bw.wheel_key() != without


class TestKey:
    def test_names_what_the_wheel_depends_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(wheels, "torch_version", lambda: "2.13.0+cpu")
        key = bw.wheel_key()
        tag = sys.implementation.cache_tag
        assert key.startswith(f"byteps-0.2.5.post15-torch2.13.0+cpu-{tag}-x86_64-")
        assert bw.cpu_digest() in key

    def test_changes_with_the_stand_in(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(wheels, "torch_version", lambda: "2.13.0+cpu")
        before = bw.wheel_key()
        (tmp_path / "nccl.h").write_text("other")
        monkeypatch.setattr(bw, "HOST_HEADERS", tmp_path)
        assert bw.wheel_key() != before

    def test_is_that_of_a_level_of_cpus(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(wheels, "torch_version", lambda: "2.13.0+cpu")
        monkeypatch.setenv("GRADCOMP_BYTEPS_MARCH", "x86-64-v3")
        key = bw.wheel_key()
        assert "-x86-64-v3-" in key
        assert bw.cpu_digest() not in key
        *others, last = bw.edits()
        assert tuple(others) == bw.EDITS
        assert last.new == "'-march=x86-64-v3'"
        monkeypatch.setenv("GRADCOMP_BYTEPS_MARCH", "native")
        with pytest.raises(wheels.BuildError, match="'native'; it must be x86-64, x86-64-v2"):
            bw.wheel_key()


class TestWheel:
    def test_is_refused_without_what_we_use(self, tmp_path: Path) -> None:
        bw.check_wheel(write_wheel(tmp_path, PARTS))
        for missing in PARTS:
            wheel = write_wheel(tmp_path, tuple(part for part in PARTS if part != missing))
            with pytest.raises(wheels.BuildError, match=Path(missing).name.split(".")[0]):
                bw.check_wheel(wheel)

    def test_is_not_built_on_another_machine(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(bw.platform, "machine", lambda: "aarch64")
        with pytest.raises(wheels.BuildError, match="x86-64, and this machine is aarch64"):
            bw.make(tmp_path)


USE_OF_STAND_IN = """
#include <nccl.h>
int main() {
  char from[3] = "ab", to[3] = "";
  void* device = nullptr;
  cudaStream_t stream;
  ncclComm_t comm;
  ncclUniqueId id;
  return !(cudaHostGetDevicePointer(&device, from, 0) == cudaSuccess && device == from &&
           cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0) == cudaSuccess &&
           cudaMemcpyAsync(to, from, 3, cudaMemcpyDeviceToHost, stream) == cudaSuccess &&
           std::strcmp(to, "ab") == 0 && ncclGetUniqueId(&id) == ncclSuccess &&
           ncclCommInitRank(&comm, 1, id, 0) == ncclSuccess &&
           ncclCommInitRank(&comm, 2, id, 0) != ncclSuccess &&
           ncclReduce(from, to, 2, ncclInt8, ncclSum, 0, comm, stream) != ncclSuccess);
}
"""


def test_stand_in_copies_and_refuses_collectives(tmp_path: Path) -> None:
    bw.make_host_nccl(tmp_path / "nccl")
    source, program = tmp_path / "use.cpp", tmp_path / "use"
    source.write_text(USE_OF_STAND_IN)
    command = ["g++", "-std=c++11", "-Wall", "-Wextra", "-Werror", str(source), "-o", str(program)]
    command += [f"-I{tmp_path}/nccl/include", f"-L{tmp_path}/nccl/lib", "-lnccl_static"]
    subprocess.run(command, check=True)
    subprocess.run([str(program)], check=True)
