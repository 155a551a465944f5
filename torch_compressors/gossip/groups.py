"""Process groups of some ranks each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

import torch.distributed as dist

__all__ = ["own_groups"]


def own_groups(
    groups: Iterable[Sequence[int]], limit: timedelta
) -> dict[tuple[int, ...], dist.ProcessGroup]:
    """Make a group of Gloo of each of these ranks; returns those that this rank is in.

    Every rank of the job must call it with the same groups: with ``use_local_synchronization``
    names of groups depend on how many this rank is in, and ranks would soon not agree on them.
    """
    made = {tuple(one): dist.new_group(list(one), limit, "gloo") for one in groups}
    rank = dist.get_rank()
    return {ranks: group for ranks, group in made.items() if rank in ranks}
