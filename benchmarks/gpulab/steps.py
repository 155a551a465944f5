"""Whole steps of DDP and FSDP, with all contenders in turn, by one and by two processes on one device."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

__all__ = ["JobError", "whole_steps"]

Row = dict[str, Any]

HERE = Path(__file__).parent
LIMIT = {"probe": 120.0, "quick": 600.0, "full": 1200.0}
"""Seconds after which a job is ended."""


class JobError(RuntimeError):
    """A process of a job ended with an error, or not in time."""


def whole_steps(device: str, *, quick: bool) -> list[Row]:
    """Times of steps in ms by contender, and whether parameters are equal, for 1 and 2 processes.

    Args:
        device: `cuda:0`, or `cpu`, where there is no NCCL.

    Raises:
        JobError: a job failed.
    """
    rows = []
    for ranks in (1, 2):
        backend, reason = _backend(ranks, device)
        results = _job(ranks, backend, device, "quick" if quick else "full")
        rows += _compared(results, {"ranks": ranks, "backend": backend, "reason": reason})
    return rows


def _backend(ranks: int, device: str) -> tuple[str, str]:
    """NCCL, or Gloo and the reason for it."""
    if device == "cpu":
        return "gloo", "there is no GPU"
    try:
        _job(ranks, "nccl", device, "probe")
    except JobError as error:
        return "gloo", f"NCCL refuses {ranks} processes on one GPU: {error}"
    return "nccl", ""


def _job(ranks: int, backend: str, device: str, job: str) -> list[list[Row]]:
    """Each rank's results."""
    # cuBLAS sums in one order only with a workspace of fixed size.
    environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        processes = []
        for rank in range(ranks):
            command = [sys.executable, str(HERE / "worker.py"), str(rank), str(ranks)]
            command += [backend, device, name, job]
            # NCCL wants a GPU for each process of a host: each is one of its own here, behind sockets.
            rank_environment = {**environment, "NCCL_HOSTID": f"rank-{rank}"}
            with (folder / f"log-{rank}").open("w") as log:
                processes.append(
                    subprocess.Popen(
                        command, stdout=log, stderr=subprocess.STDOUT, env=rank_environment
                    )
                )
        try:
            failed = _wait(processes, LIMIT[job])
        finally:
            for process in processes:
                process.kill()
                process.wait()
        if failed is not None:
            written = folder / f"log-{failed}"
            if job != "probe":
                print(written.read_text(encoding="utf-8", errors="replace"), file=sys.stderr)
            raise JobError(_last_line(written))
        files = [folder / f"rank-{rank}.json" for rank in range(ranks)]
        return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def _wait(processes: list[subprocess.Popen[bytes]], limit: float) -> int | None:
    """Until all have ended, or one has failed: its rank, or None.

    Raises:
        JobError: they are still running after ``limit`` seconds.
    """
    end = time.monotonic() + limit
    while True:
        states = [process.poll() for process in processes]
        for rank, state in enumerate(states):
            if state:
                return rank
        if None not in states:
            return None
        if time.monotonic() > end:
            raise JobError(f"it still runs after {limit:g} s")
        time.sleep(0.1)


def _last_line(log: Path) -> str:
    """The error's line, after which libraries may have written warnings; else the last one.

    NCCL's error is followed by its reason.
    """
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    lines = [re.sub(r"^\[rank\d+\]: ?", "", line) for line in lines]
    reasons = [line for line in lines if line.startswith("Duplicate GPU")]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return (reasons or errors or lines or ["it wrote nothing"])[-1]


def _compared(results: list[list[Row]], common: Row) -> list[Row]:
    """Rows of the slowest rank; parameters are equal on all ranks, and in runs that are the same."""
    digests: dict[str, set[str]] = {}
    for row in (row for of_rank in results for row in of_rank):
        digests.setdefault(row["same"], set()).add(row["digest"])
    return [
        {
            **common,
            "name": rows[0]["name"],
            "ms": max(row["ms"] for row in rows),
            "equal": len(digests[rows[0]["same"]]) == 1,
        }
        for rows in zip(*results, strict=True)
    ]
