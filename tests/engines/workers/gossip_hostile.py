"""A job of 2 ranks; rank 1 sends false messages: ``python -m workers.gossip_hostile FOLDER``.

In each case rank 0 runs the code of every job and returns its error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch.distributed as dist
from workers.forks import run_forks
from workers.runner import Cases

from gradcomp.adapter_api import Exchange, GossipRound
from gradcomp.errors import GradcompError
from gradcomp.gossip import Choco, SimpleGossip, make_topology
from torch_compressors.gossip import Transport
from torch_compressors.gossip.groups import GossipGroups
from torch_compressors.gossip.pair import Pair

RANKS = 2
HALF = np.zeros(20, np.uint8)
WHOLE = np.zeros(40, np.uint8)
RING = make_topology("ring", RANKS)

cases = Cases()


def error_of(honest: Callable[[], object], hostile: Callable[[], object]) -> str:
    """The error of rank 0."""
    try:
        if dist.get_rank() == 0:
            honest()
            return "none"
        with suppress(GradcompError):  # rank 0 has gone
            hostile()
    except GradcompError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def in_a_round(message: np.ndarray, name: str = "0", *, varies: bool = False) -> str:
    """Rank 1 sends ``message`` in an exchange of ``name``."""
    transport = Transport(timeout=3, retries=0)

    def honest() -> GossipRound:
        shapes = {"w": (5, 2)}
        one = Choco(RING, 0, shapes, codec="sign") if varies else SimpleGossip(RING, 0)
        return one.round(np.ones(10, np.float32))

    def hostile() -> GossipRound:
        yield Exchange(name, {0: message}, [0], 2**20 if varies else 40, varies)

    return error_of(lambda: transport.run(honest()), lambda: transport.run(hostile()))


@cases
def a_short_message() -> str:
    return in_a_round(HALF)


@cases
def a_message_of_another_round() -> str:
    return in_a_round(WHOLE, "1")


@cases
def a_size_above_the_largest_message() -> str:
    return in_a_round(np.zeros(4000, np.uint8), varies=True)


def after_a_size(size: int) -> str:
    """Rank 1 announces ``size`` bytes, and sends 10."""
    transport = Transport(timeout=3, retries=0)

    def honest() -> None:
        transport.run(Choco(RING, 0, {"w": (5, 2)}, codec="sign").round(np.ones(10, np.float32)))

    def hostile() -> GossipRound:
        yield Exchange("0, sizes", {0: np.array([size]).view(np.uint8)}, [0], 8)
        yield Exchange("0", {0: HALF[:10]}, [0], 1000)

    return error_of(honest, lambda: transport.run(hostile()))


@cases
def sizes_that_no_message_has() -> list[str]:
    return [after_a_size(size) for size in (-1, 2**31, 2**62)]


@cases
def a_short_message_after_its_size() -> str:
    return after_a_size(20)


def over_a_pair(honest: Callable[[Pair], object], hostile: Callable[[Pair], object]) -> str:
    pair = Pair(1 - dist.get_rank(), GossipGroups([(0, 1)], timedelta(seconds=3)), 3, 0)
    return error_of(lambda: honest(pair), lambda: hostile(pair))


def serve(pair: Pair) -> None:
    pair.serve(WHOLE.nbytes, lambda question: question)


@cases
def an_unknown_kind() -> str:
    def hostile(pair: Pair) -> None:
        with pair._groups.request(pair._ranks) as group:
            pair._begin(7, group)

    return over_a_pair(serve, hostile)


@cases
def a_short_question() -> str:
    return over_a_pair(serve, lambda pair: pair.ask(HALF))


@cases
def a_short_answer() -> str:
    return over_a_pair(
        lambda pair: pair.ask(WHOLE), lambda pair: pair.serve(WHOLE.nbytes, lambda _: HALF)
    )


if __name__ == "__main__":
    run_forks(cases, Path(sys.argv[1]), RANKS)
