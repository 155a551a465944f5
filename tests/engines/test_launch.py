"""The helper that starts the jobs of these tests."""

from __future__ import annotations

import time

import psutil
import pytest
from launch import CaseJob, Finished, run

PARENT = """
import subprocess, sys
child = subprocess.Popen(["sleep", "100"], start_new_session=True)
print("child", child.pid, flush=True)
child.wait()
"""


def test_nothing_of_a_job_outlives_its_limit() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"still running after 2 s.*\nchild \d+") as end:
        run(["-c", PARENT], limit=2)
    child = int(str(end.value).split()[-1])
    deadline = time.monotonic() + 10
    while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, f"{child} is still running"
        time.sleep(0.05)


def test_a_job_that_ends_is_reported() -> None:
    job = run(["-c", "print('so far'); raise SystemExit(3)"])
    assert (job.status, job.output) == (3, "so far\n")


def test_a_case_passes_when_all_ranks_pass_it() -> None:
    passed = {"case": {"value": 1, "error": None}}
    failed = {"case": {"value": None, "error": "Traceback: wrong"}}
    finished = Finished(0, "all that was printed", 1.0)
    assert CaseJob(finished, [passed, passed]).check("case") == [1, 1]
    with pytest.raises(pytest.fail.Exception, match="rank 1: Traceback: wrong"):
        CaseJob(finished, [passed, failed]).check("case")
    with pytest.raises(pytest.fail.Exception, match=r"rank 0 did not(?s:.*)all that was printed"):
        CaseJob(finished, [{}, passed]).check("case")
