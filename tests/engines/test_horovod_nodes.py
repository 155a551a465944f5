"""Nodes from Horovod's ranks, without starting Horovod."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import horovod.torch as hvd
import pytest

from gradcomp import Config
from gradcomp.errors import ConfigError
from horovod_compressors import nodes
from support.pipelines import configured


class Table:
    """A stand-in for Horovod's process sets, with the methods that nodes.py uses."""

    def __init__(self, sets: dict[int, list[int]], homogeneous: bool) -> None:
        self.sets = sets
        self.homogeneous = homogeneous

    def _get_process_set_ids_and_ranks(self) -> dict[int, list[int]]:
        return self.sets

    def is_homogeneous(self) -> bool:
        return self.homogeneous


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Table]:
    def put(rank: int, size: int, local: tuple[int, int], node: int, same: bool = True) -> Table:
        values = {"rank": rank, "size": size, "cross_rank": node}
        values |= {"local_rank": local[0], "local_size": local[1]}
        for name, value in values.items():
            monkeypatch.setattr(hvd, name, lambda value=value: value)
        table = Table({0: list(range(size))}, same)
        monkeypatch.setattr(hvd.mpi_ops, "_basics", table)
        return table

    return put


def config_of(exchange: str = "two_level", asked: int | None = None) -> Config:
    return configured("int8", exchange=exchange, ranks_per_node=asked)


WORLD: Any = hvd.global_process_set


def test_machines_are_nodes(place: Callable[..., Table]) -> None:
    place(5, 8, (1, 4), 1)
    assert nodes.ranks_per_node(hvd, config_of()) == 4
    assert nodes.ranks_per_node(hvd, config_of(asked=2)) == 2
    assert nodes.ranks_per_node(hvd, config_of("gather", 2)) == 1
    assert nodes.node_problem(hvd, config_of(), WORLD) is None
    assert nodes.node_problem(hvd, config_of(asked=2), WORLD) is None


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ((0, 3, (0, 2), 0, False), "unequal numbers of ranks, this one 2: start the same number"),
        ((2, 3, (0, 1), 1, False), "unequal numbers of ranks, this one 1"),
        ((1, 4, (0, 2), 1), "rank 1 is local rank 0 of node 1, and two_level needs consecutive"),
    ],
)
def test_what_is_no_nodes(place: Callable[..., Table], where: tuple[Any, ...], says: str) -> None:
    place(*where)
    problem = nodes.node_problem(hvd, config_of(), WORLD)
    assert problem is not None
    assert says in problem
    assert "compress.ranks_per_node" in problem
    assert nodes.node_problem(hvd, config_of("gather"), WORLD) is None
    assert nodes.node_problem(hvd, config_of(asked=1), WORLD) is None


def test_sets_that_are_there_are_taken(place: Callable[..., Table]) -> None:
    table = place(2, 4, (0, 4), 0)
    table.sets |= {1: [0, 1], 4: [2, 3], 7: [0, 2]}
    sets = nodes.group_sets(hvd, WORLD, 2)
    assert {group: one.process_set_id for group, one in sets.items()} == {
        "all": 0,
        "node": 4,
        "leaders": 7,
    }
    place(3, 4, (0, 4), 0).sets = table.sets
    assert set(nodes.group_sets(hvd, WORLD, 2)) == {"all", "node"}
    assert nodes.group_sets(hvd, WORLD, 1) == {"all": WORLD}
    assert nodes.group_sets(hvd, WORLD, 4) == {"all": WORLD, "node": WORLD}


def test_sets_that_cannot_be_made(
    place: Callable[..., Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(ranks: list[int]) -> None:
        raise ValueError("no new ones")

    place(2, 4, (0, 4), 0)
    monkeypatch.setattr(hvd, "add_process_set", refuse)
    with pytest.raises(ConfigError, match=r"no new ones\): set HOROVOD_DYNAMIC_PROCESS_SETS=1"):
        nodes.group_sets(hvd, WORLD, 2)
