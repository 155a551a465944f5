#!/usr/bin/env python3
"""Build a BytePS wheel that installs next to current PyTorch, for CPU tensors.

BytePS' last release (0.2.5.post15, 2021) does not build as it stands: it fetches a
library from a server that is gone, does not compile against current PyTorch, needs CUDA
and NCCL, and its compression path aborts. This script downloads the unchanged source
release, applies the few edits listed in ``EDITS``, and builds a wheel against the
host-only stand-in for CUDA and NCCL in scripts/wheels/byteps_host; see docs/byteps.md. Run it
with the Python of the environment that will use the wheel: torch, setuptools, wheel,
packaging and pybind11 must be installed there, and g++, make and libnuma's headers on the machine.

    python scripts/wheels/byteps_wheel.py --out DIR   build the wheel into DIR
    python scripts/wheels/byteps_wheel.py --print-key print a name for all its dependencies

The wheel is for the CPU of this machine. With GRADCOMP_BYTEPS_MARCH=x86-64-v3, or another level of
"gcc -march", it runs on every CPU of that level.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import platform
import re
import shutil
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

# Run as a file, Python finds modules next to it only: the packages of scripts/ are one level up.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from wheels import common as wheels
from wheels.common import BuildError, Edit, Release

BYTEPS = Release(
    "byteps",
    "0.2.5.post15",
    "9d6a3c5be4c4b5a172739744bb32725c433f9a9f63794e1885e7376ff4eea99f",
)

HOST_HEADERS = Path(__file__).parent / "byteps_host"

EDITS = (
    Edit(
        name="torch-include-paths",
        file="setup.py",
        old="include_paths(cuda=True)",
        new='include_paths("cuda")',
        reason="torch renamed the argument",
    ),
    Edit(
        name="cxx17",
        file="setup.py",
        old='pytorch_compile_flags = ["-std=c++14" if',
        new='pytorch_compile_flags = ["-std=c++17" if',
        reason="torch's headers need C++17",
    ),
    Edit(
        name="strip",
        file="setup.py",
        old="ld_flags = ['-Wl,--version-script=byteps.lds', '-fopenmp']",
        new="ld_flags = ['-Wl,--version-script=byteps.lds', '-fopenmp', '-Wl,--strip-debug']",
        reason="debug information makes the wheel four times larger",
    ),
    Edit(
        name="torch-version-setup",
        file="setup.py",
        old="updated_macros, 'TORCH_VERSION', str(torch_version))",
        new="updated_macros, 'BYTEPS_TORCH_VERSION', str(torch_version))",
        reason="torch now defines TORCH_VERSION itself, as a string",
    ),
    Edit(
        name="torch-version-adapter",
        file="byteps/torch/adapter.cc",
        old="#if TORCH_VERSION ",
        new="#if BYTEPS_TORCH_VERSION ",
        reason="as torch-version-setup",
    ),
    Edit(
        name="torch-version-ops",
        file="byteps/torch/ops.cc",
        old="#if TORCH_VERSION ",
        new="#if BYTEPS_TORCH_VERSION ",
        reason="as torch-version-setup",
    ),
    Edit(
        name="torch-version-events",
        file="byteps/torch/ready_event.cc",
        old="#if TORCH_VERSION ",
        new="#if BYTEPS_TORCH_VERSION ",
        reason="as torch-version-setup",
        count=5,
    ),
    Edit(
        name="memory-header",
        file="byteps/common/communicator.h",
        old="#include <cstdlib>\n",
        new="#include <cstdlib>\n#include <memory>\n",
        reason="std::shared_ptr is used; older standard libraries brought it along",
    ),
    Edit(
        name="no-th",
        file="byteps/torch/ops.h",
        old="#include <TH/TH.h>\n",
        new="",
        reason="torch no longer has this header",
    ),
    Edit(
        name="no-th-declarations",
        file="byteps/torch/ops.h",
        old="#define PUSHPULL_H(torch_Tensor, THTensor)                         \\\n",
        new="#define PUSHPULL_H(torch_Tensor, THTensor)\n"
        "#define PUSHPULL_TH(torch_Tensor, THTensor)                        \\\n",
        reason="nothing uses the functions that this declares with types of TH",
    ),
    Edit(
        name="wait-without-gil",
        file="byteps/torch/ops.cc",
        old='m.def("byteps_torch_wait_and_clear", &WaitAndClear);',
        new='m.def("byteps_torch_wait_and_clear", &WaitAndClear,\n'
        "        pybind11::call_guard<pybind11::gil_scoped_release>());",
        reason=(
            "waiting holds the GIL, and current torch takes it where BytePS' own threads let go of"
            " a tensor: the process hangs"
        ),
    ),
    Edit(
        name="receive-lock",
        file="3rdparty/ps-lite/src/zmq_van.h",
        old="          std::lock_guard<std::mutex> lk(mu_);\n          // the zmq_msg_recv",
        new="          std::unique_lock<std::mutex> lk(mu_);\n          // the zmq_msg_recv",
        reason="see receive-pause",
    ),
    Edit(
        name="receive-pause",
        file="3rdparty/ps-lite/src/zmq_van.h",
        old="          } else if (errno == EAGAIN) { // ZMQ_DONTWAIT\n",
        new="          } else if (errno == EAGAIN) { // ZMQ_DONTWAIT\n"
        "            lk.unlock();\n"
        "            std::this_thread::sleep_for(std::chrono::microseconds(50));\n",
        reason="the receiving thread spins with the lock that sending needs",
    ),
    Edit(
        name="missing-return",
        file="byteps/common/ready_table.cc",
        old="  _ready_table[key] = cnt;\n",
        new="  return _ready_table[key] = cnt;\n",
        reason="a function with a result returns none, which ends the process on every compression",
    ),
    Edit(
        name="shared-memory-name",
        file="byteps/common/shared_memory.cc",
        old="  std::string shm_name(prefix);\n",
        new="  std::string shm_name(prefix);\n"
        '  if (const char* tag = getenv("BYTEPS_SHM_TAG")) shm_name += tag;\n',
        reason="workers of one machine that are processes of their own share one another's memory",
    ),
    Edit(
        name="length-of-push",
        file="byteps/common/global.cc",
        old="    if (len > 0 && pskv.size != len) {\n",
        new="    if (len > 0) {\n",
        reason=(
            "a pull writes the length of its answer here, and a push of full size after a shorter"
            " answer is cut to that length"
        ),
    ),
    Edit(
        name="iterable",
        file="byteps/torch/__init__.py",
        old="isinstance(x, collections.Iterable)",
        new="isinstance(x, collections.abc.Iterable)",
        reason="Python 3.10 moved it",
    ),
    Edit(
        name="iterable-import",
        file="byteps/torch/__init__.py",
        old="import collections\n",
        new="import collections.abc\n",
        reason="as iterable",
    ),
    Edit(
        name="no-distutils",
        file="byteps/torch/ops.py",
        old="from distutils.version import LooseVersion\n",
        new="",
        reason="Python 3.12 dropped it, and it is not used",
    ),
)

# BytePS' hook to override the download of ZeroMQ: its archive is in the source release.
PRE_SETUP = """\
ucx_path = ""


