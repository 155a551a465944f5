"""PowerSGD on a device: averages are equal on all ranks, also where some have none."""

from __future__ import annotations

import pytest

from gpu.conftest import Mutate
from gpu.processes import run

PRODUCT = "low_rank.multiply(tensor_of(work.m), factor, work.transposed, out)"


def test_products_of_a_device() -> None:
    done = run("low_rank.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "10 products, 10 sums, 12 steps\n"


def test_factors_from_device_to_device() -> None:
    done = run("factors.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "40 steps\n"


@pytest.mark.full
@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("self.sent.copy_(self.products)", "pass", "Not equal to tolerance"),
        ("self._widened.copy_(average)", "pass", "Not equal to tolerance"),
        ("self.products.copy_(self.sent)", "pass", "what was not sent is lost"),
        ("if work.beta != 1", "if work.beta < 0", "Not equal to tolerance"),
        (PRODUCT, f"Replayed(self._device).run(factor, lambda: {PRODUCT})", "would be recorded in"),
    ],
)
def test_other_phases_are_refused(mutant: Mutate, before: str, after: str, fault: str) -> None:
    done = run("factors.py", first=mutant(before, after))
    assert done.returncode == 1, done.stdout
    assert fault in done.stderr


@pytest.mark.full
@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("(height, width, work.q.size // width)", "(height, width, 1)", "a matrix of"),
        ("own_p is p and own_q is q for", "own_p is p for", "a matrix of"),
        ("if work.beta != 1", "if work.beta < 0", "Not equal"),
        ("[not work.safe for work", "[False for work", "a matrix of"),
        ("[work.begun for work", "[True for work", "a matrix of"),
        ("m if transposed else m.t()", "m.abs() if transposed else m.t()", "Not equal"),
    ],
)
def test_other_products_are_refused(mutant: Mutate, before: str, after: str, fault: str) -> None:
    done = run("low_rank.py", first=mutant(before, after))
    assert done.returncode == 1
    assert fault in done.stderr
