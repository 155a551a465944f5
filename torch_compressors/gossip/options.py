"""Settings of `GossipDataParallel`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from gradcomp.errors import GradcompError
from gradcomp.gossip import Gossip, PeersSchedule, Topology, make_gossip, make_topologies

__all__ = ["GossipOptions"]

_ALIASES = {"dpsgd": "gossip", "sgp": "push_sum", "osgp": "push_sum"}
_TOPOLOGIES = {"push_sum": "npdde", "quantized_push_sum": "exponential"}
"""Topologies by default, where it is not the ring."""
_SEEDED = ("choco", "deepsqueeze", "moniqua", "powergossip", "quantized_push_sum")


@dataclass(frozen=True)
class GossipOptions:
    """Settings of `GossipDataParallel`, equal on all ranks except for ``timeout`` and ``retries``.

    Attributes:
        algorithm: one of the names in `GossipDataParallel`.
        topology: a name for `gradcomp.gossip.make_topology`, or a topology; by default ``npdde``
            for sgp and osgp, ``exponential`` for quantized_push_sum, ``ring`` for the others.
        weights: weights of topologies by name; see `gradcomp.gossip.mixing_matrix`.
        peers_per_step: peers per round, for changing topologies by name; or numbers by their first
            round, such as ``{0: 2, 1000: 1}``: see `gradcomp.gossip.make_topologies`.
        overlap: gossip while the next gradient is computed.
        synch_freq: with ``overlap``, number of further steps, at least 0, that a rank may make
            during a round before it waits: bounded staleness. 0: it waits after the next step.
            Above 0 results depend on timing.
        two_level: the ranks of a machine (started there by torchrun or horovodrun) share one model.
            They average gradients densely when the optimizer's step begins. Only their first rank
            gossips, with the first ranks of other machines; topologies then connect machines.
        ranks_per_node: with ``two_level``, the number of consecutive ranks that form a machine.
        seed: seed of topologies and algorithms; the same on every rank.
        check_replicas_every: with ``two_level``, number of steps from one comparison of all
            parameters inside the node to the next, before gradients are averaged; 0 for none. Above
            0 `GossipDataParallel.averaged` also compares its result over all ranks.
        timeout, retries: see `Transport`; a dead peer raises `gradcomp.errors.PeerError` in the
            optimizer's step.
        of_algorithm: keywords of the algorithm's class in `gradcomp.gossip`, such as ``gamma``.
    """

    algorithm: str = "sgp"
    topology: str | Topology | None = None
    weights: str = "auto"
    peers_per_step: PeersSchedule = 1
    overlap: bool = False
    synch_freq: int = 0
    two_level: bool = False
    ranks_per_node: int | None = None
    seed: int = 0
    check_replicas_every: int = 0
    timeout: float = 30.0
    retries: int = 2
    of_algorithm: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, **settings: Any) -> GossipOptions:
        """Settings by name; names that are none of the above go to the algorithm."""
        known = {setting.name for setting in fields(cls)} - {"of_algorithm"}
        return cls(
            **{name: value for name, value in settings.items() if name in known},
            of_algorithm={name: value for name, value in settings.items() if name not in known},
        )

    def compared(self) -> dict[str, Any]:
        """The settings by name that must be equal on all ranks."""
        alone = ("timeout", "retries", "of_algorithm")
        names = [setting.name for setting in fields(self) if setting.name not in alone]
        return {name: getattr(self, name) for name in names} | {
            f"option {name}": value for name, value in self.of_algorithm.items()
        }

    def check(self) -> None:
        """Check all that does not depend on the number of ranks or on the algorithm.

        The constructor does not check them, because ranks compare their settings first: a wrong
        value on one rank is then an error on all ranks, and no rank waits for it.

        Raises:
            GradcompError: a setting is not in its range, or needs another one.
        """
        if self.check_replicas_every < 0:
            raise GradcompError(
                f"check_replicas_every is {self.check_replicas_every}; it must be a number of "
                "steps, or 0 for no comparison"
            )
        if self.synch_freq < 0 or (self.synch_freq and not self.overlaps):
            raise GradcompError(
                f"synch_freq is {self.synch_freq}; it must be at least 0, and above 0 with "
                "overlap=True alone"
            )
        if self.ranks_per_node is not None and not self.two_level:
            raise GradcompError(
                f"ranks_per_node is {self.ranks_per_node}, which goes with two_level=True alone"
            )
        if isinstance(self.topology, Topology) and (
            self.peers_per_step != 1 or self.weights != "auto"
        ):
            raise GradcompError(
                f"peers_per_step is {self.peers_per_step} and weights is {self.weights!r}, which "
                f"work only with a topology by name; '{self.topology.name}' has its own"
            )

    @property
    def overlaps(self) -> bool:
        """Whether a round runs during the next step."""
        return self.overlap or self.algorithm == "osgp"

    def topologies(self, count: int) -> dict[int, Topology]:
        """The topologies by their first round, for ``count`` ranks, or nodes with ``two_level``.

        Raises:
            GradcompError: the topology is of another size; or as `make_topologies`.
        """
        topology = self.topology
        if topology is None:
            topology = _TOPOLOGIES.get(self._name, "ring")
        if isinstance(topology, str):
            return make_topologies(
                topology,
                count,
                peers_per_step=self.peers_per_step,
                weights=self.weights,
                seed=self.seed,
            )
        if topology.world_size != count:
            units = "nodes" if self.two_level else "ranks"
            raise GradcompError(
                f"'{topology.name}' is for {topology.world_size} {units}, and the job has {count}"
            )
        return {0: topology}

    def gossip(self, topology: Topology, rank: int, shapes: Mapping[str, Sequence[int]]) -> Gossip:
        """One rank's part of the algorithm; arguments and errors are those of `make_gossip`.

        Raises:
            GradcompError: also for an option that is out of its range.
        """
        seed = {"seed": self.seed} if self._name in _SEEDED else {}
        try:
            return make_gossip(self._name, topology, rank, shapes, **{**seed, **self.of_algorithm})
        except GradcompError:
            raise
        except ValueError as error:
            raise GradcompError(str(error)) from error

    @property
    def _name(self) -> str:
        return _ALIASES.get(self.algorithm, self.algorithm)
