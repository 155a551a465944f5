#!/usr/bin/env python3
"""Build a Horovod wheel that installs next to current PyTorch.

Horovod's last release (0.28.1, 2023) does not compile against current PyTorch,
and its Gloo back end fails on several hosts. This script downloads the
unchanged source release, applies the few edits listed in ``EDITS`` and builds
a wheel with the Gloo and MPI controllers. Run it with the Python of the
environment that will use the wheel: torch, setuptools, wheel and packaging
must be installed there, and CMake, make, g++ and Open MPI on the machine.

    python scripts/horovod_wheel.py --out DIR   build the wheel into DIR
    python scripts/horovod_wheel.py --print-key print what the wheel depends on
"""

from __future__ import annotations

import fnmatch
import os
import platform
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import wheels
from wheels import BuildError, Edit, Release

HOROVOD = Release(
    "horovod",
    "0.28.1",
    "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0",
)
EDITS = (
    Edit(
        name="cxx17-core",
        file="CMakeLists.txt",
        old="set(CMAKE_CXX_STANDARD 14)\n",
        new="set(CMAKE_CXX_STANDARD 17)\n",
        reason="torch's headers need C++17, and no CMake variable overrides this line",
    ),
    Edit(
        name="cxx17-torch",
        file="horovod/torch/CMakeLists.txt",
        old="set(CMAKE_CXX_STANDARD 14)\n",
        new="set(CMAKE_CXX_STANDARD 17)\n",
        reason="as cxx17-core, for the torch extension",
    ),
    Edit(
        name="gloo-interface",
        file="horovod/common/gloo/gloo_context.cc",
        old="  assert(global_context.IsEnabled());\n",
        new=(
            "  assert(global_context.IsEnabled());\n  gloo_iface_ = global_context.gloo_iface_;\n"
        ),
        reason=(
            "a process set's Gloo context never learns the interface asked for, binds to the"
            " address of the host name instead, and fails when the ranks are on several hosts"
        ),
    ),
    Edit(
        name="output-directory",
        file="cmake/Utilities.cmake",
        old=(
            'string(REGEX REPLACE "${PROJECT_SOURCE_DIR}(/)?" "" SUB_FOLDER'
            ' "${CMAKE_CURRENT_SOURCE_DIR}")\n'
        ),
        new=(
            'file(RELATIVE_PATH SUB_FOLDER "${PROJECT_SOURCE_DIR}" "${CMAKE_CURRENT_SOURCE_DIR}")\n'
        ),
        reason=(
            "a build directory with a '+' in its name is no regular expression for itself,"
            " and the library then lands in the wrong place of the wheel"
        ),
    ),
    Edit(
        name="release-build",
        file="setup.py",
        old="else 'RelWithDebInfo'\n",
        new="else 'Release'\n",
        reason="debug information makes the wheel thirty times larger",
    ),
)


def horovod_options(machine: str) -> dict[str, str]:
    """Horovod's own build options, as environment variables."""
    options = {
        "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITH_MPI": "1",
    }
    if machine == "x86_64":
        # Said outright, because Horovod else asks what this very machine can do
        # and a cached wheel might then not run on the next one.
        options["HOROVOD_BUILD_ARCH_FLAGS"] = "-mf16c -mavx -mfma"
    return options


def build_environment(base: Mapping[str, str], machine: str, jobs: int) -> dict[str, str]:
    """The environment for the build: ``base`` with nothing in it that steers Horovod's build."""
    environment = {k: v for k, v in base.items() if not k.startswith("HOROVOD_")}
    environment.update(horovod_options(machine))
    environment["MAKEFLAGS"] = f"-j{jobs}"
    # CMake 4 refuses the bundled Gloo, which asks for a policy version below 3.5.
    environment["CMAKE_POLICY_VERSION_MINIMUM"] = "3.5"
    return environment


def open_mpi_version() -> str:
    """The version of the Open MPI that ``mpicxx`` compiles for."""
    try:
        found = subprocess.run(
            ["mpicxx", "-showme:version"], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise BuildError(
            "mpicxx is not on PATH: install Open MPI's compiler wrappers"
            " (on Debian: apt-get install libopenmpi-dev openmpi-bin)"
        ) from None
    # "mpicxx: Open MPI 4.1.4 (Language: C++)"
    words = found.stdout.split()
    if found.returncode != 0 or words[1:3] != ["Open", "MPI"] or len(words) < 4:
        said = (found.stdout + found.stderr).strip()
        raise BuildError(
            f"mpicxx is not Open MPI's: 'mpicxx -showme:version' said {said!r};"
            " put Open MPI's bin directory first on PATH"
        )
    return words[3]


def wheel_key() -> str:
    """Name everything the wheel depends on; usable as a directory name."""
    machine = platform.machine()
    return "-".join(
        (
            f"horovod{HOROVOD.version}",
            f"torch{wheels.torch_version()}",
            sys.implementation.cache_tag,
            f"openmpi{open_mpi_version()}",
            machine,
            wheels.recipe_digest(HOROVOD, EDITS, horovod_options(machine)),
        )
    )


def check_wheel(wheel: Path) -> None:
    """Refuse a wheel without the torch extension: installing it would only warn."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    if not fnmatch.filter(names, "horovod/torch/mpi_lib_v2.*.so"):
        raise BuildError(f"{wheel.name} was built, but has no horovod/torch/mpi_lib_v2.*.so in it")


def make(work: Path) -> Path:
    """Build the wheel in the empty directory ``work``."""
    source = wheels.unpack(HOROVOD, wheels.download(HOROVOD, work), work)
    wheels.apply_edits(source, EDITS)
    environment = build_environment(os.environ, platform.machine(), wheels.compile_jobs())
    wheels.pip_wheel(source, work / "wheels", environment)
    (wheel,) = (work / "wheels").glob("horovod-*.whl")
    check_wheel(wheel)
    return wheel


if __name__ == "__main__":
    sys.exit(wheels.main(HOROVOD, wheel_key, make))
