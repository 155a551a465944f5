"""Settings of training by gossip: names, ranges, topologies."""

from __future__ import annotations

from typing import Any

import pytest

from gradcomp.errors import GradcompError
from gradcomp.gossip import Choco, PushSum, SimpleGossip, make_topology
from torch_compressors.gossip import GossipOptions

SHAPES = {"w": (3, 2)}


def test_other_names_are_the_algorithms() -> None:
    options = GossipOptions.of(algorithm="choco", seed=3, gamma=0.5, of_algorithm=1)
    assert options == GossipOptions("choco", seed=3, of_algorithm={"gamma": 0.5, "of_algorithm": 1})
    with pytest.raises(GradcompError, match="unexpected keyword argument 'of_algorithm'"):
        options.gossip(make_topology("ring", 3), 0, SHAPES)


def test_all_but_times_are_compared() -> None:
    usual = GossipOptions.of(codec="sign").compared()
    assert GossipOptions.of(codec="sign", timeout=1.0, retries=0).compared() == usual
    changed: dict[str, Any] = {
        "algorithm": "dpsgd",
        "topology": "ring",
        "weights": "uniform",
        "peers_per_step": 2,
        "overlap": True,
        "synch_freq": 1,
        "two_level": True,
        "ranks_per_node": 2,
        "seed": 1,
        "check_replicas_every": 1,
    }
    assert [*usual] == [*changed, "option codec"]
    for name, value in changed.items():
        found = GossipOptions.of(codec="sign", **{name: value}).compared()
        assert found == usual | {name: value} != usual


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"check_replicas_every": -1}, "check_replicas_every is -1; it must be a number of steps"),
        ({"synch_freq": -1, "overlap": True}, "synch_freq is -1; it must be at least 0"),
        ({"synch_freq": 1}, "above 0 with overlap=True alone"),
        ({"ranks_per_node": 2}, "ranks_per_node is 2, which goes with two_level=True alone"),
        ({"topology": make_topology("ring", 4), "peers_per_step": 2}, "'ring' has its own"),
        ({"topology": make_topology("ring", 4), "weights": "uniform"}, "'ring' has its own"),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(GradcompError, match=message):
        GossipOptions.of(**settings).check()


def test_osgp_overlaps() -> None:
    options = GossipOptions("osgp", synch_freq=2)
    options.check()
    assert options.overlaps
    assert not GossipOptions("sgp").overlaps


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [("sgp", "npdde"), ("quantized_push_sum", "exponential"), ("dpsgd", "ring")],
)
def test_an_algorithm_has_its_topology(algorithm: str, name: str) -> None:
    (topology,) = GossipOptions(algorithm).topologies(4).values()
    assert topology.name == name
    assert topology.world_size == 4


def test_topologies_by_round_and_by_size() -> None:
    assert [*GossipOptions(peers_per_step={0: 2, 5: 1}).topologies(8)] == [0, 5]
    ring = make_topology("ring", 4)
    assert GossipOptions(topology=ring).topologies(4) == {0: ring}
    with pytest.raises(GradcompError, match="'ring' is for 4 ranks, and the job has 8"):
        GossipOptions(topology=ring).topologies(8)
    with pytest.raises(GradcompError, match="'ring' is for 4 nodes, and the job has 2"):
        GossipOptions(topology=ring, two_level=True).topologies(2)


@pytest.mark.parametrize(
    ("algorithm", "kind"),
    [("dpsgd", SimpleGossip), ("sgp", PushSum), ("osgp", PushSum), ("choco", Choco)],
)
def test_algorithms_by_name(algorithm: str, kind: type) -> None:
    options = GossipOptions(algorithm, topology="ring")
    assert type(options.gossip(make_topology("ring", 3), 1, SHAPES)) is kind


def test_an_option_out_of_its_range_is_an_error_of_gradcomp() -> None:
    options = GossipOptions.of(algorithm="dpsgd", gamma=3.0)
    with pytest.raises(GradcompError, match=r"gamma is 3\.0"):
        options.gossip(make_topology("ring", 3), 0, SHAPES)
