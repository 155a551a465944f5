"""The division of tests among processes (pytest -n), and fixtures of all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from gradcomp import _core

# How long an example takes says more about the machine's other work than about the code.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


class _JobsTogether(LoadScopeScheduling):
    """All jobs of several ranks run in one process of pytest, one at a time: they share reports,
    and need the processors. Other tests go wherever there is time."""

    def _split_scope(self, nodeid: str) -> str:
        return "jobs" if nodeid.startswith("tests/engines/") else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _JobsTogether:
    return _JobsTogether(config, log)


@pytest.fixture(autouse=True)
def _restore_core_settings() -> Iterator[None]:
    """Put the SIMD level and the number of threads back after a test."""
    level, threads = _core.simd_level(), _core.thread_count()
    yield
    _core.set_simd_level(level)
    _core.set_thread_count(threads)