def setup():
    return


def extra_make_option():
    return 'ps WGET=cp ZMQ_URL="../../zeromq-4.1.4.tar.gz ./" '
"""

# Added to it, and no part of the wheel's key: it changes nothing in the wheel.
PARALLEL = """\
from pybind11.setup_helpers import ParallelCompile

ParallelCompile("BYTEPS_COMPILE_JOBS").install()
"""

EXPECTED = (
    "byteps/torch/c_lib.*.so",
    "byteps/server/c_lib.*.so",
    "byteps/common/compressor/compressor_registry.h",  # header that plug-ins include
)


def real_nccl() -> str | None:
    """Folder with the headers and libraries of CUDA and NCCL; None: use the stand-in."""
    return os.environ.get("BYTEPS_NCCL_HOME")


def level() -> str | None:
    """Level of CPUs that the wheel is for; None: this machine's CPU."""
    level = os.environ.get("GRADCOMP_BYTEPS_MARCH")
    if level is not None and not re.fullmatch(r"x86-64(-v[234])?", level):
        raise BuildError(
            f"GRADCOMP_BYTEPS_MARCH is {level!r}; it must be x86-64, x86-64-v2, x86-64-v3 or"
            " x86-64-v4; leave it unset to compile for this machine's CPU"
        )
    return level


