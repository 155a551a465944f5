"""Process groups of some ranks each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

import torch.distributed as dist

__all__ = ["own_groups"]


def own_groups(
    groups: Iterable[Sequence[int]], limit: timedelta
) -> dict[tuple[int, ...], dist.ProcessGroup]:
    """Make a Gloo group for each of ``groups``; returns the groups that this rank is in.

    Every rank of the job must call it with the same groups. The alternative,
    ``use_local_synchronization``, names groups by their number on each rank, so that ranks would
    disagree.
    """
    made = {tuple(one): dist.new_group(list(one), limit, "gloo") for one in groups}
    rank = dist.get_rank()
    return {ranks: group for ranks, group in made.items() if rank in ranks}
