"""A job of 8 ranks on Gloo that gossip: ``python -m workers.gossip FOLDER RANKS KILLED LIMIT``.

In the last case the rank KILLED is killed, and the others wait for it for at most LIMIT seconds,
retries included.
"""

from __future__ import annotations

import copy
import gc
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from gossip_reference import GRAPHS, Case, powergossip_ranks
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from workers.forks import run_forks
from workers.runner import Cases, refused

from gradcomp.errors import GradcompError, PeerError, StateError
from gradcomp.gossip import Choco, Gossip, PushSum, from_edges, make_topology
from torch_compressors import AsyncGossipDataParallel, GossipDataParallel
from torch_compressors.gossip import Transport

RANKS, KILLED, LIMIT = int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])

cases = Cases()


def replay(name: str, make: Callable[[Case, int], Gossip], first: int = 0) -> None:
    """One case of the reference, on as many ranks as it has."""
    of_case = Case(name)
    rank = dist.get_rank()
    transport = Transport()
    if rank >= of_case.about["world_size"]:
        return
    one = make(of_case, rank)
    x = of_case.flat("x", first - 1, rank) if first else of_case.flat("x_init", rank)
    for step in range(first, of_case.steps):
        if of_case.config.get("lr"):
            x -= x.dtype.type(of_case.config["lr"]) * of_case.flat("grad", step, rank)
        transport.run(one.round(x))
        of_case.close(x, of_case.flat("x", step, rank), f"step {step}")


@cases
def golden_npdde() -> None:
    for name in ("sgp-pushsum-01", "sgp-pushsum-04"):
        replay(name, lambda of, rank: PushSum(make_topology(GRAPHS[of.config["graph"]], 8), rank))


@cases
def golden_ring() -> None:
    replay("powergossip-01", lambda of, rank: powergossip_ranks(of)[rank], first=1)
    # Frames; their lengths travel first.
    for name in ("choco-topk-01", "choco-sign-01"):
        replay(
            name,
            lambda of, rank: Choco(
                of.topology(), rank, of.shapes, codec=of.codecs(), gamma=of.config["diffusion_rate"]
            ),
        )


# Training ---------------------------------------------------------------------------------------

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).div(16).flatten(1)
classes = torch.tensor(digits.target)
TEST = 360


def small_model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))


def learn(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Some steps on this rank's samples."""
    rank = dist.get_rank()
    mine = torch.arange(TEST, len(classes))[rank::RANKS]
    generator = torch.Generator().manual_seed(rank)
    for _ in range(40):
        batch = mine[torch.randint(len(mine), (16,), generator=generator)]
        optimizer.zero_grad()
        functional.cross_entropy(model(images[batch]), classes[batch]).backward()
        optimizer.step()


def accuracy_of(model: nn.Module) -> float:
    model.eval()
    right = model(images[:TEST]).argmax(1) == classes[:TEST]
    model.train()
    return right.float().mean().item()


def train(**options: Any) -> dict[str, Any]:
    torch.manual_seed(dist.get_rank())  # the wrapper makes the parameters equal
    model = GossipDataParallel(small_model(), **options)
    learn(model, model.attach(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)))
    model.synchronize()
    own = [one.detach().clone() for one in model.parameters()]
    with model.averaged() as average:
        accuracy = accuracy_of(average)
    for one, before in zip(model.parameters(), own, strict=True):
        # Ranks may be some rounds apart; they gossip until all have arrived.
        assert torch.equal(one, before) or options.get("synch_freq")
    return {
        "accuracy": accuracy,
        "distance": model.consensus_distance(),
        "norm": float(torch.cat([one.flatten() for one in own]).norm()),
        "bits": model.traffic.bits / max(model.traffic.steps, 1),
        "rounds": model.traffic.steps,
        "weight": model.weight,
    }


@cases
def all_reduce() -> float:
    """The baseline of gossip: SGD with averaged gradients."""
    torch.manual_seed(0)
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def average(*_: Any) -> None:
        for one in model.parameters():
            dist.all_reduce(one.grad)
            one.grad /= RANKS

    optimizer.register_step_pre_hook(average)
    learn(model, optimizer)
    return accuracy_of(model)


