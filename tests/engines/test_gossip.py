"""Gossip between real processes, on Gloo."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from launch import PATHS, ROOT, CaseJob, read_reports, run

RANKS, KILLED, LIMIT = 8, 5, 6.0
ENVIRONMENT = {"PYTHONPATH": os.pathsep.join(map(str, [ROOT, *PATHS]))}

TRAINING = (
    *("dpsgd", "sgp", "sgp_with_weights", "osgp", "osgp_with_staleness"),
    *("powergossip", "choco", "quantized_push_sum", "deepsqueeze", "moniqua_overlapped"),
)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> CaseJob:
    folder = tmp_path_factory.mktemp("gossip")
    command = ["-m", "workers.gossip", folder, RANKS, KILLED, LIMIT]
    finished = run(command, environment=ENVIRONMENT, limit=240)
    return CaseJob(finished, read_reports(folder, RANKS))


@pytest.mark.parametrize(
    "case",
    [
        *("golden_npdde", "golden_ring", "a_job_resumes", "peers_can_change"),
        *("peers_follow_a_schedule", "nodes_average_gradients", "nodes_resume"),
        *("uneven_data", "asynchronous_averaging", "an_asynchronous_job_resumes"),
        "modules_one_after_the_other_use_the_same_groups",
        "groups_of_an_exchange_that_has_failed_are_not_used_again",
    ],
)
def test_every_rank_passes(job: CaseJob, case: str) -> None:
    job.check(case)


@pytest.mark.parametrize("case", TRAINING)
def test_the_averaged_model_learns(job: CaseJob, case: str) -> None:
    baseline = max(job.check("all_reduce"))
    results = job.check(case)
    accuracy = results[0]["accuracy"]
    assert all(result["accuracy"] == accuracy for result in results)
    assert accuracy > baseline - 0.05
    assert results[0]["distance"] < 0.5 * results[0]["norm"]
    assert len({result["rounds"] for result in results}) == 1
    assert sum(result["weight"] for result in results) == pytest.approx(RANKS, rel=1e-6)


def test_nodes_have_one_model_each(job: CaseJob) -> None:
    baseline = max(job.check("all_reduce"))
    results = job.check("nodes")
    assert results[0]["accuracy"] > baseline - 0.05
    assert [one["rounds"] > 0 for one in results] == [True, False] * (RANKS // 2)
    norms = [one["norm"] for one in results]
    assert norms[::2] == norms[1::2]
    assert len(set(norms[::2])) > 1


def test_asynchronous_ranks_learn(job: CaseJob) -> None:
    baseline = max(job.check("all_reduce"))
    results = job.check("adpsgd")
    assert len({one["accuracy"] for one in results}) == 1
    assert results[0]["accuracy"] > baseline - 0.05
    assert results[0]["distance"] < results[0]["norm"]
    assert [one["active"] for one in results] == [False, True] * (RANKS // 2)
    assert all(one["exchanges"] > 0 and one["bits"] % 32 == 0 for one in results)
    active = sum(one["exchanges"] for one in results if one["active"])
    assert active == sum(one["exchanges"] for one in results if not one["active"])


def test_compressed_algorithms_send_fewer_bits(job: CaseJob) -> None:
    bits = {case: job.check(case)[0]["bits"] for case in TRAINING}
    assert bits["dpsgd"] == 2 * bits["sgp"]  # two neighbours, and one peer
    for case in ("powergossip", "choco", "deepsqueeze", "moniqua_overlapped"):
        assert bits[case] < bits["dpsgd"] / 3


def test_weights_differ_where_ranks_have_different_numbers_of_peers(
    job: CaseJob,
) -> None:
    assert all(one["weight"] == 1 for one in job.check("sgp"))
    for case in ("sgp_with_weights", "quantized_push_sum"):
        assert len({one["weight"] for one in job.check(case)}) > 4


def test_what_does_not_fit_is_refused(job: CaseJob) -> None:
    for found in job.check("refusals"):
        assert len(found) == 15
        for message, part in zip(
            found,
            (
                "no gossip algorithm is called 'sgd'",
                "does not change",
                "above 0 with overlap=True alone",
                "is for 4 ranks, and the job has 8",
                "gamma is 3.0",
                "unexpected keyword argument 'codec'",
                "the first of them 0, such as {0: 2, 1000: 1}",
                "goes with two_level=True alone",
                "ranks_per_node is 3; it must be a divisor of 8 ranks",
                "set ranks_per_node",
                "'npdde' has its own",
                "timeout is 0.0; it must be above 0 seconds",
                "'npdde' of 8 ranks a circle of peers with an odd number",
                "synch_freq is -1; it must be at least 0",
                "2 of float64, digest",
            ),
            strict=True,
        ):
            assert part in message


def test_a_slow_peer_is_waited_for(job: CaseJob) -> None:
    warnings = job.check("a_slow_peer_is_named")
    for neighbour in (2, 4):
        assert any("rank 3 has not answered for 0.5 s" in text for text in warnings[neighbour])


def test_a_rank_that_stops_is_a_named_error_and_no_hang(job: CaseJob) -> None:
    found = job.check("a_rank_that_stops_is_named")
    for neighbour in (KILLED - 1, KILLED + 1):
        assert f"rank {KILLED}" in found[neighbour], found


def test_a_killed_rank_is_a_named_error_and_no_hang(job: CaseJob) -> None:
    assert "a_dead_peer_is_named" not in job.reports[KILLED]
    others = [report for rank, report in enumerate(job.reports) if rank != KILLED]
    found = CaseJob(job.finished, others).check("a_dead_peer_is_named")
    for neighbour in (KILLED - 1, KILLED + 1):
        error = job.reports[neighbour]["a_dead_peer_is_named"]["value"]["error"]
        assert f"the connection to rank {KILLED} failed" in error
    # Each neighbour that gives up is what the next one waits for.
    assert all(one["seconds"] < 2 * LIMIT for one in found)


def test_asynchronous_ranks_name_the_dead(tmp_path: Path) -> None:
    """An active rank names its passive peer, and a passive one the active rank, which then gives up."""
    command = ["-m", "workers.async_dying", tmp_path / "store"]
    found = run(command, environment=ENVIRONMENT, limit=120).output
    assert "exit codes: [-9, 1, 1]" in found, found
    for dead in (0, 1):
        assert f"PeerError: exchange with rank {dead}: the connection to" in found, found
