"""Messages from device to device that are none of a bucket's: nothing else is written, and all ranks hear of it."""

from __future__ import annotations

import pytest

from gpu.conftest import Mutate
from gpu.processes import run
from support.scope import by_scope


def test_damaged_messages_are_noticed() -> None:
    done = run("damaged.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == f"{by_scope(29, 85)} damaged messages noticed\n"


@pytest.mark.full
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("ok = ok & inside", "ok = ok"),
        ("wrong = ok & ((index <= before)", "wrong = ok & ((index < before)"),
        ("self._raise_found(unused)", "pass"),
        ("if number != said:", "if number < 0:"),
        ("if more != -1:", "if more < -1:"),
        ("differs.to(tl.int32)", "(differs & (message < 0)).to(tl.int32)"),
    ],
)
def test_it_would_notice(before: str, after: str, mutant: Mutate) -> None:
    done = run("damaged.py", first=mutant(before, after))
    assert done.returncode != 0, done.stdout
