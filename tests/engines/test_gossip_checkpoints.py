"""Checkpoints of gossip: jobs that save, and others that continue on as many ranks or on others."""

from __future__ import annotations

from pathlib import Path

import pytest
from launch import CaseJob, read_reports, run

EXACT = ("dpsgd", "sgp", "overlapped", "choco", "powergossip", "nodes")
CASES = (*EXACT, "asynchronous")


def finished(folder: Path, ranks: int, saves: bool) -> CaseJob:
    folder.mkdir()
    command = ["-m", "workers.gossip_checkpoints", folder, str(ranks), str(int(saves))]
    done = run(command, limit=200)
    return CaseJob(done, read_reports(folder, ranks))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def straight(home: Path) -> CaseJob:
    return finished(home / "straight", 4, saves=True)


@pytest.fixture(scope="module")
def resumed(home: Path, straight: CaseJob) -> CaseJob:
    return finished(home / "resumed", 4, saves=False)


@pytest.fixture(scope="module")
def on_three(home: Path, straight: CaseJob) -> CaseJob:
    return finished(home / "three", 3, saves=False)


@pytest.mark.parametrize("case", EXACT)
def test_the_same_ranks_continue_bit_for_bit(
    straight: CaseJob, resumed: CaseJob, case: str
) -> None:
    before = straight.check(case)
    assert resumed.check(case) == before
    assert len({one["middle"] for one in before}) > 1


def test_weights_of_push_sum_differ(straight: CaseJob) -> None:
    assert len({one["weight"] for one in straight.check("sgp")}) > 1


def test_asynchronous_ranks_load_their_own_models(straight: CaseJob, resumed: CaseJob) -> None:
    pairs = zip(straight.check("asynchronous"), resumed.check("asynchronous"), strict=True)
    assert all(one["middle"] == other["middle"] for one, other in pairs)


@pytest.mark.parametrize("case", CASES)
def test_other_ranks_begin_with_the_average(
    straight: CaseJob, on_three: CaseJob, case: str
) -> None:
    found = on_three.check(case)
    assert len({one["middle"] for one in found}) == 1
    assert {one["weight"] for one in found} == {1.0}
    assert found[0]["mean"] == pytest.approx(straight.check(case)[0]["mean"], rel=1e-6, abs=1e-7)


def test_other_models_algorithms_and_graphs_are_refused(
    resumed: CaseJob, on_three: CaseJob
) -> None:
    for job in (resumed, on_three):
        job.check("refusals")
