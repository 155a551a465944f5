"""PowerSGD on a device: averages are equal on all ranks, also where some have none."""

from __future__ import annotations

import pytest

from gpu.conftest import Mutate
from gpu.processes import run


def test_products_of_a_device() -> None:
    done = run("low_rank.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "10 products, 10 sums, 12 steps\n"


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("out += torch.mul(x, y, out=one)", "out.addcmul_(x, y)", "a matrix of"),
        ("zip(left[1:], right[1:], strict=True)", "zip(left[2:], right[2:])", "a matrix of"),
        ("if beta != 1:", "if beta < 0:", "Not equal"),
        ("if not work.safe:", "if False:", "a matrix of"),
        (
            "to = torch.empty_like(average) if work.begun else average",
            "to = average",
            "a matrix of",
        ),
        ("m if transposed else m.t()", "m.abs() if transposed else m.t()", "Not equal"),
    ],
)
def test_other_products_are_refused(mutant: Mutate, before: str, after: str, fault: str) -> None:
    done = run("low_rank.py", first=mutant(before, after))
    assert done.returncode == 1
    assert fault in done.stderr
