"""The marks of the ranks of a Horovod job, in the store that horovodrun keeps for Gloo.

Horovod's own stall check runs on rank 0 and needs an answer of every rank, so a stopped process
silences it. A rank renews a mark instead, when it waits for long or when its job has failed. A rank
does not answer if its mark does not change.
"""

from __future__ import annotations

import os
from functools import lru_cache

from gradcomp.adapter_api import HttpStore, Marks

__all__ = ["job_marks", "seconds_of"]

_HTTP_SECONDS = 5.0


def seconds_of(variable: str, default: float) -> float:
    """A time limit of Horovod from the environment, in seconds."""
    try:
        return float(os.environ.get(variable, ""))
    except ValueError:
        return default


@lru_cache
def job_marks(prefix: str = "rank") -> Marks | None:
    """The marks of all ranks, by prefix; None without horovodrun on Gloo, and for elastic jobs."""
    address = os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR", "")
    port = os.environ.get("HOROVOD_GLOO_RENDEZVOUS_PORT", "")
    rank = os.environ.get("HOROVOD_RANK", "")
    size = os.environ.get("HOROVOD_SIZE", "")
    numbers = port.isdigit() and rank.isdigit() and size.isdigit()
    if not address or not numbers or os.environ.get("HOROVOD_ELASTIC") == "1":
        return None
    store = HttpStore(f"http://{address}:{port}/gradcomp", _HTTP_SECONDS)
    return Marks(store, prefix, int(rank), range(int(size)))