@cases
def dpsgd() -> Any:
    return train(algorithm="dpsgd")


@cases
def sgp() -> Any:
    return train(algorithm="sgp")


@cases
def sgp_with_weights() -> Any:
    """Ranks with different numbers of peers, so that parameters are biased."""
    edges = [(rank, (rank + 1) % RANKS) for rank in range(RANKS)] + [(0, 4), (2, 6), (5, 1)]
    topology = from_edges(RANKS, edges, directed=True, weights="uniform")
    return train(algorithm="sgp", topology=topology)


@cases
def osgp() -> Any:
    return train(algorithm="osgp")


@cases
def osgp_with_staleness() -> Any:
    return train(algorithm="osgp", synch_freq=3)


@cases
def powergossip() -> Any:
    return train(algorithm="powergossip", compression_rank=2)


@cases
def choco() -> Any:
    return train(algorithm="choco", codec="topk(ratio=0.1)", gamma=0.2)


@cases
def quantized_push_sum() -> Any:
    """On a directed graph, in which ranks have different numbers of peers."""
    edges = [(rank, (rank + 1) % RANKS) for rank in range(RANKS)] + [(0, 4), (2, 6), (5, 1)]
    topology = from_edges(RANKS, edges, directed=True, weights="uniform")
    return train(algorithm="quantized_push_sum", topology=topology, codec="int4", gamma=0.7)


@cases
def deepsqueeze() -> Any:
    return train(algorithm="deepsqueeze", codec="sign", gamma=0.05)


@cases
def moniqua_overlapped() -> Any:
    return train(algorithm="moniqua", theta=1.0, bits=4, overlap=True)


def step(model: GossipDataParallel, optimizer: torch.optim.Optimizer, at: int) -> None:
    optimizer.zero_grad()
    inputs = torch.randn(5, 6, generator=torch.Generator().manual_seed(at + dist.get_rank()))
    model(inputs).square().sum().backward()
    optimizer.step()


@cases
def a_job_resumes() -> None:
    """Push-sum with weights, so that parameters and numerators differ."""
    edges = [(rank, (rank + 1) % RANKS) for rank in range(RANKS)] + [(0, 4), (2, 6)]
    topology = from_edges(RANKS, edges, directed=True, weights="uniform")

    def make() -> tuple[GossipDataParallel, torch.optim.Optimizer]:
        torch.manual_seed(3)
        model = GossipDataParallel(nn.Linear(6, 4), algorithm="sgp", topology=topology)
        return model, model.attach(torch.optim.SGD(model.parameters(), lr=0.1))

    model, optimizer = make()
    for at in range(4):
        step(model, optimizer, at)
    model.synchronize()
    path = Path(sys.argv[1]) / f"state{dist.get_rank()}.pt"
    torch.save({"model": model.state_dict(), "gossip": model.gossip_state_dict()}, path)
    assert model.weight != 1 or dist.get_rank() > 4
    again, its_optimizer = make()
    state = torch.load(path, weights_only=True)
    nn.Linear(6, 4).load_state_dict(state["model"])  # no trace of the wrapper
    again.load_state_dict(state["model"])
    again.load_gossip_state_dict(state["gossip"])
    for at in range(4, 8):
        step(model, optimizer, at)
        step(again, its_optimizer, at)
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


@cases
def peers_can_change() -> None:
    model = GossipDataParallel(nn.Linear(4, 3), algorithm="osgp")
    optimizer = model.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    for one in model.parameters():
        one.grad = torch.full_like(one, float(dist.get_rank()))
    optimizer.step()
    model.set_topology(make_topology("npdde", RANKS, peers_per_step=2))
    before = model.traffic.messages
    for one in model.parameters():
        one.grad.zero_()
    for _ in range(40):
        optimizer.step()
    model.synchronize()
    assert model.traffic.messages - before == 80
    assert model.consensus_distance() < 1e-5


