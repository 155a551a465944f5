"""Requirements of the package are ranges with tested lower bounds; scripts/requirements*.txt have exact versions."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from wheels.byteps_wheel import BYTEPS
from wheels.horovod_wheel import HOROVOD

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
RANGES = {"": PROJECT["dependencies"]} | {
    extra: ranges for extra, ranges in EXTRAS.items() if extra != "dev"
}


def pins_of(file: str) -> set[str]:
    return set(
        re.findall(r"^[^#\s]\S*(?= *(?:#|$))", (ROOT / "scripts" / file).read_text(), re.MULTILINE)
    )


def versions_of(pins: set[str]) -> dict[str, str]:
    """The exact versions by name."""
    versions = {}
    for pin in pins:
        name, equal, version = pin.partition("==")
        assert equal, pin
        versions[canonicalize_name(name)] = version
    return versions


INSTALLED = {f"{release.name}=={release.version}" for release in (BYTEPS, HOROVOD)}.union(
    *(pins_of(path.name) for path in (ROOT / "scripts").glob("requirements*.txt"))
)
LOWEST = versions_of(pins_of("constraints-lowest.txt"))


@pytest.mark.parametrize("extra", RANGES)
def test_a_requirement_is_a_range_from_a_tested_version_on(extra: str) -> None:
    """So pip keeps what an environment has."""
    installed = versions_of(INSTALLED)
    for text in RANGES[extra]:
        requirement = Requirement(text)
        (bound,) = requirement.specifier
        name = canonicalize_name(requirement.name)
        assert bound.operator == ">=", text
        # Engines are built for the newest PyTorch alone.
        assert bound.version in {LOWEST[name], installed[name]}, text
        assert requirement.specifier.contains(installed[name]), text


def test_each_lowest_version_is_a_bound() -> None:
    bounds = {
        canonicalize_name(Requirement(text).name) for texts in RANGES.values() for text in texts
    }
    assert set(LOWEST) == bounds


def test_the_extra_of_developers_names_the_installed_versions() -> None:
    assert set(EXTRAS["dev"]) - INSTALLED == set()


def test_the_extra_of_developers_is_complete() -> None:
    """It also has what `scripts/test quick` needs of requirements.txt."""
    assert pins_of("requirements-dev.txt") == set(EXTRAS["dev"]) - pins_of("requirements.txt")


def test_contributors_find_every_extra() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == set(EXTRAS)
