"""The ``gossip`` section of a configuration; docs/training.md describes every key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, StrictBool, StrictInt, StrictStr
from torch import nn

from gradcomp.errors import ConfigError
from gradcomp.gossip import TOPOLOGIES, WEIGHTS
from torch_compressors import AsyncGossipDataParallel, GossipDataParallel
from torch_compressors.gossip import DecentralizedModule
from training.settings.section import Number, Section

__all__ = ["GossipSettings"]

_STEP_SIZE = ("gamma",)
_CODED = ("codec", "gamma")

_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "dpsgd": _STEP_SIZE,
    "sgp": (),
    "osgp": (),
    "adpsgd": (),
    "powergossip": (
        *("compression_rank", "num_iterations", "warm_start", "round_weights"),
        *_STEP_SIZE,
    ),
    "choco": _CODED,
    "quantized_push_sum": _CODED,
    "deepsqueeze": _CODED,
    "moniqua": ("theta", "bits", "rounding", *_STEP_SIZE),
}
"""Algorithm -> keys that only some algorithms take."""

_SYNCHRONOUS = ("weights", "peers_per_step", "overlap", "two_level", "ranks_per_node")
"""Keys of all algorithms but adpsgd."""


def _peers(value: object) -> object:
    def is_count(number: object, least: int) -> bool:
        return isinstance(number, int) and not isinstance(number, bool) and number >= least

    if is_count(value, 1):
        return value
    if (
        isinstance(value, Mapping)
        and 0 in value
        and all(is_count(epoch, 0) and is_count(peers, 1) for epoch, peers in value.items())
    ):
        return dict(value)
    raise ValueError("neither a number nor a schedule")


class GossipSettings(Section):
    """The decentralized algorithm, its options, and the topology of ranks.

    Keys that are None take the default of the algorithm's class in `gradcomp.gossip`.
    """

    section = "gossip"
    example = "{algorithm: sgp}"

    algorithm: Literal[
        "dpsgd",
        "sgp",
        "osgp",
        "adpsgd",
        "powergossip",
        "choco",
        "quantized_push_sum",
        "deepsqueeze",
        "moniqua",
    ] = Field(description=f"one of {', '.join(_OPTIONS)}")
    topology: Literal[TOPOLOGIES] | None = Field(  # type: ignore[valid-type]
        None, description=f"one of {', '.join(TOPOLOGIES)}, or none: the algorithm's own"
    )
    weights: Literal[WEIGHTS] = Field(  # type: ignore[valid-type]
        "auto", description=f"one of {', '.join(WEIGHTS)}"
    )
    peers_per_step: Annotated[int | dict[int, int], PlainValidator(_peers)] = Field(
        1, description="an integer >= 1, or such numbers by the epoch, from 0 on: {0: 2, 10: 1}"
    )
    overlap: StrictBool = Field(False, description="true or false")
    synch_freq: StrictInt = Field(0, ge=0, description="an integer >= 0")
    two_level: StrictBool = Field(False, description="true or false")
    ranks_per_node: StrictInt | None = Field(
        None, ge=1, description="an integer >= 1, or none: the launcher's"
    )
    timeout: Number = Field(30.0, gt=0, description="a number > 0, in seconds")
    retries: StrictInt = Field(2, ge=0, description="an integer >= 0")
    gamma: Number | None = Field(None, gt=0, le=2, description="a number in (0, 2]")
    codec: StrictStr | None = Field(None, description="the spec of a codec, such as sign")
    compression_rank: StrictInt | None = Field(None, ge=1, description="an integer >= 1")
    num_iterations: StrictInt | None = Field(None, ge=1, description="an integer >= 1")
    warm_start: StrictBool | None = Field(None, description="true or false")
    round_weights: StrictBool | None = Field(None, description="true or false")
    theta: Number | None = Field(None, gt=0, description="a number > 0")
    bits: StrictInt | None = Field(None, ge=1, le=8, description="an integer from 1 to 8")
    rounding: Literal["stochastic", "nearest"] | None = Field(
        None, description="stochastic or nearest"
    )

    def check_combinations(self) -> None:
        """See `Section`."""
        options = _OPTIONS[self.algorithm]
        others = {key for keys in _OPTIONS.values() for key in keys} - {*options}
        if self.algorithm == "adpsgd":
            others |= {*_SYNCHRONOUS}
        for key, field in type(self).model_fields.items():
            value = getattr(self, key)
            if key in others and value != field.default:
                takes = ", ".join(options) or "no option of its own"
                raise ConfigError(
                    f"gossip.{key}: got {value!r}, which {self.algorithm} does not take; remove "
                    f"the key ({self.algorithm} takes {takes})"
                )
        overlaps = self.overlap or self.algorithm in ("osgp", "adpsgd")
        if self.synch_freq and not overlaps:
            raise ConfigError(
                f"gossip.synch_freq: got {self.synch_freq}, which goes with overlap: true alone"
            )
        if self.ranks_per_node is not None and not self.two_level:
            raise ConfigError(
                f"gossip.ranks_per_node: got {self.ranks_per_node}, which goes with two_level: "
                "true alone"
            )

    def wrap(self, model: nn.Module, *, seed: int, steps_per_epoch: int) -> DecentralizedModule:
        """Wrap ``model`` for training by gossip; every rank must call it.

        Raises GradcompError where ranks, topology and algorithm do not fit.
        """
        peers = self.peers_per_step
        if isinstance(peers, dict):
            peers = {epoch * steps_per_epoch: number for epoch, number in peers.items()}
        options: dict[str, Any] = {
            "synch_freq": self.synch_freq,
            "seed": seed,
            "timeout": self.timeout,
            "retries": self.retries,
        }
        if self.topology is not None:
            options["topology"] = self.topology
        if self.algorithm == "adpsgd":
            return AsyncGossipDataParallel(model, **options)
        options |= {key: getattr(self, key) for key in _SYNCHRONOUS}
        options["peers_per_step"] = peers
        given = {key: getattr(self, key) for key in _OPTIONS[self.algorithm]}
        options |= {key: value for key, value in given.items() if value is not None}
        return GossipDataParallel(model, algorithm=self.algorithm, **options)
