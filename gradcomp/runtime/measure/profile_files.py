"""Profiles as files: JSON lines, traces for Chrome and Perfetto, events for TensorBoard."""

from __future__ import annotations

import atexit
import importlib
import itertools
import json
import logging
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gradcomp.config.schema import StatsSection
from gradcomp.errors import GradcompError
from gradcomp.runtime.measure.profile import Profile, StepProfile
from gradcomp.runtime.measure.stats import Stats

__all__ = [
    "profile_as_configured",
    "row_of",
    "write_jsonl",
    "write_profile",
    "write_tensorboard",
    "write_trace",
]

_log = logging.getLogger(__name__)

# Counts the profiles of each rank in each folder.
_written: defaultdict[tuple[Path, int], Iterator[int]] = defaultdict(lambda: itertools.count(1))


def row_of(step: StepProfile) -> dict[str, Any]:
    """A step as plain data for JSON; times in seconds."""
    return {
        "step": step.step,
        "seconds": step.seconds,
        "phases": step.phases,
        "requests": step.requests,
        "sent_bytes": dict(step.sent_bytes),
        "dense_bytes": step.dense_bytes,
        "vnmse": step.vnmse,
        "errors": {name: error.vnmse for name, error in step.errors.items()},
        "round": None if step.round is None else step.round._asdict(),
        "tensors": step.tensors,
    }


def profile_as_configured(stats: Stats, settings: StatsSection, rank: int) -> None:
    """Start a profile that is written when the process ends, if one is configured and none has begun."""
    if settings.profile is not None and stats.profile is None:
        profile = stats.start_profile(error=settings.error)
        atexit.register(write_profile, profile, settings.profile, rank)


def write_jsonl(profile: Profile, path: Path) -> None:
    """Write one line for each step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        for step in profile.steps:
            file.write(json.dumps(row_of(step)) + "\n")


def write_trace(profile: Profile, path: Path, rank: int) -> None:
    """Write the trace event format, which chrome://tracing and ui.perfetto.dev show.

    Steps and phases are nested slices. A request is a separate slice, from its start until its
    reply is used; Horovod's timeline shows it by the same name. Ranks on one machine share a clock,
    so their ``traceEvents`` can be concatenated.
    """
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": rank, "name": "process_name", "args": {"name": f"rank {rank}"}},
        {"ph": "M", "pid": rank, "tid": 0, "name": "thread_name", "args": {"name": "gradcomp"}},
    ]
    place: dict[str, Any] = {"pid": rank, "tid": 0}
    for step in profile.steps:
        sizes = {"sent_bytes": dict(step.sent_bytes), "vnmse": step.vnmse}
        if step.utilisation is not None:
            sizes["utilisation"] = step.utilisation
        about = {"name": f"step {step.step}", "cat": "step", "args": sizes}
        events.append(_slice(step.begin, step.begin + step.seconds) | place | about)
    for number, event in enumerate(profile.events):
        if not event.request:
            phase = {"name": event.phase, "cat": event.phase, "args": {"tensor": event.tensor}}
            events.append(_slice(event.begin, event.end) | place | phase)
            continue
        request = place | {"cat": event.phase, "name": event.request, "id": number}
        args = {"tensor": event.tensor, "bytes": event.nbytes}
        events.append(request | {"ph": "b", "ts": 1e6 * event.begin, "args": args})
        events.append(request | {"ph": "e", "ts": 1e6 * event.end})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))


def _slice(begin: float, end: float) -> dict[str, Any]:
    """A complete event; the arguments are in seconds, and the format has microseconds."""
    return {"ph": "X", "ts": 1e6 * begin, "dur": 1e6 * (end - begin)}


def write_tensorboard(profile: Profile, folder: Path) -> None:
    """Write scalars of each step as events of TensorBoard.

    ``gradcomp/seconds/step``, ``gradcomp/seconds/PHASE``, ``gradcomp/bytes/KIND``,
    ``gradcomp/ratio`` and, if it was measured, ``gradcomp/vnmse``.

    Raises:
        GradcompError: tensorboard is not installed.
    """
    # Modules that do not import TensorFlow; tensorboard's own writer does, which takes seconds.
    try:
        records = importlib.import_module("tensorboard.summary.writer.record_writer")
        event_pb2 = importlib.import_module("tensorboard.compat.proto.event_pb2")
        summary_pb2 = importlib.import_module("tensorboard.compat.proto.summary_pb2")
    except ImportError as error:
        raise GradcompError(
            f"tensorboard cannot be imported ({error}): install it (pip install tensorboard), or "
            "write JSON lines or a trace instead"
        ) from None
    folder.mkdir(parents=True, exist_ok=True)
    now = time.time()
    with (folder / f"events.out.tfevents.{now:.0f}.{os.getpid()}.gradcomp").open("wb") as file:
        writer = records.RecordWriter(file)
        begin = event_pb2.Event(wall_time=now, file_version="brain.Event:2")
        writer.write(begin.SerializeToString())
        for step in profile.steps:
            scalars = [
                summary_pb2.Summary.Value(tag=tag, simple_value=value)
                for tag, value in _scalars(step).items()
            ]
            event = event_pb2.Event(
                wall_time=now, step=step.step, summary=summary_pb2.Summary(value=scalars)
            )
            writer.write(event.SerializeToString())


def _scalars(step: StepProfile) -> dict[str, float]:
    sent = step.sent_bytes.total()
    return {
        "gradcomp/seconds/step": step.seconds,
        **{f"gradcomp/seconds/{phase}": seconds for phase, seconds in step.phases.items()},
        **{f"gradcomp/bytes/{kind}": float(n) for kind, n in step.sent_bytes.items()},
        **({"gradcomp/ratio": step.dense_bytes / sent} if sent else {}),
        **({} if step.vnmse is None else {"gradcomp/vnmse": step.vnmse}),
    }


def write_profile(profile: Profile, folder: Path, rank: int) -> None:
    """Write ``rankN.jsonl`` and ``rankN.trace.json``; a rank's second profile is ``rankN-2...``.

    Rank 0 names its files, for those of all ranks.
    """
    count = next(_written[folder, rank])
    name = f"rank{rank}" if count == 1 else f"rank{rank}-{count}"
    write_jsonl(profile, folder / f"{name}.jsonl")
    write_trace(profile, folder / f"{name}.trace.json", rank)
    if rank == 0:
        _log.info(
            "gradcomp: profile of %d steps: %s.jsonl (gradcomp report %s) and %s.trace.json "
            "(ui.perfetto.dev); other ranks write files next to them",
            len(profile.steps),
            folder / name,
            folder,
            folder / name,
        )
