"""Ranks on Gloo that are forks of one process, which has imported everything once.

Each rank runs the same cases and writes FOLDER/rankN.jsonl: for every case its value, or the error.
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

__all__ = ["run_forks"]


def run_forks(cases: Mapping[str, Callable[[], Any]], folder: Path, ranks: int) -> None:
    """Run the cases on so many ranks; returns when all of them have ended."""
    # An optimizer's first step imports for seconds: once here, for all ranks.
    torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1).step()
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
