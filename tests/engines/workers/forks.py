"""Ranks on Gloo that are forks of one process, which has imported everything once."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]

__all__ = ["fork_ranks", "import_once", "run_forks", "wait"]


def import_once() -> None:
    """Make an optimizer's first step, which imports for seconds."""
    torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1).step()


def fork_ranks(act: Callable[[], None], ranks: int) -> list[int]:
    """Start ranks that call ``act`` in an environment as torchrun makes it; returns their process ids."""
    global _store
    _store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return [os.fork() or _act_as(rank, act, ranks) for rank in range(ranks)]


def _act_as(rank: int, act: Callable[[], None], ranks: int) -> int:
    status = 1
    try:
        torch.set_num_threads(1)
        of_torchrun = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": ranks,
            "LOCAL_WORLD_SIZE": ranks,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": _store.port,
            "TORCHELASTIC_USE_AGENT_STORE": True,
            "TORCHELASTIC_RESTART_COUNT": 0,
        }
        os.environ.update({name: str(value) for name, value in of_torchrun.items()})
        act()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def wait(children: list[int]) -> dict[int, int]:
    """Wait for ranks; returns their exit codes. One that is stopped is killed when all others have ended."""
    ends: dict[int, int] = {}
    while len(ends) < len(children):
        child, status = os.waitpid(-1, os.WNOHANG)
        if child:
            ends[child] = os.waitstatus_to_exitcode(status)
            continue
        left = [child for child in children if child not in ends]
        if all(psutil.Process(child).status() == psutil.STATUS_STOPPED for child in left):
            os.kill(left[0], signal.SIGKILL)
        time.sleep(0.05)
    return ends


def run_forks(cases: Mapping[str, Callable[[], Any]], folder: Path, ranks: int) -> None:
    """Run the cases on a number of ranks; returns when all of them have ended.

    Each rank writes FOLDER/rankN.jsonl: for every case its value, or the error.
    """
    import_once()
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            try:
                _run_rank(cases, rank, folder, ranks)
            finally:
                os._exit(0)  # whatever another rank does to the process group
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


def _run_rank(cases: Mapping[str, Callable[[], Any]], rank: int, folder: Path, ranks: int) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    with (folder / f"rank{rank}.jsonl").open("w", buffering=1) as file:
        for name, function in cases.items():
            value = error = None
            try:
                value = function()
            except Exception:
                error = traceback.format_exc()
            file.write(json.dumps({"case": name, "value": value, "error": error}) + "\n")
            if error:
                break  # the next case would wait for ranks that are elsewhere
