"""Process groups of some ranks each, which later modules of the same ranks use again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

import torch.distributed as dist

from gradcomp.errors import StateError
from torch_compressors.gloo.groups import lend

__all__ = ["GossipGroups"]

_Ranks = tuple[int, ...]


class GossipGroups:
    """Groups of Gloo, of which this rank uses those that it is in, until `close` or until they are garbage.

    Every rank of the job must create one, with the same groups.

    Args:
        groups: the ranks of each group.
        limit: longest wait in the groups' collectives.
    """

    def __init__(self, groups: Iterable[Sequence[int]], limit: timedelta) -> None:
        world = dist.group.WORLD
        assert world is not None  # checked in DecentralizedModule
        members = tuple(tuple(ranks) for ranks in groups)
        self._lent = lend(world, ("gossip", members, limit), partial(_new_groups, members, limit))
        self._give_back = self._lent.until_gone(self)

    @contextmanager
    def request(self, ranks: _Ranks | None = None) -> Iterator[dist.ProcessGroup]:
        """A context for exchanges; its value is the group of ``ranks``, by default this rank's only group.

        After an error inside, no later module uses the groups: other ranks may still be in the exchange.

        Raises:
            StateError: they are closed.
        """
        if not self._give_back.alive:
            raise StateError(
                "this module is closed, and its process groups may be another one's: create it again"
            )
        if ranks is None:
            (group,) = self._lent.groups.values()
        else:
            group = self._lent.groups[ranks]
        self._lent.begin()
        yield group
        self._lent.end()

    def close(self) -> None:
        """Give the groups to a later module; no exchange may follow."""
        self._give_back()


def _new_groups(groups: Iterable[_Ranks], limit: timedelta) -> dict[_Ranks, dist.ProcessGroup]:
    """A new group for each of ``groups``; returns those that this rank is in.

    The alternative, ``use_local_synchronization``, names groups by their number on each rank, so that ranks
    would disagree.
    """
    all_groups = {ranks: dist.new_group(list(ranks), limit, "gloo") for ranks in groups}
    rank = dist.get_rank()
    return {ranks: group for ranks, group in all_groups.items() if rank in ranks}
