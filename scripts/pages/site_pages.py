#!/usr/bin/env python3
"""Lay the pages of the site out: ``python scripts/pages/site_pages.py FOLDER``.

They keep their places in the repository, so that links between them stay as they are. Files that they
link to, such as figures and sources, come along, and the pages of the API are made.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STYLE = Path(__file__).with_name("site.css")
LINK = re.compile(r"\]\(\s*<?([^)\s>#]+)[^)]*\)")
API = {
    "gradcomp": [
        "gradcomp",
        "gradcomp.errors",
        "gradcomp.polar",
        "gradcomp.gossip",
        "gradcomp.runtime.outer.options",
    ],
    "horovod_compressors": ["horovod_compressors.torch", "horovod_compressors.tensorflow"],
    "torch_compressors": [
        "torch_compressors",
        "torch_compressors.fsdp",
        "torch_compressors.gossip.options",
        "torch_compressors.torchft",
        "torch_compressors.trainers.accelerate",
        "torch_compressors.trainers.lightning",
        "torch_compressors.trainers.transformers",
    ],
    "byteps_compressors": ["byteps_compressors.torch"],
}
"""For each page of the API, the modules that it lists."""


def tracked(*patterns: str) -> list[Path]:
    """Files of the repository, relative to its root."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [Path(name) for name in listing.stdout.split("\0") if name]


def linked(page: Path) -> Iterable[Path]:
    """Targets of a page's links inside the repository, relative to its root."""
    for link in LINK.findall((ROOT / page).read_text(encoding="utf-8")):
        target = ((ROOT / page).parent / link).resolve()
        if target.exists() and target.is_relative_to(ROOT):
            yield target.relative_to(ROOT)


def copy(path: Path, folder: Path) -> None:
    """Copy a file to its place in ``folder``."""
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / path, folder / path)


def write(page: Path, text: str) -> None:
    """Write a file of the site that is not a page of the repository."""
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text, encoding="utf-8")


def lay_out(folder: Path) -> None:
    """Make ``folder``, without what was in it."""
    shutil.rmtree(folder, ignore_errors=True)
    write(folder / STYLE.name, STYLE.read_text(encoding="utf-8"))
    pages = tracked("*.md")
    for page in pages:
        copy(page, folder)
        for target in linked(page):
            if not (ROOT / target).is_dir():
                copy(target, folder)
    for name, modules in API.items():
        parts = [f"# {name}", *(f"## {module}\n\n::: {module}" for module in modules)]
        write(folder / "api" / f"{name}.md", "\n\n".join(parts) + "\n")


if __name__ == "__main__":
    lay_out(Path(sys.argv[1]).resolve())
