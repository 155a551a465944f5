"""False messages of a peer in gossip: bounded memory, and an error that names the peer."""

from __future__ import annotations

import pytest
from launch import CaseJob, read_reports, run

SHORT = "ProtocolError: {}: rank 1 sent a damaged message: it is shorter than {} bytes"
BOUND = "announced a message of {} bytes; it must be in [0, "

EXPECTED = {
    "a_short_message": [SHORT.format("round 0", 40)],
    "a_message_of_another_round": [SHORT.format("round 0", 40)],
    "a_size_above_the_largest_message": ["ProtocolError: round 0: rank 1 " + BOUND.format(4000)],
    "sizes_that_no_message_has": [BOUND.format(size) for size in (-1, 2**31, 2**62)],
    "a_short_message_after_its_size": [SHORT.format("round 0", 20)],
    "an_unknown_kind": ["ProtocolError: exchange with rank 1: it sent a message of kind 7"],
    "a_short_question": [SHORT.format("exchange 1 of ranks 0 and 1, question", 40)],
    "a_short_answer": [SHORT.format("exchange 1 of ranks 0 and 1, answer", 40)],
}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> CaseJob:
    folder = tmp_path_factory.mktemp("hostile")
    finished = run(["-m", "workers.gossip_hostile", folder], limit=120)
    return CaseJob(finished, read_reports(folder, 2))


@pytest.mark.parametrize("case", EXPECTED)
def test_the_sender_is_named(job: CaseJob, case: str) -> None:
    found = job.check(case)[0]
    for message, part in zip(
        [found] if isinstance(found, str) else found, EXPECTED[case], strict=True
    ):
        assert part in message
