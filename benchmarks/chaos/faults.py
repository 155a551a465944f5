"""The faults, and for each one the messages that name its cause.

A pattern must match the output of the job. In it `{rank}` is the faulty rank, and `{file}` its
checkpoint.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

__all__ = [
    "BAD_CHECKPOINTS",
    "ENGINES",
    "FAULTS",
    "RANKS",
    "RESUMED",
    "SAVE_EVERY",
    "STEPS",
    "Plan",
    "named_cause",
    "pairs",
    "plan",
]

RANKS = {"horovod": 3, "ddp": 3, "byteps": 2}
"""Ranks of a job. With two workers, sums of BytePS do not depend on the order of arrival."""

ENGINES = tuple(RANKS)

STEPS = 12
SAVE_EVERY = 4
RESUMED = 8
"""Step of the checkpoint with which jobs with a bad checkpoint begin."""

BAD_CHECKPOINTS = ("flip", "truncate", "older")

IMPOSSIBLE = {("byteps", "frame")}
"""A worker of BytePS encodes and sends in C++, where a script cannot reach the frame."""

# By engine, or for all.
_MESSAGES: dict[str, dict[str, str]] = {
    "kill": {
        "horovod": r"Process {rank} exit with status code 137",
        "ddp": r"rank {rank} does not answer|rank +: {rank} .*\n +exitcode +: -9",
        "byteps": r"worker {rank} was killed by signal 9",
    },
    "stop": {
        "horovod": r"rank {rank}\b[^\n]*(answer|stop|stall)|(stall|missing)[^\n]*rank\S* \[?{rank}\b",
        "ddp": r"rank {rank} does not answer",
        "byteps": r"worker {rank} [^\n]*(answer|stop|progress)",
    },
    "late": {"": r"(rank|worker) {rank}\b[^\n]*(answer|start)"},
    "config": {
        "": r"(rank|worker) {rank}\b[^\n]*topk\(ratio=0\.02",
        "byteps": r"topk\(ratio=0\.02[^\n;]* on worker {rank}\b",
    },
    "disk": {"": r"{file}[^\n]*(too large|No space left)|(too large|No space left)[^\n]*{file}"},
    "frame": {"": r"(rank|worker) {rank}\b[^\n]*CRC|CRC[^\n]*(rank|worker) {rank}\b"},
    "flip": {"": r"{file}"},
    "truncate": {"": r"{file}"},
    "older": {
        "": r"(rank|worker) {rank}\b[^\n]*step|{file}[^\n]*step",
        "byteps": r"steps of [^\n]* on worker {rank}\b",
    },
}

FAULTS = tuple(_MESSAGES)


@dataclass(frozen=True)
class Plan:
    """A trial.

    Attributes:
        number: its number; with the seed it determines everything else.
        engine: one of ENGINES.
        fault: one of FAULTS, or "" for none.
        rank: the faulty rank.
        step: the step of the fault, counted from 0.
        phase: the part of the step: "before", "backward" or "after".
        amount: a random number in [0, 1): position of a damaged byte, size of the disk, delay.
        begin: the step whose checkpoint the job loads; 0 for none.
    """

    number: int
    engine: str
    fault: str = ""
    rank: int = 0
    step: int = 0
    phase: str = "before"
    amount: float = 0.0
    begin: int = 0

    def as_dict(self) -> dict[str, Any]:
        """The plan as JSON."""
        return asdict(self)


def pairs(engines: Sequence[str], faults: Sequence[str]) -> list[tuple[str, str]]:
    """Engines with their faults, in the order of the trials: engines take turns."""
    turns = range(len(engines))
    all_pairs = [
        (engines[(number + turn) % len(engines)], fault)
        for turn in turns
        for number, fault in enumerate(faults)
    ]
    return [pair for pair in all_pairs if pair not in IMPOSSIBLE]


def plan(number: int, seed: int, engines: Sequence[str], faults: Sequence[str]) -> Plan:
    """Trial `number` of a seed; as many trials as there are pairs contain each pair once."""
    draw = random.Random(f"{seed}:{number}")
    order = pairs(engines, faults)
    engine, fault = order[number % len(order)]
    return Plan(
        number,
        engine,
        fault,
        rank=draw.randrange(RANKS[engine]),
        step=draw.randrange(1, STEPS - 1),
        phase=draw.choice(["before", "backward", "after"]),
        amount=draw.random(),
        begin=RESUMED if fault in BAD_CHECKPOINTS else 0,
    )


def named_cause(plan: Plan, output: str) -> bool:
    """Whether the output names the cause of a trial's fault."""
    patterns = _MESSAGES[plan.fault]
    pattern = patterns.get(plan.engine) or patterns[""]
    file = rf"checkpoints/\S*rank-{plan.rank:05d}"
    found = pattern.replace("{rank}", str(plan.rank)).replace("{file}", file)
    return re.search(found, output) is not None
