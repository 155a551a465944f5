"""How tests are divided among processes (pytest -n)."""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling


class _JobsTogether(LoadScopeScheduling):
    """All jobs of several ranks run in one process of pytest, one at a time: they share reports,
    and need the processors. Other tests go wherever there is time."""

    def _split_scope(self, nodeid: str) -> str:
        return "jobs" if nodeid.startswith("tests/distributed/") else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _JobsTogether:
    return _JobsTogether(config, log)
