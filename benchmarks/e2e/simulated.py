"""Computed, not measured, step times, for machines without network namespaces.

All ranks run in this process, one after the other (gradcomp.Loopback), and the time of each one's
arithmetic is measured. Links are ideal token buckets: the bytes that a rank sends, by the usual
algorithm of each collective, take their number over the rate. Nothing overlaps, and there is no
latency.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from typing import Any

import torch

from e2e.contenders import Contender
from e2e.model import Synthetic, random_numbers
from e2e.worker import config_of
from gradcomp import Loopback
from gradcomp.tools.model_shapes import model_shapes
from netlab import bits_per_second

__all__ = ["simulate"]

_STEPS = 3


def _on_the_link(sent: Counter[str], ranks: int) -> float:
    """Bytes sent by a rank for the bytes handed over.

    All-reduce and all-gather use a ring, all-to-all a direct exchange.
    """
    factors = {"allgather": ranks - 1.0, "alltoall": (ranks - 1) / ranks}
    ring = 2 * (ranks - 1) / ranks
    return sum(nbytes * factors.get(kind, ring) for kind, nbytes in sent.items())


def simulate(
    contender: Contender, model: str, compute_ms: float, ranks: int, rate: str
) -> dict[str, Any] | None:
    """A row in the form of a job's; None for contenders that are neither Horovod's nor ours."""
    speed = bits_per_second(rate) / 8
    if contender.kind in ("none", "fp16") and contender.engine == "horovod":
        width = 4 if contender.kind == "none" else 2
        nbytes = width * sum(map(math.prod, model_shapes(model).values()))
        sent, seconds = Counter({"allreduce": nbytes}), [0.0]
    elif contender.kind == "ours" and contender.engine == "horovod":
        sent, seconds = _arithmetic(contender, model, ranks)
    else:
        return None
    wire = _on_the_link(sent, ranks) / speed
    steps = sorted(compute_ms / 1e3 + wire + own_work for own_work in seconds)
    return {
        "engine": contender.engine,
        "contender": contender.name,
        "simulated": True,
        "median_seconds": steps[len(steps) // 2],
        "seconds": steps,
        "sent_bytes": sent.total(),
        "interface_bytes": _on_the_link(sent, ranks),
    }


def _arithmetic(contender: Contender, model: str, ranks: int) -> tuple[Counter[str], list[float]]:
    """Bytes handed over by a rank in a step, and the seconds of its own work in some steps."""
    torch.set_num_threads(1)
    numbers = random_numbers(model, ranks)
    models = [Synthetic(model, 0.0, numbers, rank) for rank in range(ranks)]
    gradients = {
        name: [replica.grads[i] for replica in models] for i, name in enumerate(models[0].names)
    }
    loopback = Loopback(config_of(contender.spec), ranks)
    loopback.step(gradients)  # allocates
    before = Counter(loopback.ranks[0].stats.sent_bytes)
    seconds = []
    for _ in range(_STEPS):
        began = time.perf_counter()
        loopback.step(gradients)
        seconds.append((time.perf_counter() - began) / ranks)
    sent = Counter(loopback.ranks[0].stats.sent_bytes)
    sent.subtract(before)
    return Counter({kind: nbytes // _STEPS for kind, nbytes in sent.items()}), seconds
