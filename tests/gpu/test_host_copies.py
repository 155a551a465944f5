"""Copies of gradients that no kernel takes, on a pretended device whose streams are late."""

from __future__ import annotations

import pytest

from gpu.conftest import Mutate
from gpu.processes import run


def test_copies_are_started_late_and_waited_for() -> None:
    done = run("host_copies.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "93 checks\n"


LATE = (
    "self._stream.wait_stream(torch.accelerator.current_stream(self._device))",
    "torch.accelerator.current_stream(self._device)",
    "read before the current stream computed it",
)
OTHERS = [
    ("self._staged.wait()", "self.arrays", "on the host"),
    ("with on_stream(self._stream):", "with self._stream:", "context should not be initialized"),
    ("on_stream(recording_stream(self._device))", "torch.Stream(self._device)", "of its own"),
    ("torch.Stream(device) if stream == recorded else stream", "stream", "has other work"),
    (
        "            self._key, self._graph = None, None\n",
        "            self._key = key\n",
        "launched once, then recorded",
    ),
    ("self._done.record(stream)", "self._done.record(torch.Stream(device))", "on the host"),
    ("tensor.record_stream(self._stream)", "tensor.size()", "memory may be given away"),
    (
        "on_host.copy_(on_device, non_blocking=True)",
        "on_host.copy_(on_device)",
        "the host waits for",
    ),
    ("self._stream.wait_event(event)", "event", "read before it was computed"),
    ("computed_by_now(place) if beside", "None if beside", "events) is beside"),
    ("foreach_copy_([each.floats", "zip([each.floats", "read before it was copied"),
    ("floats.copy_(host)", "floats.zero_()", "on the host"),
    ("and _is_next(first, numel, tensors[place])", "and False", "neighbours of one buffer"),
]


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [LATE, *(pytest.param(*other, marks=pytest.mark.full) for other in OTHERS)],
)
def test_other_copies_are_refused(mutant: Mutate, before: str, after: str, fault: str) -> None:
    done = run("host_copies.py", first=mutant(before, after))
    assert done.returncode == 1
    assert fault in done.stderr
