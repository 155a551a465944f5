"""Name what `scripts/test quick` needs and this Python lacks; ends with status 1 if that is something.

python scripts/missing.py
"""

from __future__ import annotations

import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

REMEDY = """
To install it:  pip install -e '.[dev]'
(with PyTorch's build for CPUs, without gigabytes of CUDA: first
pip install {torch} --index-url https://download.pytorch.org/whl/cpu)"""


def lacks(pins: list[str]) -> list[str]:
    """Each of ``pins``, such as "torch==2.13.0", that is not installed, with the version found instead."""
    found = []
    for pin in pins:
        name, _, wanted = pin.partition("==")
        try:
            installed = version(name)
        except PackageNotFoundError:
            found.append(pin)
        else:
            if installed.partition("+")[0] != wanted:  # torch: "2.13.0+cpu"
                found.append(f"{pin}, instead of {installed}")
    return found


def core_lacks(root: Path) -> list[str]:
    """What is wrong with the compiled core of the checkout at ``root``."""
    built = [path.stat().st_mtime for path in (root / "gradcomp").glob("_core*.so")]
    if not built:
        return ["gradcomp/_core, the compiled core of this checkout"]
    sources = [path for path in (root / "csrc").rglob("*") if path.is_file()]
    newer = [path for path in sources if path.stat().st_mtime > max(built)]
    if newer:
        return [f"a core compiled after the last change of {newer[0].relative_to(root)}"]
    return []


def main() -> int:
    """Print what is missing; returns the exit status."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins: list[str] = project["optional-dependencies"]["dev"]
    missing = [*lacks(pins), *core_lacks(ROOT)]
    if not missing:
        return 0
    print(f"missing in {sys.executable}:", *missing, sep="\n  ", file=sys.stderr)
    (torch,) = (pin for pin in pins if pin.startswith("torch=="))
    print(REMEDY.format(torch=torch), file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
