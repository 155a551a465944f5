"""A job of 4 ranks that do not gossip alike, or drift apart: ``python -m workers.gossip_apart FOLDER``.

Each case returns the error of every rank.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from workers.forks import run_forks
from workers.runner import Cases

from gradcomp.errors import GradcompError
from gradcomp.gossip import from_matrix
from torch_compressors import AsyncGossipDataParallel, GossipDataParallel

RANKS = 4

cases = Cases()


def error_of(act: Callable[[], Any]) -> str:
    try:
        act()
    except GradcompError as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def make(**options: Any) -> tuple[GossipDataParallel, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    model[1].weight.requires_grad = False
    gossip = GossipDataParallel(model, timeout=5, retries=0, **options)
    return gossip, gossip.attach(torch.optim.SGD(model.parameters(), lr=0.1))


def step(model: GossipDataParallel, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()


def on_rank_2(usual: Any, other: Any) -> Any:
    return other if dist.get_rank() == 2 else usual


@cases
def other_arguments() -> list[str]:
    of_rank_2: list[dict[str, Any]] = [
        {"seed": 7},
        {"algorithm": "dpsgd", "topology": "npdde"},
        {"overlap": True, "synch_freq": 3},
        {"two_level": True, "ranks_per_node": 2},
        {"check_replicas_every": 5},
        {"synch_freq": -1},
    ]
    return [error_of(lambda one=one: make(**on_rank_2({}, one))) for one in of_rank_2]


@cases
def other_models() -> str:
    return error_of(lambda: GossipDataParallel(nn.Linear(3, on_rank_2(2, 4))))


@cases
def other_wrappers() -> str:
    wrapper = on_rank_2(GossipDataParallel, AsyncGossipDataParallel)
    return error_of(lambda: wrapper(nn.Linear(3, 2)))


@cases
def another_step_was_loaded() -> str:
    model, optimizer = make(algorithm="dpsgd")
    model.load_gossip_state_dict({"step": on_rank_2(4, 3)})
    return error_of(lambda: step(model, optimizer))


@cases
def a_rank_has_made_fewer_steps() -> str:
    """No rank has a peer in this graph, so that no exchange notices it."""
    alone = from_matrix(torch.eye(RANKS).numpy(), name="alone")
    model, optimizer = make(algorithm="dpsgd", topology=alone)
    step(model, optimizer)
    for _ in range(on_rank_2(3, 2)):
        step(model, optimizer)
    return error_of(model.synchronize)


@cases
def a_save_on_some_ranks() -> list[str]:
    """Rank 2 only comes late: the others name it, and go on."""
    model, optimizer = make(algorithm="dpsgd", topology="full")
    step(model, optimizer)
    with (
        TemporaryDirectory() as folder,
        mock.patch("gradcomp.runtime.state.attendance.SECONDS", 0.2),
        mock.patch("gradcomp.runtime.state.attendance._log.warning") as warning,
    ):
        time.sleep(on_rank_2(0, 1))
        model.save(folder, 1)  # each rank has its own folder, as on several hosts
    return [call.args[0] % call.args[1:] for call in warning.call_args_list]


def in_nodes(change: Callable[[nn.Module], torch.Tensor]) -> str:
    """Rank 3 changes its model after three steps; ranks compare every second step."""
    model, optimizer = make(two_level=True, ranks_per_node=2, check_replicas_every=2)
    for _ in range(3):
        step(model, optimizer)
    if dist.get_rank() == 3:
        with torch.no_grad():
            change(model.module).add_(1)

    def train() -> None:
        step(model, optimizer)
        # The other node lets the drifted one go on alone; its first rank would wait for it.
        if dist.get_rank() >= 2:
            step(model, optimizer)

    return error_of(train)


@cases
def a_rank_of_a_node_drifts() -> str:
    return in_nodes(lambda module: module[1].weight)


@cases
def averages_differ() -> str:
    model, _ = make(check_replicas_every=1)
    if dist.get_rank() == 1:
        with torch.no_grad():
            model.module[1].weight.add_(1)

    def average() -> None:
        with model.averaged():
            raise AssertionError("entered")

    return error_of(average)


if __name__ == "__main__":
    run_forks(cases, Path(sys.argv[1]), RANKS)
