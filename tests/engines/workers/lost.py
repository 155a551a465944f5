"""Jobs that lose a rank, on forks of one process: ``python -m workers.lost FOLDER JOB...``.

A JOB is the number of ranks, the name of a module of ``workers`` and the arguments of its ``main``, such as
``3 ddp_lost kill fp16 2``. FOLDER gets a file of that name for each job, with all that its ranks print.
"""

from __future__ import annotations

import importlib
import os
import sys
from functools import partial
from pathlib import Path

from workers.forks import fork_ranks, import_once, wait


def act(module: str, arguments: list[str], output: Path) -> None:
    """One rank."""
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(file, stream)
    importlib.import_module(f"workers.{module}").main(*arguments)


def main(folder: Path, jobs: list[str]) -> None:
    import_once()
    for job in jobs:
        ranks, module, *arguments = job.split(" ")
        importlib.import_module(f"workers.{module}")
        wait(fork_ranks(partial(act, module, arguments, folder / job), int(ranks)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
