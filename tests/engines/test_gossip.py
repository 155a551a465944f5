"""Gossip between real processes, on Gloo."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from launch import HERE, run

RANKS, KILLED, LIMIT = 8, 5, 6.0

TRAINING = (
    *("dpsgd", "sgp", "sgp_with_weights", "osgp", "osgp_with_staleness"),
    *("powergossip", "choco", "deepsqueeze", "moniqua_overlapped"),
)


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("gossip")
    paths = [HERE.parents[1], HERE, HERE.parent / "golden"]
    environment = {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [HERE / "gossip_job.py", folder, RANKS, KILLED, LIMIT]
    finished = run(command, environment=environment, limit=240)
    found = []
    for rank in range(RANKS):
        path = folder / f"rank{rank}.json"
        assert path.exists(), finished.output
        found.append(json.loads(path.read_text()))
    return found


def check(reports: list[dict[str, Any]], case: str) -> list[Any]:
    for rank, report in enumerate(reports):
        assert case in report, f"rank {rank} did not get as far as {case}: {list(report)}"
        assert report[case]["error"] is None, f"rank {rank}: {report[case]['error']}"
    return [report[case]["value"] for report in reports]


@pytest.mark.parametrize(
    "case",
    [
        *("golden_npdde", "golden_ring", "a_job_resumes", "peers_can_change"),
        *("peers_follow_a_schedule", "nodes_average_gradients", "nodes_resume"),
        *("asynchronous_averaging", "an_asynchronous_job_resumes"),
    ],
)
def test_every_rank_passes(reports: list[dict[str, Any]], case: str) -> None:
    check(reports, case)


@pytest.mark.parametrize("case", TRAINING)
def test_the_averaged_model_learns(reports: list[dict[str, Any]], case: str) -> None:
    baseline = max(check(reports, "all_reduce"))
    results = check(reports, case)
    accuracy = results[0]["accuracy"]
    assert all(result["accuracy"] == accuracy for result in results)
    assert accuracy > baseline - 0.05
    assert results[0]["distance"] < 0.5 * results[0]["norm"]
    assert len({result["rounds"] for result in results}) == 1
    assert sum(result["weight"] for result in results) == pytest.approx(RANKS, rel=1e-6)


def test_nodes_have_one_model_each(reports: list[dict[str, Any]]) -> None:
    baseline = max(check(reports, "all_reduce"))
    results = check(reports, "nodes")
    assert results[0]["accuracy"] > baseline - 0.05
    assert [one["rounds"] > 0 for one in results] == [True, False] * (RANKS // 2)
    norms = [one["norm"] for one in results]
    assert norms[::2] == norms[1::2]
    assert len(set(norms[::2])) > 1


def test_asynchronous_ranks_learn(reports: list[dict[str, Any]]) -> None:
    baseline = max(check(reports, "all_reduce"))
    results = check(reports, "adpsgd")
    assert len({one["accuracy"] for one in results}) == 1
    assert results[0]["accuracy"] > baseline - 0.05
    assert results[0]["distance"] < results[0]["norm"]
    assert [one["active"] for one in results] == [False, True] * (RANKS // 2)
    assert all(one["exchanges"] > 0 and one["bits"] % 32 == 0 for one in results)
    active = sum(one["exchanges"] for one in results if one["active"])
    assert active == sum(one["exchanges"] for one in results if not one["active"])


def test_compressed_algorithms_send_fewer_bits(reports: list[dict[str, Any]]) -> None:
    bits = {case: check(reports, case)[0]["bits"] for case in TRAINING}
    assert bits["dpsgd"] == 2 * bits["sgp"]  # two neighbours, and one peer
    for case in ("powergossip", "choco", "deepsqueeze", "moniqua_overlapped"):
        assert bits[case] < bits["dpsgd"] / 3


def test_weights_differ_where_ranks_have_different_numbers_of_peers(
    reports: list[dict[str, Any]],
) -> None:
    assert all(one["weight"] == 1 for one in check(reports, "sgp"))
    assert len({one["weight"] for one in check(reports, "sgp_with_weights")}) > 4


def test_what_does_not_fit_is_refused(reports: list[dict[str, Any]]) -> None:
    for found in check(reports, "refusals"):
        assert len(found) == 14
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
            ),
            strict=True,
        ):
            assert part in message


def test_a_slow_peer_is_waited_for(reports: list[dict[str, Any]]) -> None:
    warnings = check(reports, "a_slow_peer_is_named")
    for neighbour in (2, 4):
        assert any("rank 3 has not answered for 0.5 s" in text for text in warnings[neighbour])


def test_a_killed_rank_is_a_named_error_and_no_hang(reports: list[dict[str, Any]]) -> None:
    assert "a_dead_peer_is_named" not in reports[KILLED]
    others = [report for rank, report in enumerate(reports) if rank != KILLED]
    found = check(others, "a_dead_peer_is_named")
    for neighbour in (KILLED - 1, KILLED + 1):
        error = reports[neighbour]["a_dead_peer_is_named"]["value"]["error"]
        assert f"the connection to rank {KILLED} failed" in error
    # Each neighbour that gives up is what the next one waits for.
    assert all(one["seconds"] < 2 * LIMIT for one in found)


def test_asynchronous_ranks_name_the_dead(tmp_path: Path) -> None:
    """An active rank its passive peer, and a passive one the active one, which gives up then."""
    command = [HERE / "async_dying.py", tmp_path / "store"]
    found = run(command, environment={"PYTHONPATH": str(HERE.parents[1])}, limit=120).output
    assert "exit codes: [-9, 1, 1]" in found, found
    for dead in (0, 1):
        assert f"PeerError: exchange with rank {dead}: the connection to" in found, found
