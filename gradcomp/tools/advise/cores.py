"""How a rank's own work and the threads of its engine share cores."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Cores"]


@dataclass(frozen=True)
class Cores:
    """The cores of a rank: those of its node, divided by the ranks.

    From two on, own work and the engine have a core each. With one or less they share it. Schedulers
    are fair: each gets half of what both share, or less if it wants less.

    Attributes:
        count: above 0, perhaps less than 1.
    """

    count: float

    @property
    def slow(self) -> float:
        """Factor by which work takes longer than on a core of its own, as ranks share cores."""
        return max(1.0, 1.0 / self.count)

    @property
    def _both(self) -> float:
        """What own work and the engine get together; each gets 1 without the other."""
        return min(max(1.0, self.count), 2.0)

    def own_speed(self, load: float) -> float:
        """Speed of own work beside the engine, in units of that without it.

        Args:
            load: of the engine's time, the part in which it works without own work beside it, in
                [0, 1]; in the rest it waits for the link or another rank.
        """
        return min(1.0, max(self._both - load, self._both / 2))

    def engine_speed(self, load: float) -> float:
        """Speed of the engine beside own work, in units of that without it.

        Args:
            load: see `own_speed`.
        """
        return min(1.0, (self._both - self.own_speed(load)) / load) if load else 1.0
