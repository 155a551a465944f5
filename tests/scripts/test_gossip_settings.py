"""The gossip section of a training configuration."""

import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import yaml

from gradcomp.config.sections import RESERVED_SECTIONS
from gradcomp.errors import ConfigError
from torch_compressors import AsyncGossipDataParallel, GossipDataParallel, init_process_group
from training.settings.gossip import GossipSettings
from training.settings.outer import OuterSettings
from training.settings.train import TrainSettings

CONFIGS = sorted((Path(__file__).resolve().parents[2] / "configs" / "gossip").glob("*.yaml"))


def settings_of(**gossip):
    return GossipSettings.of({"algorithm": "sgp", **gossip}, lambda _: "x.yaml")


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("algorithm", "sgd", "one of dpsgd, sgp, osgp, adpsgd"),
        ("topology", "circle", "ring, unidirectional_ring"),
        ("weights", "best", "auto, uniform"),
        ("peers_per_step", 0, ">= 1"),
        ("peers_per_step", True, ">= 1"),
        ("peers_per_step", {5: 1}, "from 0 on"),
        ("peers_per_step", {0: 1, 5: 0}, "from 0 on"),
        ("overlap", 1, "true or false"),
        ("synch_freq", -1, ">= 0"),
        ("ranks_per_node", 0, ">= 1"),
        ("timeout", 0, "> 0, in seconds"),
        ("retries", -1, ">= 0"),
        ("gamma", 3, "(0, 2]"),
        ("bits", 9, "1 to 8"),
        ("rounding", "up", "stochastic or nearest"),
    ],
)
def test_bad_value_is_named_with_its_source_and_what_is_allowed(key, value, allowed):
    with pytest.raises(ConfigError) as error:
        settings_of(**{key: value})
    start = re.escape(f"x.yaml: gossip.{key}: got {value!r}")
    assert re.match(rf"{start}( \([a-z ]+\))?; expected .*{re.escape(allowed)}", str(error.value))


@pytest.mark.parametrize(
    ("gossip", "remedy"),
    [
        ({"codec": "sign"}, "gossip.codec: got 'sign', which sgp does not take; remove"),
        ({"algorithm": "choco", "bits": 4}, r"choco takes codec, gamma"),
        ({"algorithm": "adpsgd", "two_level": True}, "adpsgd does not take; remove the key"),
        ({"algorithm": "adpsgd", "peers_per_step": 2}, "adpsgd does not take; remove the key"),
        ({"synch_freq": 2}, "overlap: true alone"),
        ({"ranks_per_node": 2}, "two_level: true alone"),
        ({"toplogy": "ring"}, "did you mean 'topology'?"),
    ],
)
def test_keys_that_do_not_go_together(gossip, remedy):
    with pytest.raises(ConfigError, match=remedy):
        settings_of(**gossip)


def test_gradcomp_reserves_the_sections_of_training():
    own = {TrainSettings.section, GossipSettings.section, OuterSettings.section}
    assert own == {key for key, owner in RESERVED_SECTIONS.items() if owner == "scripts/train.py"}


def test_a_section_that_is_none():
    with pytest.raises(ConfigError, match=r"gossip: got 3; expected a mapping such as \{algorithm"):
        GossipSettings.of(3, lambda _: "x.yaml")
    with pytest.raises(ConfigError, match=r"gossip\.algorithm: missing; expected one of dpsgd"):
        GossipSettings.of({}, lambda _: "x.yaml")


@pytest.fixture(scope="module")
def alone():
    init_process_group()
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_configs_train_every_task(path, alone):
    """On one rank only; two_level is told about its launcher."""
    gossip = yaml.safe_load(path.read_text())["gossip"]
    if gossip.get("two_level"):
        gossip["ranks_per_node"] = 1
    settings = settings_of(**gossip)
    wrapped = settings.wrap(torch.nn.Linear(3, 3), seed=0, steps_per_epoch=7)
    kind = AsyncGossipDataParallel if settings.algorithm == "adpsgd" else GossipDataParallel
    assert type(wrapped) is kind
    optimizer = wrapped.attach(torch.optim.SGD(wrapped.parameters(), lr=0.1))
    before = wrapped.module.weight.detach().clone()
    wrapped(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    wrapped.synchronize()
    assert not torch.equal(before, wrapped.module.weight)


def test_every_algorithm_has_a_config():
    named = {yaml.safe_load(path.read_text())["gossip"]["algorithm"] for path in CONFIGS}
    fields = GossipSettings.model_fields["algorithm"]
    assert named == set(fields.description.removeprefix("one of ").split(", "))


def test_peers_are_scheduled_by_epoch(alone):
    schedule = settings_of(peers_per_step={0: 1, 3: 1})
    wrapped = schedule.wrap(torch.nn.Linear(3, 3), seed=0, steps_per_epoch=7)
    assert sorted(wrapped._topologies) == [0, 21]


def test_sections_share_their_rules():
    with pytest.raises(ConfigError, match=r"train: got 3; expected a mapping such as \{task"):
        TrainSettings.from_mapping({"train": 3}, lambda _: "x.yaml")
