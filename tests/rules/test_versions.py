"""docs/versions.md shows what scripts/versions.py has recorded, and bounds are those of the recorded runs."""

from __future__ import annotations

import tomllib

from packaging.version import Version

import versions
from gradcomp_torch.compat import LEAST
from support.files import ROOT

ROWS = versions.results()


def test_the_page_has_the_recorded_results() -> None:
    assert versions.table() in versions.PAGE.read_text()


def test_the_oldest_pytorch_is_one_that_ran() -> None:
    ran = {Version(row[1]) for row in ROWS if row[3].startswith("DDP")}
    assert min(ran).release[:2] == LEAST


def test_the_named_pythons_are_those_that_ran() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    prefix = "Programming Language :: Python :: 3."
    named = {
        text.removeprefix(prefix) for text in project["classifiers"] if text.startswith(prefix)
    }
    assert named == {row[0].split(".")[1] for row in ROWS}