def edits() -> tuple[Edit, ...]:
    """All edits of the source release."""
    if (cpus := level()) is None:
        return EDITS
    for_level = Edit(
        name="cpu-level",
        file="setup.py",
        old="'-march=native'",
        new=f"'-march={cpus}'",
        reason="the wheel is for more CPUs than this machine's",
    )
    return (*EDITS, for_level)


def byteps_options() -> dict[str, str]:
    """BytePS' own build options, as environment variables."""
    options = {
        "BYTEPS_WITH_PYTORCH": "1",
        "BYTEPS_WITHOUT_TENSORFLOW": "1",
        "BYTEPS_WITHOUT_MXNET": "1",
        "CI": "true",  # otherwise it runs one job per file at once
    }
    nccl = real_nccl()
    if nccl is not None:
        options["BYTEPS_NCCL_HOME"] = nccl
    return options


def build_environment(base: Mapping[str, str], jobs: int) -> dict[str, str]:
    """The environment for the build: ``base`` with our BytePS options instead of its own."""
    environment = {k: v for k, v in base.items() if not k.startswith("BYTEPS_") and k != "LDFLAGS"}
    environment.update(byteps_options())
    environment["MAKEFLAGS"] = f"-j{jobs}"
    environment["BYTEPS_COMPILE_JOBS"] = str(jobs)
    return environment


def cpu_digest() -> str:
    """A short hash of the CPU's features, as BytePS compiles with -march=native."""
    features = [
        line
        for line in Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
        if line.startswith(("vendor_id", "cpu family", "model", "flags"))
    ]
    return hashlib.sha256("\n".join(features).encode()).hexdigest()[:8]


def wheel_key() -> str:
    """A name that covers everything the wheel depends on; usable as a directory name."""
    parts = {path.name: path.read_text() for path in sorted(HOST_HEADERS.iterdir())}
    digest = wheels.recipe_digest(BYTEPS, edits(), byteps_options() | parts | {"": PRE_SETUP})
    return "-".join(
        (
            BYTEPS.directory,
            f"torch{wheels.torch_version()}",
            sys.implementation.cache_tag,
            platform.machine(),
            level() or cpu_digest(),
            digest,
        )
    )


def make_host_nccl(home: Path) -> None:
    """Lay out the stand-in for CUDA and NCCL (headers only) as an installation of NCCL."""
    shutil.copytree(HOST_HEADERS, home / "include")
    (home / "lib").mkdir()
    wheels.run(["ar", "rcs", str(home / "lib" / "libnccl_static.a")])


def check_wheel(wheel: Path) -> None:
    """Refuse a wheel that lacks a part we use: BytePS skips parts that fail to build."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    for pattern in EXPECTED:
        if not fnmatch.filter(names, pattern):
            raise BuildError(f"{wheel.name} was built, but has no {pattern} in it")


def make(work: Path) -> Path:
    """Build the wheel in the empty directory ``work``."""
    if platform.machine() != "x86_64":
        raise BuildError(
            f"BytePS uses instructions of x86-64, and this machine is {platform.machine()}:"
            " run scripts/setup without the engine byteps"
        )
    source = wheels.unpack(BYTEPS, wheels.download(BYTEPS, work), work)
    wheels.apply_edits(source, edits())
    (source / "pre_setup_local.py").write_text(PARALLEL + PRE_SETUP)
    environment = build_environment(os.environ, wheels.compile_jobs())
    if real_nccl() is None:
        make_host_nccl(work / "nccl")
        environment["BYTEPS_NCCL_HOME"] = str(work / "nccl")
    wheels.pip_wheel(source, work / "wheels", environment)
    (wheel,) = (work / "wheels").glob("byteps-*.whl")
    check_wheel(wheel)
    return wheel


if __name__ == "__main__":
    sys.exit(wheels.main(BYTEPS, wheel_key, make))
