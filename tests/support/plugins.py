"""The plug-ins of examples/plugins, as users install them."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

from gradcomp import register_codec

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "plugins"


def install_python(folder: Path) -> Path:
    """Install the example in Python into ``folder``, and return it: for PYTHONPATH."""
    source = folder / "source"  # pip builds in the source folder, and that should stay clean
    source.mkdir(parents=True)
    for path in (*EXAMPLES.glob("python/*.py"), EXAMPLES / "python" / "pyproject.toml"):
        (source / path.name).write_bytes(path.read_bytes())
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-deps"]
    target = folder / "installed"
    pip += ["--disable-pip-version-check", "--no-index", "--target", str(target), str(source)]
    subprocess.run(pip, check=True, capture_output=True, text=True)
    return target


@cache
def register_python() -> None:
    """Make the codec ``bf8`` of the example in Python known to this process, for good."""
    sys.path.append(str(EXAMPLES / "python"))
    from gradcomp_bf8 import Bf8

    register_codec(Bf8())


def build(source: Path, library: Path, *options: str) -> Path:
    """Build a shared library as docs/plugins.md says, and return it."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-O2", "-ffp-contract=off", "-shared"]
    include = ROOT / "csrc" / "include"
    command = [
        *compiler,
        *flags,
        "-fPIC",
        f"-I{include}",
        *options,
        str(source),
        "-o",
        str(library),
    ]
    subprocess.run([*command, "-lm"], check=True, capture_output=True, text=True)
    return library


def build_native(folder: Path) -> Path:
    """Build the example in C."""
    return build(EXAMPLES / "native" / "absmax8.c", folder / "absmax8.so")


def package(folder: Path, name: str, entry: str, module: str = "") -> Path:
    """A folder with an installed package that has an entry point."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[gradcomp.codecs]\n{entry}\n")
    if module:
        (folder / f"{name}.py").write_text(module)
    return folder
