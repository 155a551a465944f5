#!/usr/bin/env python3
"""Build a Horovod wheel that installs next to current PyTorch, and TensorFlow where it is there.

Horovod's last release (0.28.1, 2023) does not compile against current PyTorch
and TensorFlow, and its Gloo back end fails on several hosts. This script downloads
the unchanged source release, applies the few edits listed in ``EDITS``
(``CUDA_EDITS``, ``TENSORFLOW_EDITS``) and builds a wheel with the Gloo and MPI controllers. Run it
with the Python of the environment that will use the wheel: torch, setuptools, wheel
and packaging must be installed there, and CMake, make, g++ and Open MPI on the
machine. The wheel supports TensorFlow if that is installed there too.

    python scripts/wheels/horovod_wheel.py --out DIR   build the wheel into DIR
    python scripts/wheels/horovod_wheel.py --print-key print a name for all its dependencies
"""

from __future__ import annotations

import contextlib
import fnmatch
import importlib.metadata
import os
import platform
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

# Run as a file, Python finds modules next to it only: the packages of scripts/ are one level up.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from wheels import common as wheels
from wheels.common import BuildError, Edit, Release

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
        name="string-header",
        file="horovod/common/group_table.h",
        old="#include <queue>\n",
        new="#include <cstdint>\n#include <queue>\n#include <string>\n",
        reason="GCC 13's standard library no longer includes these headers in others",
    ),
    Edit(
        name="stdexcept-header",
        file="horovod/common/common.h",
        old="#include <memory>\n",
        new="#include <memory>\n#include <stdexcept>\n",
        reason="as string-header",
    ),
    Edit(
        name="no-gil",
        file="horovod/torch/mpi_ops_v2.cc",
        old="PYBIND11_MODULE(mpi_lib_v2, m) {\n",
        new=(
            "struct WithoutGil {\n"
            "  py::module_& module;\n"
            "  template <typename Function> void def(const char* name, Function function) {\n"
            "    module.def(name, function, py::call_guard<py::gil_scoped_release>());\n"
            "  }\n"
            "};\n\n"
            "PYBIND11_MODULE(mpi_lib_v2, module) {\n"
            "  WithoutGil m{module};\n"
        ),
        reason=(
            "a call waits for a lock that Horovod's thread holds while it releases tensors, for"
            " which current torch needs the GIL: both would wait for ever"
        ),
    ),
    Edit(
        name="gil-of-waits",
        file="horovod/torch/mpi_ops_v2.cc",
        old='  m.def("horovod_torch_wait_and_clear",',
        new='  module.def("horovod_torch_wait_and_clear",',
        reason="as no-gil: this function releases the GIL itself",
    ),
    Edit(
        name="release-build",
        file="setup.py",
        old="else 'RelWithDebInfo'\n",
        new="else 'Release'\n",
        reason="debug information makes the wheel thirty times larger",
    ),
)
CUDA_EDITS = (
    Edit(
        name="usable-cuda",
        file="cmake/Modules/FindPytorch.cmake",
        old='string(TOUPPER "${Pytorch_CUDA}" Pytorch_CUDA)\n',
        new=(
            'string(TOUPPER "${Pytorch_CUDA}" Pytorch_CUDA)\n'
            "if(Pytorch_CUDA)\n"
            "    find_package(CUDAToolkit QUIET)\n"
            "    set(Pytorch_CUDA ${CUDAToolkit_FOUND})\n"
            "endif()\n"
        ),
        reason="a compiler of CUDA on PATH without headers and libraries next to it ends the build",
    ),
)
"""For a torch that is built for CUDA."""

