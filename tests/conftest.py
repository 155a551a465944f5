"""The division of tests among processes (pytest -n), and fixtures of all tests."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator

# Before numpy is imported: the tests' small decompositions only lose time to threads of BLAS.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# PyTorch's threads, also those of jobs, would wait for each other where others have the processors.
os.environ.setdefault("OMP_NUM_THREADS", "1")

if sys.platform == "linux":
    # Threads of BytePS and Horovod poll, some after each microsecond. Here and in all children a sleep may be longer by
    # half a millisecond, which leaves the processors to others.
    ctypes.CDLL(None).prctl(29, 500_000)  # PR_SET_TIMERSLACK, in nanoseconds

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from gradcomp import _core
from support.durations import Durations
from support.scope import FULL

# An example's time depends more on other work of the machine than on the code.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


_WAITING = (
    *("test_byteps_apart", "test_chaos", "test_checkpoints", "test_ddp_failures"),
    *("test_elastic_examples", "test_elastic_outer", "test_fsdp_failures"),
    *("test_horovod_elastic", "test_horovod_failures", "test_horovod_functions"),
    *("test_tensorflow_elastic", "test_torchft", "test_torchrun_elastic"),
)
"""Files of tests/engines with jobs that mostly wait: for processes that come and go, or for a rank that stopped."""


_TRAINING = (
    "test_advise_measure",
    "test_e2e",
    "test_examples",
    "test_horovod_run",
    "test_train",
    "test_unedited",
)
"""Files of tests/engines with tests that start a job each, and share none with other files."""


_CALIBRATED = ("tests/tools/test_advise.py",)
"""Other files with tests that share what takes long to measure."""


class _JobsTogether(LoadScopeScheduling):
    """Divides the jobs of several ranks into three groups. Each runs in one process of pytest, one job at
    a time: they share reports, and need the processors. Most other tests go to any process."""

    def _split_scope(self, nodeid: str) -> str:
        if not nodeid.startswith("tests/engines/"):
            file = nodeid.partition("::")[0]
            return file if file in _CALIBRATED else nodeid
        for group, names in (("waiting", _WAITING), ("training", _TRAINING)):
            if any(f"/{name}.py" in nodeid for name in names):
                return f"{group} jobs"
        return "jobs"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _JobsTogether:
    return _JobsTogether(config, log)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # not in the processes of xdist
        config.pluginmanager.register(Durations(config.rootpath / "build/durations.json"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests with the mark `full`, unless this is scripts/test full."""
    if FULL:
        return
    left_out = [item for item in items if item.get_closest_marker("full")]
    if left_out:
        items[:] = [item for item in items if not item.get_closest_marker("full")]
        config.hook.pytest_deselected(items=left_out)


@pytest.fixture(autouse=True)
def _restore_core_settings() -> Iterator[None]:
    """Put the SIMD level and the number of threads back after a test."""
    level, threads = _core.simd_level(), _core.thread_count()
    yield
    _core.set_simd_level(level)
    _core.set_thread_count(threads)
