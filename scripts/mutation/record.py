"""A plug-in of pytest for the changed tree: which test runs which place, and for how long."""

from __future__ import annotations

import ctypes
import json
import os
from pathlib import Path

import pytest

import gradcomp._core
from gradcomp import _mutants

_core = ctypes.CDLL(gradcomp._core.__file__)
_results = Path(os.environ["GRADCOMP_MUTANT_LOG"]) / f"{os.getpid()}-tests"


def pytest_runtest_logstart(nodeid: str, location: object) -> None:
    """Every test writes its places down again."""
    _core.gradcomp_forget()
    _mutants.forget()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write a phase of a test down: the test's name, its seconds and the outcome."""
    with _results.open("a") as file:
        json.dump([report.nodeid, report.duration, report.outcome], file)
        file.write("\n")
