"""Compile the BytePS plug-in library: ``python -m byteps_compressors.build``.

The library is compiled on the machine that uses it, against the headers of the installed BytePS and
gradcomp.h, and cached in ``GRADCOMP_CACHE`` (default: ``~/.cache/gradcomp``). It needs a C++17
compiler and Python's headers.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gradcomp import capi
from gradcomp.errors import GradcompError

__all__ = ["byteps_folder", "library", "plugin"]

SOURCES = sorted((Path(__file__).parent / "native").glob("*.cpp"))

# BYTEPS_BUILDING_SERVER leaves CUDA out of BytePS' headers: servers have none, and workers and
# servers load the same library.
FLAGS = (
    *("-std=c++17", "-O2", "-ffp-contract=off", "-fvisibility=hidden", "-fPIC", "-shared"),
    *("-Wall", "-Wextra", "-DBYTEPS_BUILDING_SERVER"),
)


def byteps_folder() -> Path:
    """Return the folder of the installed package byteps, without importing it.

    Raises:
        GradcompError: BytePS is not installed.
    """
    found = importlib.util.find_spec("byteps")
    if found is None or found.origin is None:
        raise GradcompError(
            f"BytePS is not installed for {sys.executable}: run scripts/setup --engines byteps"
        )
    return Path(found.origin).parent


def plugin() -> Path:
    """Return the plug-in library for the installed BytePS, compiled if necessary; see `library`."""
    return library("plugin", SOURCES)


def library(name: str, sources: Sequence[Path]) -> Path:
    """Return a library built against the installed BytePS, compiled unless it is in the cache.

    Args:
        name: the file name is ``libNAME.so``.
        sources: C++ files that include gradcomp.h and BytePS' headers; not empty.

    Raises:
        GradcompError: the library cannot be built; the message gives the reason.
    """
    byteps = byteps_folder()
    header = capi.include_folder() / "gradcomp" / "gradcomp.h"
    registry = byteps / "common" / "compressor" / "compressor_registry.h"
    if not registry.exists():
        raise GradcompError(
            f"cannot build the plug-in: BytePS' header {registry} is missing; install BytePS with "
            "scripts/setup --engines byteps"
        )
    digest = hashlib.sha256(repr(FLAGS).encode())
    own_headers = sorted({path for source in sources for path in source.parent.glob("*.hpp")})
    foreign = [*sorted(registry.parent.glob("*.h")), byteps / "common" / "common.h"]
    for path in (*sources, *own_headers, header, *foreign):
        digest.update(path.read_bytes())
    folder = _cache() / "byteps-plugin" / digest.hexdigest()[:16]
    built = folder / f"lib{name}.so"
    if not built.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # several workers may start at once
            if not built.exists():
                _compile(sources, built, [header.parents[1]], [byteps.parent])
    return built


def _cache() -> Path:
    given = os.environ.get("GRADCOMP_CACHE")
    return Path(given) if given else Path.home() / ".cache" / "gradcomp"


def _compile(
    sources: Sequence[Path], built: Path, own_folders: list[Path], foreign: list[Path]
) -> None:
    """Compile ``sources`` into ``built``; the rename at the end makes a partial file invisible."""
    foreign = [*foreign, Path(sysconfig.get_paths()["include"])]
    with tempfile.TemporaryDirectory(dir=built.parent) as work:
        output = Path(work) / built.name
        command = [
            *shlex.split(os.environ.get("CXX", "c++")),
            *FLAGS,
            *(f"-I{path}" for path in own_folders),
            *(f"-isystem{path}" for path in foreign),
            *(f"-o{output}", *map(str, sources)),
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise GradcompError(
                f"C++ compiler '{command[0]}' not found: install one (on Debian: apt-get install "
                "g++), or name another one in CXX"
            ) from None
        if done.returncode != 0:
            raise GradcompError(
                f"{built.name} does not compile against BytePS:\n{shlex.join(command)}\n"
                f"{done.stderr}"
            )
        output.rename(built)


def main() -> int:
    """Build the library and print its path; returns the exit code."""
    try:
        print(plugin())
    except GradcompError as error:
        print(f"byteps_compressors.build: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
