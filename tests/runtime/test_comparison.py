"""The parts of comparisons that all engines share."""

from __future__ import annotations

import numpy as np
import pytest

from gradcomp.errors import ProtocolError
from gradcomp.runtime.agree.comparison import (
    by_value,
    check_digests,
    check_equal,
    check_parameters,
    differences,
    digest_parameters,
    read_digests,
    read_object,
)


def test_values_are_listed_with_their_ranks() -> None:
    assert by_value([9, 6, 9]) == "9 on ranks 0, 2; 6 on rank 1"
    assert by_value(["x", "y"], "worker") == "x on worker 0; y on worker 1"
    assert by_value([0] * 20) == "0 on ranks 0, 1, 2, 3, 4, 5, 6, 7, ..."


def test_differences_are_lines_and_a_missing_value_is_one() -> None:
    assert differences([{"a": 1, "b": 2}] * 3) == ""
    assert differences([{"a": 1, "b": 2}, {"a": 1}]) == "  b: 2 on rank 0; none on rank 1"


def test_unequal_values_are_listed_between_subject_and_remedy() -> None:
    check_equal([{"a": 1, "b": "x"}] * 3, "apart", "fix it")
    rows = [{"a": value} for value in (1, 2, 1)]
    with pytest.raises(ProtocolError) as raised:
        check_equal(rows, "apart", "fix it", "worker")
    assert str(raised.value) == "apart:\n  a: 1 on workers 0, 2; 2 on worker 1\nfix it"


@pytest.mark.parametrize("text", [b"", b"\xff", b"[1]", b"3", b"[" * 100_000, "no json"])
def test_foreign_texts_are_refused(text: bytes | str) -> None:
    with pytest.raises(ProtocolError, match="rank 1 sends no text of gradcomp to compare"):
        read_object(text, 1)


@pytest.mark.parametrize("value", [None, 3, [1], [[]], [["w", "0", "1"]]])
def test_foreign_digests_are_refused(value: object) -> None:
    with pytest.raises(ProtocolError, match="rank 1 sends no digests"):
        read_digests(value, 1)


def test_the_first_parameter_that_differs_is_named() -> None:
    parameters = {"a": np.ones(3, np.float32), "b": np.zeros((2, 2), np.float32)}
    same = digest_parameters(parameters.items())
    check_parameters([same, same], "before step 3")
    parameters["b"][1, 1] = np.nextafter(np.float32(0), np.float32(1))
    other = digest_parameters(parameters.items())
    with pytest.raises(ProtocolError, match=r"1 of 2 parameters differ before step 3, first 'b'"):
        check_parameters([same, other, same], "before step 3")
    with pytest.raises(ProtocolError, match="none on rank 1"):
        check_parameters([same, same[:1]], "before step 3")


def test_digests_are_compared_from_the_first_rank_on() -> None:
    digests = [["w", "0a"], ["b", "0b"]]
    check_digests([{"digests": digests}] * 2, "after step 4")
    rows = [{"digests": digests}, {"digests": digests[:1]}]
    with pytest.raises(ProtocolError, match=r"first 'b' .*0b on worker 2; none on worker 3"):
        check_digests(rows, "after step 4", "worker", 2)
    with pytest.raises(ProtocolError, match="worker 3 sends no digests"):
        check_digests([{"digests": digests}, {}], "after step 4", "worker", 2)
