"""Shared parts of the builders of engine wheels: edits of source releases, and caching.

An engine's last release does not build next to current PyTorch. Its builder (horovod_wheel.py,
byteps_wheel.py) downloads the unchanged source release, applies a table of edits and builds a wheel
with the Python of the environment that will use it.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PIP = (sys.executable, "-m", "pip")

# Memory to compile one source file with torch's headers, about: more parallel jobs than fit
# would be killed.
BYTES_PER_COMPILE_JOB = 3 * 2**29


class BuildError(Exception):
    """The wheel cannot be built; the message gives the reason and the remedy."""


@dataclass(frozen=True)
class Release:
    """A source release on PyPI."""

    name: str
    version: str
    sha256: str

    @property
    def directory(self) -> str:
        """The top directory of its archive."""
        return f"{self.name}-{self.version}"


@dataclass(frozen=True)
class Edit:
    """Replace ``old`` by ``new`` in ``file``, where ``old`` must occur exactly ``count`` times."""

    name: str
    file: str
    old: str
    new: str
    reason: str
    count: int = 1


def apply_edit(source: Path, edit: Edit) -> None:
    """Apply ``edit`` to the tree at ``source``.

    Raises ``BuildError`` and changes nothing unless the old text occurs exactly ``edit.count``
    times: an edit that does not fit must stop the build.
    """
    path = source / edit.file
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BuildError(f"edit '{edit.name}': there is no file {edit.file} in {source}") from None
    count = text.count(edit.old)
    if count != edit.count:
        times = "once" if edit.count == 1 else f"{edit.count} times"
        raise BuildError(
            f"edit '{edit.name}' of {edit.file}: the text {edit.old!r} must occur exactly {times},"
            f" but occurs {count} times; is this {source.name}, unchanged?"
        )
    path.write_text(text.replace(edit.old, edit.new), encoding="utf-8")


def apply_edits(source: Path, edits: Iterable[Edit]) -> None:
    """Apply all ``edits``, printing the reason of each."""
    for edit in edits:
        print(f"edit {edit.name}: {edit.file} ({edit.reason})", flush=True)
        apply_edit(source, edit)


def recipe_digest(release: Release, edits: Iterable[Edit], options: Mapping[str, str]) -> str:
    """A short hash of everything in a builder that decides the content of the wheel."""
    digest = hashlib.sha256(release.sha256.encode())
    for edit in edits:
        digest.update(repr((edit.file, edit.old, edit.new)).encode())
    digest.update(repr(sorted(options.items())).encode())
    return digest.hexdigest()[:12]


def torch_version() -> str:
    """The version of the installed torch, with its local part ('2.13.0+cpu')."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        raise BuildError(
            f"torch is not installed for {sys.executable}: install scripts/requirements.txt first"
        ) from None


def compile_jobs() -> int:
    """Number of files to compile at once: one a core, as far as memory allows."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # gradcomp.processors cannot be imported: this runs before gradcomp is built.
    affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if affinity else os.cpu_count() or 1
    return max(1, min(cores, memory // BYTES_PER_COMPILE_JOB))


def run(command: list[str], environment: Mapping[str, str] | None = None) -> None:
    """Run ``command``, its output to ours, and raise ``BuildError`` when it fails."""
    print("+", " ".join(command), flush=True)
    status = subprocess.run(command, env=environment, check=False).returncode
    if status != 0:
        raise BuildError(f"exit status {status} from: {' '.join(command)}")


def download(release: Release, directory: Path) -> Path:
    """Fetch the source release into ``directory``; pip checks its hash."""
    requirement = directory / "requirement.txt"
    requirement.write_text(f"{release.name}=={release.version} --hash=sha256:{release.sha256}\n")
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
    return directory / f"{release.directory}.tar.gz"


def unpack(release: Release, archive: Path, directory: Path) -> Path:
    """Unpack the source release and return its top directory."""
    with tarfile.open(archive) as tar:
        # Debian 12's Python 3.11.2 has no filters; pip has checked the archive's hash.
        if hasattr(tarfile, "data_filter"):
            tar.extraction_filter = tarfile.data_filter
        tar.extractall(directory)
    return directory / release.directory


def pip_wheel(source: Path, wheels: Path, environment: Mapping[str, str]) -> None:
    """Build the wheel of the tree at ``source`` into ``wheels``."""
    # ccache, where a build uses it: the next build is in another directory.
    environment = {**environment, "CCACHE_BASEDIR": str(source)}
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
        environment,
    )


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


def build(out: Path, release: Release, make: Callable[[Path], Path]) -> Path:
    """Return the wheel in ``out``; if there is none, ``make`` builds it in a directory of its own.

    The wheel appears under its final name only when complete, so an interrupted
    build leaves nothing that could be taken for one.
    """
    out.mkdir(parents=True, exist_ok=True)
    with exclusive(out):
        for finished in out.glob(f"{release.name}-*.whl"):
            return finished
        for leftover in out.glob("build-*"):
            shutil.rmtree(leftover)
        with tempfile.TemporaryDirectory(prefix="build-", dir=out) as name:
            wheel = make(Path(name))
            return wheel.rename(out / wheel.name)


def main(release: Release, key: Callable[[], str], make: Callable[[Path], Path]) -> int:
    """A builder's command line: do as it says, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=f"Build a wheel of {release.name} {release.version} for the installed torch."
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
        help="print a name that covers everything the wheel depends on, and build nothing",
    )
    arguments = parser.parse_args()
    try:
        print(key() if arguments.print_key else build(arguments.out, release, make))
    except BuildError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    return 0
