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

    Args:
        groups: the ranks of each group.
        limit: longest wait in the groups' collectives.
    """
    all_groups = {tuple(ranks): dist.new_group(list(ranks), limit, "gloo") for ranks in groups}
    rank = dist.get_rank()
    return {ranks: group for ranks, group in all_groups.items() if rank in ranks}
