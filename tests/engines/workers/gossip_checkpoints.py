"""Gossips, and saves or loads: ``python -m workers.gossip_checkpoints FOLDER RANKS SAVES``.

SAVES is 1 in a job that saves after half of its steps, and goes on; 0 in one that loads and makes
the other half. Each case uses a directory of its own, and returns digests of the rank's model.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from workers.forks import run_forks
from workers.runner import Cases, refused

from gradcomp.errors import StateError
from gradcomp.gossip import from_edges
from torch_compressors import AsyncGossipDataParallel, GossipDataParallel

FOLDER, RANKS, SAVES = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "1"
HALF = 4

cases = Cases()


def small_model() -> nn.Module:
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 4))
    model.register_buffer("mask", torch.tensor([True, False]))
    model.register_buffer("brain", torch.ones(3, dtype=torch.bfloat16))
    return model


def train(model: nn.Module, optimizer: torch.optim.Optimizer, begin: int, end: int) -> None:
    for at in range(begin, end):
        generator = torch.Generator().manual_seed(100 * at + dist.get_rank())
        optimizer.zero_grad()
        model(torch.randn(5, 6, generator=generator)).square().sum().backward()
        optimizer.step()


def digest(model: nn.Module) -> str:
    parts = [repr((name, one.tolist())) for name, one in model.state_dict().items()]
    return blake2b("".join(parts).encode(), digest_size=8).hexdigest()


def run(name: str, make: Callable[..., Any] = GossipDataParallel, **options: Any) -> dict[str, Any]:
    """The digests after the checkpoint and at the end; and whether models differ by rank."""
    model = make(small_model(), **options)
    optimizer = model.attach(torch.optim.SGD(model.parameters(), lr=0.05))
    folder = FOLDER.parent / f"state-{name}"
    if SAVES:
        train(model, optimizer, 0, HALF)
        model.save(folder, HALF)
    else:
        assert model.load(folder) == HALF
    middle, weight = digest(model), model.weight
    mean = mean_of_all(model)
    train(model, optimizer, HALF, 2 * HALF)
    model.synchronize()
    return {"middle": middle, "end": digest(model), "weight": weight, "mean": mean}


def mean_of_all(model: nn.Module) -> list[float]:
    flat = torch.cat([one.detach().reshape(-1) for one in model.parameters()]).double()
    dist.all_reduce(flat)
    mean: list[float] = (flat / RANKS).tolist()
    return mean


@cases
def dpsgd() -> Any:
    return run("dpsgd", algorithm="dpsgd")


@cases
def sgp() -> Any:
    """Ranks with different numbers of peers, so that weights are not 1."""
    edges = [(rank, (rank + 1) % RANKS) for rank in range(RANKS)] + [(0, 2)]
    graph = from_edges(RANKS, edges, directed=True, weights="uniform")
    return run("sgp", algorithm="sgp", topology=graph)


@cases
def overlapped() -> Any:
    return run("overlapped", algorithm="osgp", peers_per_step={0: 2, 3: 1})


@cases
def choco() -> Any:
    return run("choco", algorithm="choco", codec="topk(ratio=0.2)")


@cases
def powergossip() -> Any:
    return run("powergossip", algorithm="powergossip", compression_rank=2)


@cases
def nodes() -> Any:
    if RANKS % 2:
        return run("nodes", two_level=True, ranks_per_node=1)
    return run("nodes", two_level=True, ranks_per_node=2, check_replicas_every=2)


@cases
def asynchronous() -> Any:
    return run("asynchronous", AsyncGossipDataParallel, topology="star")


@cases
def refusals() -> None:
    """A checkpoint of another model, algorithm or graph changes nothing."""
    if SAVES:
        return
    other = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    model = GossipDataParallel(other, algorithm="dpsgd")
    refused(
        lambda: model.load(FOLDER.parent / "state-dpsgd"),
        StateError, "rank 0: the checkpoint is of another model: brain, mask are in one of both",
    )  # fmt: skip
    if RANKS != 4:
        return
    for name, options, part in (
        ("dpsgd", {"algorithm": "sgp"}, "the state's 'weight' is None"),
        ("choco", {"algorithm": "choco", "topology": "full"}, "weights of one graph"),
    ):
        gossip = GossipDataParallel(small_model(), **options)
        before = digest(gossip)
        load = partial(gossip.load, FOLDER.parent / f"state-{name}")
        refused(load, StateError, "rank 3: ", part)
        assert digest(gossip) == before


if __name__ == "__main__":
    run_forks(cases, FOLDER, RANKS)
