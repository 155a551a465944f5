"""Profiles of ranks: configuration and checks, for all engines."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path

from gradcomp import Config, Loopback, Stats
from gradcomp.runtime.measure.profile_files import write_trace
from support.pipelines import rules_of

_SPECS = {
    "topk": "residual|topk(ratio=0.05)",
    "rounded": "fp16",
    "factors": "powersgd(rank=2,start_step=0,variant=paper)",
    "moving": "signum|sign",
}

SHAPES = dict.fromkeys(_SPECS, (64, 80))
STEPS = 3


def config(folder: Path | None) -> Config:
    """A rule for each spec, and the folder for profiles."""
    rules = rules_of(_SPECS, "*{}")
    stats = {} if folder is None else {"stats": {"profile": str(folder), "error": True}}
    compress = {"default": "identity", "rules": rules}
    return Config.from_mapping({"version": 1, "compress": compress, **stats})


def loopback(ranks: int) -> Loopback:
    """A loopback that measures errors."""
    result = Loopback(config(None), ranks)
    for stats in result.stats:
        stats.start_profile(error=True)
    return result


def check(stats: Stats, expected: Stats, seconds: float) -> None:
    """Check that a profile adds up, and that its errors equal the loopback's.

    Args:
        stats: of this rank.
        expected: of the loopback.
        seconds: an upper bound on the time of all steps.
    """
    profile, known = stats.profile, expected.profile
    assert profile is not None
    assert known is not None
    assert [step.step for step in profile.steps] == list(range(STEPS))
    assert profile.total.sent_bytes == stats.sent_bytes, profile.total.sent_bytes
    assert profile.total.dense_bytes == stats.dense_bytes == expected.dense_bytes
    assert sum(step.seconds for step in profile.steps) <= seconds
    for step, other in zip(profile.steps, known.steps, strict=True):
        assert sum(step.phases.values()) <= step.seconds
        assert all(value > 0 for value in step.phases.values()), step.phases
        assert step.vnmse is not None
        assert other.vnmse is not None
        assert math.isclose(step.vnmse, other.vnmse, rel_tol=1e-5), (step.vnmse, other.vnmse)
    requests = [event for event in profile.events if event.request]
    assert len(requests) == profile.total.requests == known.total.requests
    for request in requests:
        assert request.request.startswith(request.tensor)
    sent = {request.request for request in requests}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        write_trace(profile, path, 0)
        events = json.loads(path.read_text())["traceEvents"]
    assert {event["name"] for event in events if event["ph"] == "b"} == sent


def check_files(folder: Path, ranks: int) -> None:
    """Check that each rank has written its profile."""
    for rank in range(ranks):
        rows = (folder / f"rank{rank}.jsonl").read_text().splitlines()
        assert [json.loads(row)["step"] for row in rows] == list(range(STEPS))
        assert json.loads((folder / f"rank{rank}.trace.json").read_text())["traceEvents"]
