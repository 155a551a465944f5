"""Ranks that do not gossip alike, or have models that drift apart, end with an error that names them."""

from __future__ import annotations

import pytest
from launch import CaseJob, read_reports, run


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> CaseJob:
    folder = tmp_path_factory.mktemp("apart")
    return CaseJob(run(["-m", "workers.gossip_apart", folder], limit=200), read_reports(folder, 4))


def test_arguments_are_compared(job: CaseJob) -> None:
    for found in job.check("other_arguments"):
        for message, part in zip(
            found,
            (
                "  seed: 0 on ranks 0, 1, 3; 7 on rank 2",
                "  algorithm: sgp on ranks 0, 1, 3; dpsgd on rank 2",
                "  synch_freq: 0 on ranks 0, 1, 3; 3 on rank 2",
                "  ranks_per_node: None on ranks 0, 1, 3; 2 on rank 2",
                "  check_replicas_every: 0 on ranks 0, 1, 3; 5 on rank 2",
                "  synch_freq: 0 on ranks 0, 1, 3; -1 on rank 2",  # a range is checked afterwards
            ),
            strict=True,
        ):
            assert message.startswith("ProtocolError: GossipDataParallel: the ranks do not gossip")
            assert part in message


@pytest.mark.parametrize(
    ("case", "part"),
    [
        ("other_models", "  trained parameters: "),
        (
            "other_wrappers",
            "  wrapper: GossipDataParallel on ranks 0, 1, 3; AsyncGossipDataParallel on rank 2",
        ),
        ("another_step_was_loaded", "the first step: the ranks do not gossip alike"),
        ("another_step_was_loaded", "  rounds: 4 on ranks 0, 1, 3; 3 on rank 2"),
        ("a_rank_has_made_fewer_steps", "  rounds: 4 on ranks 0, 1, 3; 3 on rank 2"),
        ("averages_differ", "1 of 4 parameters differ in averaged(), first '1.weight'"),
    ],
)
def test_all_ranks_name_the_difference(job: CaseJob, case: str, part: str) -> None:
    for message in job.check(case):
        assert message.startswith("ProtocolError: ")
        assert part in message


def test_a_rank_that_is_late_in_a_save_is_named(job: CaseJob) -> None:
    for rank, said in enumerate(job.check("a_save_on_some_ranks")):
        assert len(said) == (rank != 2)
        assert rank == 2 or said[0].endswith("and rank 2 does not")


def test_a_rank_that_drifts_inside_its_node_is_named(job: CaseJob) -> None:
    found = job.check("a_rank_of_a_node_drifts")
    assert not any("drifted" in message for message in found[:2])
    for message in found[2:]:
        assert "1 of 4 parameters differ before step 4, first '1.weight' (digests: " in message
        assert " on rank 2; " in message
        assert " on rank 3)" in message
