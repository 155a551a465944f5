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

import argparse
import contextlib
import fcntl
import fnmatch
import hashlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

HOROVOD_VERSION = "0.28.1"
HOROVOD_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"

PIP = (sys.executable, "-m", "pip")

# One Horovod source file that includes torch's headers takes about this much
# memory to compile; more parallel jobs than fit would be killed half-way.
BYTES_PER_COMPILE_JOB = 3 * 2**29


class BuildError(Exception):
    """The wheel cannot be built; the message says why and what to do."""


@dataclass(frozen=True)
class Edit:
    """Replace ``old`` by ``new`` in ``file``, where ``old`` must occur exactly once."""

    name: str
    file: str
    old: str
    new: str
    reason: str


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


def apply_edit(source: Path, edit: Edit) -> None:
    """Apply ``edit`` to the tree at ``source``.

    Raises ``BuildError`` and changes nothing unless the old text occurs exactly
    once: an edit that no longer fits must stop the build, not be skipped.
    """
    path = source / edit.file
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BuildError(f"edit '{edit.name}': there is no file {edit.file} in {source}") from None
    count = text.count(edit.old)
    if count != 1:
        raise BuildError(
            f"edit '{edit.name}' of {edit.file}: the text {edit.old!r} must occur exactly once,"
            f" but occurs {count} times; is this Horovod {HOROVOD_VERSION}, unchanged?"
        )
    path.write_text(text.replace(edit.old, edit.new), encoding="utf-8")


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


def recipe_digest(edits: Iterable[Edit], options: Mapping[str, str]) -> str:
    """A short hash of everything in this script that decides what the wheel contains."""
    digest = hashlib.sha256(HOROVOD_SHA256.encode())
    for edit in edits:
        digest.update(repr((edit.file, edit.old, edit.new)).encode())
    digest.update(repr(sorted(options.items())).encode())
    return digest.hexdigest()[:12]


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


def torch_version() -> str:
    """The version of the installed torch, with its local part ('2.13.0+cpu')."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        raise BuildError(
            f"torch is not installed for {sys.executable}: install scripts/requirements.txt first"
        ) from None


def wheel_key() -> str:
    """Name everything the wheel depends on; usable as a directory name."""
    machine = platform.machine()
    return "-".join(
        (
            f"horovod{HOROVOD_VERSION}",
            f"torch{torch_version()}",
            sys.implementation.cache_tag,
            f"openmpi{open_mpi_version()}",
            machine,
            recipe_digest(EDITS, horovod_options(machine)),
        )
    )


def compile_jobs() -> int:
    """How many files to compile at once: one a core, as far as memory allows."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(len(os.sched_getaffinity(0)), memory // BYTES_PER_COMPILE_JOB))


def run(command: list[str], environment: Mapping[str, str] | None = None) -> None:
    """Run ``command``, its output to ours, and raise ``BuildError`` when it fails."""
    print("+", " ".join(command), flush=True)
    status = subprocess.run(command, env=environment, check=False).returncode
    if status != 0:
        raise BuildError(f"exit status {status} from: {' '.join(command)}")


def download(directory: Path) -> Path:
    """Fetch Horovod's source release into ``directory``; pip checks its hash."""
    requirement = directory / "requirement.txt"
    requirement.write_text(f"horovod=={HOROVOD_VERSION} --hash=sha256:{HOROVOD_SHA256}\n")
    run(
        [
            *PIP,
            "download",
            "--require-hashes",
            "--no-deps",
            "--no-binary=:all:",
            "--no-build-isolation",
            f"--dest={directory}",
            f"--requirement={requirement}",
        ]
    )
    return directory / f"horovod-{HOROVOD_VERSION}.tar.gz"


def unpack(archive: Path, directory: Path) -> Path:
    """Unpack the source release and return its top directory."""
    with tarfile.open(archive) as tar:
        # Debian 12's Python 3.11.2 has no filters; pip has checked the archive's hash.
        if hasattr(tarfile, "data_filter"):
            tar.extraction_filter = tarfile.data_filter
        tar.extractall(directory)
    return directory / f"horovod-{HOROVOD_VERSION}"


def check_wheel(wheel: Path) -> None:
    """Refuse a wheel without the torch extension: installing it would only warn."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    if not fnmatch.filter(names, "horovod/torch/mpi_lib_v2.*.so"):
        raise BuildError(f"{wheel.name} was built, but has no horovod/torch/mpi_lib_v2.*.so in it")


@contextlib.contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Hold ``directory`` against another build; the kernel releases it if we die."""
    with (directory / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another build in {directory}", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build(out: Path) -> Path:
    """Return the wheel in ``out``, building it there first if there is none.

    The wheel appears under its final name only when complete, so an interrupted
    build leaves nothing that could be taken for one.
    """
    out.mkdir(parents=True, exist_ok=True)
    with exclusive(out):
        for finished in out.glob("horovod-*.whl"):
            return finished
        for leftover in out.glob("build-*"):
            shutil.rmtree(leftover)
        with tempfile.TemporaryDirectory(prefix="build-", dir=out) as name:
            work = Path(name)
            wheels = work / "wheels"
            source = unpack(download(work), work)
            for edit in EDITS:
                print(f"edit {edit.name}: {edit.file} ({edit.reason})", flush=True)
                apply_edit(source, edit)
            run(
                [
                    *PIP,
                    "wheel",
                    "--verbose",
                    "--no-deps",
                    "--no-build-isolation",
                    "--no-cache-dir",
                    f"--wheel-dir={wheels}",
                    str(source),
                ],
                build_environment(os.environ, platform.machine(), compile_jobs()),
            )
            (wheel,) = wheels.glob("horovod-*.whl")
            check_wheel(wheel)
            return wheel.rename(out / wheel.name)


def main() -> int:
    """Parse the command line, do as it says, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=f"Build a wheel of Horovod {HOROVOD_VERSION} for the installed torch."
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="build the wheel into DIR, unless one is there already",
    )
    what.add_argument(
        "--print-key",
        action="store_true",
        help="print a name for all that the wheel depends on, and build nothing",
    )
    arguments = parser.parse_args()
    try:
        print(wheel_key() if arguments.print_key else build(arguments.out))
    except BuildError as error:
        print(f"horovod_wheel.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
