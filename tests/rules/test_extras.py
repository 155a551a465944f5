"""The package's extras name the versions that scripts/setup installs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from wheels.byteps_wheel import BYTEPS
from wheels.horovod_wheel import HOROVOD

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def pins_of(file: str) -> set[str]:
    return set(re.findall(r"^[^#\s]\S*$", (ROOT / "scripts" / file).read_text(), re.MULTILINE))


INSTALLED = {f"{release.name}=={release.version}" for release in (BYTEPS, HOROVOD)}.union(
    *(pins_of(path.name) for path in (ROOT / "scripts").glob("requirements*.txt"))
)


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_names_the_installed_versions(extra: str) -> None:
    assert set(EXTRAS[extra]) - INSTALLED == set()


def test_the_extra_of_developers_is_complete() -> None:
    """It also has what `scripts/test quick` needs of requirements.txt."""
    assert pins_of("requirements-dev.txt") == set(EXTRAS["dev"]) - pins_of("requirements.txt")


def test_contributors_find_every_extra() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == set(EXTRAS)
