"""Process groups of compressions, which later compressions of the same ranks use again.

A group has threads and connections, and PyTorch keeps it until the job ends. It cannot be destroyed when its
compression is gone: ranks notice that at different times, and PyTorch gives the names of destroyed groups to
later ones.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary, finalize

import torch.distributed as dist

from torch_compressors.gloo.gather import gather_texts

__all__ = ["LentGroups", "lend"]

_Name = TypeVar("_Name", bound=Hashable)


class LentGroups(Generic[_Name]):
    """The process groups of one compression, by name, until `give_back`.

    Attributes:
        groups: those that this rank is in.
        on_devices: groups of all ranks for memory of devices, by their backends.
        messages: those that have not arrived: see `torch_compressors.gloo.messages.GroupMessages`.
    """

    def __init__(self, groups: Mapping[_Name, dist.ProcessGroup]) -> None:
        self.groups = groups
        self.on_devices: dict[str, dist.ProcessGroup] = {}
        self.messages: set[object] = set()
        self._under_way = 0
        self._counting = threading.Lock()  # gossip makes requests on several threads
        self._free = False

    @property
    def free(self) -> bool:
        """Whether another compression may take them: they are given back, and every request has its reply."""
        return self._free and self._under_way == 0

    def take(self) -> None:
        """Take them for a compression."""
        self._free = False

    def give_back(self) -> None:
        """Let another compression take them. With requests under way they are never used again."""
        self._free = True

    def until_gone(self, owner: object) -> finalize[[], object]:
        """Give them back when ``owner`` is garbage, or when the result is called."""
        give_back = finalize(owner, self.give_back)
        give_back.atexit = False
        return give_back

    def begin(self) -> None:
        """Count a request that begins."""
        with self._counting:
            self._under_way += 1

    def end(self) -> None:
        """Count a request that has its reply."""
        with self._counting:
            self._under_way -= 1


class _Entry(NamedTuple):
    key: tuple[object, ...]
    lent: LentGroups[Any]


# By the group of all their ranks. Ranks make the same entries in the same order.
_made: WeakKeyDictionary[dist.ProcessGroup, list[_Entry]] = WeakKeyDictionary()


def lend(
    world: dist.ProcessGroup,
    key: tuple[object, ...],
    make: Callable[[], Mapping[_Name, dist.ProcessGroup]],
) -> LentGroups[_Name]:
    """Groups that an earlier compression has given back on all ranks, or else new ones.

    All ranks call it together.

    Args:
        world: all ranks.
        key: of equal groups.
        make: makes new groups; all ranks call it together.
    """
    entries = _made.setdefault(world, [])
    count = len(entries)
    if entries:
        found = _common(world, entries, key)
        # Compressions in reference cycles have not given their groups back yet. A collection takes a good part
        # of a second, so it comes when their number has doubled.
        if found is None and count >= 4 and count & (count - 1) == 0:
            gc.collect()
            found = _common(world, entries, key)
        if found is not None:
            lent: LentGroups[_Name] = entries[found].lent
            lent.take()
            return lent
    lent = LentGroups(make())
    entries.append(_Entry(key, lent))
    return lent


def _common(world: dist.ProcessGroup, entries: list[_Entry], key: tuple[object, ...]) -> int | None:
    """The first entry that is free on all ranks; None if there is none."""
    free = [str(n) for n, entry in enumerate(entries) if entry.key == key and entry.lent.free]
    of_ranks = [set(text.split()) for text in gather_texts(" ".join(free), world)]
    return min(map(int, set(free).intersection(*of_ranks)), default=None)