_KERAS_REASON = (
    "the package keras is always Keras 3, also where tensorflow.keras, which these files use"
    " otherwise, is the Keras 2 of tf-keras"
)
TENSORFLOW_EDITS = (
    Edit(
        name="no-xla",
        file="horovod/tensorflow/CMakeLists.txt",
        old=('list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")\n'),
        new="",
        reason=(
            "the XLA headers that it includes are elsewhere in current TensorFlow, and it does"
            " nothing without a GPU"
        ),
    ),
    Edit(
        name="one-gloo",
        file="CMakeLists.txt",
        old="if(HAVE_GLOO AND (DEFINED Tensorflow_CXX17 AND Tensorflow_CXX17))\n",
        new="if(FALSE)\n",
        reason="it compiles Gloo again for C++17, which cxx17-core makes of the first one too",
    ),
    Edit(
        name="one-gloo-tensorflow",
        file="horovod/tensorflow/CMakeLists.txt",
        old="list(APPEND TF_LINKER_LIBS compatible17_gloo)\n",
        new="list(APPEND TF_LINKER_LIBS gloo)\n",
        reason="as one-gloo",
    ),
    Edit(
        name="keras-of-tensorflow",
        file="horovod/tensorflow/keras/__init__.py",
        old="    from keras import backend as K\n",
        new="    K = keras.backend\n",
        reason=_KERAS_REASON,
    ),
    Edit(
        name="keras-of-tensorflow-callbacks",
        file="horovod/tensorflow/keras/callbacks.py",
        old="    from keras import backend as K\n",
        new="    K = keras.backend\n",
        reason=_KERAS_REASON,
    ),
)


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the build, except the versions of torch, Python and Open MPI.

    Attributes:
        tensorflow: the version of TensorFlow to support, if any.
        machine: as ``platform.machine()`` names it.
        cuda: whether torch may be built for CUDA.
    """

    tensorflow: str | None
    machine: str
    cuda: bool = False

    @property
    def edits(self) -> tuple[Edit, ...]:
        """The edits, in the order in which they are applied."""
        cuda = CUDA_EDITS if self.cuda else ()
        tensorflow = () if self.tensorflow is None else TENSORFLOW_EDITS
        return (*EDITS, *cuda, *tensorflow)

    @property
    def extensions(self) -> tuple[str, ...]:
        """Patterns of files that the wheel must contain."""
        torch = "horovod/torch/mpi_lib_v2.*.so"
        return (torch,) if self.tensorflow is None else (torch, "horovod/tensorflow/mpi_lib.*.so")

    @property
    def options(self) -> dict[str, str]:
        """Horovod's own build options, as environment variables."""
        return horovod_options(self.machine, tensorflow=self.tensorflow is not None)

    @classmethod
    def of_environment(cls) -> Recipe:
        """The recipe for this Python's packages and this machine."""
        cuda = not wheels.torch_version().endswith("+cpu")
        return cls(tensorflow_version(), platform.machine(), cuda)


def tensorflow_version() -> str | None:
    """The version of the installed TensorFlow; None where there is none."""
    for name in ("tensorflow-cpu", "tensorflow"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return None


def horovod_options(machine: str, *, tensorflow: bool) -> dict[str, str]:
    """Horovod's own build options, as environment variables."""
    options = {
        "HOROVOD_WITH_PYTORCH": "1",
        f"HOROVOD_{'WITH' if tensorflow else 'WITHOUT'}_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITH_MPI": "1",
    }
    if machine == "x86_64":
        # Fixed, because Horovod would otherwise detect the features of this machine, and a
        # cached wheel might not run on another one.
        options["HOROVOD_BUILD_ARCH_FLAGS"] = "-mf16c -mavx -mfma"
    return options


def build_environment(
    base: Mapping[str, str], options: Mapping[str, str], jobs: int
) -> dict[str, str]:
    """The environment for the build: ``base`` with ``options`` instead of its Horovod options."""
    environment = {k: v for k, v in base.items() if not k.startswith("HOROVOD_")}
    environment.update(options)
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
    """A name that covers everything the wheel depends on; usable as a directory name."""
    recipe = Recipe.of_environment()
    return "-".join(
        (
            f"horovod{HOROVOD.version}",
            f"torch{wheels.torch_version()}",
            *([] if recipe.tensorflow is None else [f"tensorflow{recipe.tensorflow}"]),
            sys.implementation.cache_tag,
            f"openmpi{open_mpi_version()}",
            recipe.machine,
            wheels.recipe_digest(HOROVOD, recipe.edits, recipe.options),
        )
    )


def check_wheel(wheel: Path, extensions: Iterable[str]) -> None:
    """Refuse a wheel that lacks an extension: installing it would only warn."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    for extension in extensions:
        if not fnmatch.filter(names, extension):
            raise BuildError(f"{wheel.name} was built, but has no {extension} in it")


def make(work: Path) -> Path:
    """Build the wheel in the empty directory ``work``."""
    recipe = Recipe.of_environment()
    source = wheels.unpack(HOROVOD, wheels.download(HOROVOD, work), work)
    wheels.apply_edits(source, recipe.edits)
    environment = build_environment(os.environ, recipe.options, wheels.compile_jobs())
    wheels.pip_wheel(source, work / "wheels", environment)
    (wheel,) = (work / "wheels").glob("horovod-*.whl")
    check_wheel(wheel, recipe.extensions)
    return wheel


if __name__ == "__main__":
    sys.exit(wheels.main(HOROVOD, wheel_key, make))