@cases
def peers_follow_a_schedule() -> None:
    for options in ({}, {"overlap": True}, {"overlap": True, "synch_freq": 2}):
        model = GossipDataParallel(nn.Linear(4, 3), peers_per_step={0: 2, 3: 1}, **options)
        optimizer = model.attach(torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in range(5):
            optimizer.step()
        model.synchronize()
        assert model.traffic.steps >= 5 or "synch_freq" in options
        assert model.traffic.messages == model.traffic.steps + min(model.traffic.steps, 3)


@cases
def nodes() -> Any:
    """Four nodes of two ranks; the launcher says so."""
    here = {"LOCAL_RANK": str(dist.get_rank() % 2), "LOCAL_WORLD_SIZE": "2"}
    with mock.patch.dict(os.environ, here):
        return train(algorithm="sgp", two_level=True)


@cases
def nodes_average_gradients() -> None:
    """If nodes agree exactly, the result equals SGD with all-reduced gradients."""
    for size, options in ((2, {}), (4, {}), (2, {"overlap": True})):
        torch.manual_seed(5)
        own = nn.Linear(6, 4)
        model = GossipDataParallel(
            nn.Linear(6, 4), algorithm="dpsgd", topology="full", two_level=True,
            ranks_per_node=size, **options,
        )  # fmt: skip
        with torch.no_grad():
            for one, other in zip(own.parameters(), model.parameters(), strict=True):
                one.copy_(other)
        optimizer = model.attach(torch.optim.SGD(model.parameters(), lr=0.1))
        its_optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
        for at in range(5):
            generator = torch.Generator().manual_seed(8 * at + dist.get_rank())
            inputs = torch.randn(5, 6, generator=generator)
            for module, its in ((model, optimizer), (own, its_optimizer)):
                its.zero_grad()
                module(inputs).sum().backward()  # the same gradient anywhere
            for one in own.parameters():
                dist.all_reduce(one.grad)
                one.grad /= RANKS
            optimizer.step()
            its_optimizer.step()
        model.synchronize()
        for one, other in zip(model.parameters(), own.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
        leads = dist.get_rank() % size == 0
        assert model.traffic.steps == (5 if leads else 0)
        assert model.traffic.bits == (5 * (RANKS // size - 1) * 28 * 32 if leads else 0)
        # Gradients, a flag for each of the two tensors, and the first rank's broadcast.
        assert model.node_traffic.bits >= 5 * 32 * 30 * (2 if leads else 1)


@cases
def nodes_resume() -> None:
    """Numerators and weights are those of the node's first rank."""
    edges = [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)]
    topology = from_edges(4, edges, directed=True, weights="uniform")

    def make() -> tuple[GossipDataParallel, torch.optim.Optimizer]:
        model = GossipDataParallel(
            nn.Linear(6, 4), topology=topology, two_level=True, ranks_per_node=2
        )
        return model, model.attach(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))

    model, optimizer = make()
    for at in range(4):
        step(model, optimizer, at)
    model.synchronize()
    again, its_optimizer = make()
    again.load_state_dict(model.state_dict())
    again.load_gossip_state_dict(model.gossip_state_dict())
    its_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert again.weight == model.weight != 1
    for at in range(4, 8):
        step(model, optimizer, at)
        step(again, its_optimizer, at)
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)
    flat = torch.cat([one.detach().flatten() for one in model.parameters()])
    of_all = [torch.empty_like(flat) for _ in range(RANKS)]
    dist.all_gather(of_all, flat)
    assert torch.equal(of_all[dist.get_rank() ^ 1], flat)


@cases
def uneven_data() -> None:
    """A rank without data makes steps without gradients: its parameters change by mixing alone."""
    graph, rank, rate = make_topology("ring", RANKS), dist.get_rank(), 0.125
    model = GossipDataParallel(nn.Linear(4, 3), algorithm="dpsgd", topology=graph)
    optimizer = model.attach(torch.optim.SGD(model.parameters(), lr=rate, momentum=0.5))
    steps = np.arange(RANKS) % 3 + 2
    start = nn.utils.parameters_to_vector(model.parameters()).detach().double().numpy()
    expected, momentum = np.tile(start, (RANKS, 1)), np.zeros(RANKS)
    for at in range(6):
        optimizer.zero_grad()
        if at < steps[rank]:
            for one in model.parameters():
                one.grad = torch.full_like(one, float(rank + at))
        optimizer.step()
        momentum = np.where(at < steps, 0.5 * momentum + np.arange(RANKS) + at, momentum)
        change = rate * np.where(at < steps, momentum, 0)
        expected = graph.matrix(at) @ (expected - change[:, None])
    model.synchronize()
    found = nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
    np.testing.assert_allclose(found, expected[rank], rtol=1e-5, atol=1e-5)


@cases
def a_rank_that_stops_is_named() -> str:
    """It makes fewer steps, and waits in ``synchronize``; no rank waits longer than the limit."""
    model = GossipDataParallel(nn.Linear(2, 2), algorithm="dpsgd", timeout=LIMIT / 2, retries=0)
    optimizer = model.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    try:
        for _ in range(2 if dist.get_rank() == KILLED else 4):
            optimizer.step()
        model.synchronize()
    except PeerError as error:
        return str(error)
    raise AssertionError("nobody noticed")


# Asynchronous -----------------------------------------------------------------------------------


@cases
def adpsgd() -> dict[str, Any]:
    """Ranks of different speeds."""
    torch.manual_seed(dist.get_rank())
    model = AsyncGossipDataParallel(small_model(), synch_freq=3)
    optimizer = model.attach(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    optimizer.register_step_post_hook(lambda *_: time.sleep(0.002 * dist.get_rank()))
    learn(model, optimizer)
    model.synchronize()
    with model.averaged() as average:
        accuracy = accuracy_of(average)
    norm = torch.cat([one.detach().flatten() for one in model.parameters()]).norm()
    return {
        "accuracy": accuracy,
        "distance": model.consensus_distance(),
        "norm": float(norm),
        "bits": model.traffic.bits / model.traffic.messages,
        "exchanges": model.traffic.steps,
        "active": model.is_active,
    }


@cases
def asynchronous_averaging() -> None:
    """The average is preserved, and ranks reach it with different numbers of steps."""
    model = AsyncGossipDataParallel(nn.Linear(3, 2), topology="dbe")
    optimizer = model.attach(torch.optim.SGD(model.parameters(), lr=1.0))
    values = torch.arange(8.0) * (1 + dist.get_rank())
    for period in range(2):  # after synchronize() all of it begins again
        with torch.no_grad():
            torch.nn.utils.vector_to_parameters(values, model.parameters())
        for _ in range(30 + 20 * dist.get_rank()):
            optimizer.step()
            time.sleep(0.001)
        model.synchronize()
        mean = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
        dist.all_reduce(mean)
        expected = torch.arange(8.0) * (1 + RANKS) / 2
        torch.testing.assert_close(mean / RANKS, expected, rtol=1e-5, atol=1e-5)
        assert model.consensus_distance() < (0.3 if period else 1.0) * float(expected.norm())


@cases
def an_asynchronous_job_resumes() -> None:
    model = AsyncGossipDataParallel(nn.Linear(3, 2))
    optimizer = model.attach(torch.optim.SGD(model.parameters(), lr=1.0))
    for one in model.parameters():
        one.grad = torch.full_like(one, float(dist.get_rank()))
    for _ in range(3):
        optimizer.step()
    model.synchronize()
    again = AsyncGossipDataParallel(nn.Linear(3, 2))
    again.load_state_dict(model.state_dict())
    again.load_gossip_state_dict(model.gossip_state_dict())
    assert again.gossip_state_dict() == model.gossip_state_dict()
    again.synchronize()
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


# Process groups ---------------------------------------------------------------------------------


def held() -> dict[str, int]:
    """Counts of what groups cost this process."""
    dist.barrier()
    gc.collect()
    return {
        "groups": len(dist.distributed_c10d._world.pg_map),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "threads": len(list(Path("/proc/self/task").iterdir())),
    }


def gossiped(kind: type, closes: bool, options: dict[str, Any]) -> Any:
    model = kind(nn.Linear(3, 2), topology="dbe", **options)
    optimizer = model.attach(torch.optim.SGD(model.parameters(), lr=1.0))
    for _ in range(3):
        optimizer.step()
    model.synchronize()
    if closes:
        model.close()
        refused(model.consensus_distance, StateError, "is closed", "create it again")
        assert model.state_dict()
    return model


@cases
def modules_one_after_the_other_use_the_same_groups() -> None:
    """Also where ranks free or close them at different times."""
    for kind, options in (
        (GossipDataParallel, {"algorithm": "osgp", "timeout": 20.0}),
        (GossipDataParallel, {"two_level": True, "ranks_per_node": 2, "timeout": 20.0}),
        (AsyncGossipDataParallel, {"timeout": 20.0}),
    ):
        before = held()
        models = [gossiped(kind, True, options)]
        first = held()
        for number in range(8):
            # On rank 0 they are freed later than on the others.
            models = [*models, gossiped(kind, number == 2, options)][
                -2 if dist.get_rank() == 0 else -1 :
            ]
        after = held()
        for what, count in after.items():
            # The new model, the last one, and another of rank 0.
            assert count <= before[what] + 3 * (first[what] - before[what]), (
                what,
                before,
                first,
                after,
            )
        del models


@cases
def groups_of_an_exchange_that_has_failed_are_not_used_again() -> None:
    def fails() -> None:
        with model._control.request():
            raise PeerError("a rank has died")

    model = GossipDataParallel(nn.Linear(3, 2), topology="dbe", timeout=20.0)
    refused(fails, PeerError, "has died")
    failed, complete = model._control._lent, model._transport._groups._lent
    model.close()
    assert complete.free
    assert not failed.free
    again = GossipDataParallel(nn.Linear(3, 2), topology="dbe", timeout=20.0)
    assert again._control._lent is not failed


@cases
def refusals() -> list[str]:
    found = []
    for options in (
        {"algorithm": "sgd"},
        {"algorithm": "choco", "topology": "npdde"},
        {"algorithm": "sgp", "synch_freq": 2},
        {"algorithm": "sgp", "topology": make_topology("ring", 4)},
        {"algorithm": "dpsgd", "gamma": 3.0},
        {"algorithm": "dpsgd", "codec": "sign"},
        {"peers_per_step": {1: 2}},
        {"ranks_per_node": 2},
        {"two_level": True, "ranks_per_node": 3},
        {"two_level": True},
        {"topology": make_topology("npdde", 8), "peers_per_step": 2},
        {"timeout": 0.0},
        {"asynchronous": True, "topology": "npdde"},
        {"asynchronous": True, "synch_freq": -1},
        {"converted": True},
    ):
        kind = AsyncGossipDataParallel if options.pop("asynchronous", 0) else GossipDataParallel
        dtype = torch.float64 if options.pop("converted", 0) and dist.get_rank() else torch.float32
        try:
            kind(nn.Linear(2, 2).to(dtype), **options)
        except GradcompError as error:
            found.append(str(error))
    return found


@cases
def a_slow_peer_is_named() -> list[str]:
    transport = Transport(timeout=0.5, retries=6)
    one = PushSum(make_topology("ring", RANKS), dist.get_rank())
    if dist.get_rank() == 3:
        time.sleep(1.2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        transport.run(one.round(np.ones(4, np.float32)))
    return [str(warning.message) for warning in caught]


@cases
def a_dead_peer_is_named() -> dict[str, Any]:
    model = GossipDataParallel(nn.Linear(2, 2), algorithm="dpsgd", timeout=LIMIT / 3, retries=2)
    optimizer = model.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    began = time.monotonic()
    try:
        for at in range(1000):
            if dist.get_rank() == KILLED and at == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.step()
    except PeerError as error:
        return {"error": str(error), "seconds": time.monotonic() - began}
    raise AssertionError("nobody noticed")


if __name__ == "__main__":
    run_forks(cases, Path(sys.argv[1]), RANKS)
