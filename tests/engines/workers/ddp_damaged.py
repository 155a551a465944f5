"""Rank 1 answers requests of rank 0's `GlooEngine` with damaged messages; rank 0 prints its errors.

First both ranks ask for a sum that Gloo refuses.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist

from gradcomp.adapter_api import AllGather, AllReduce, Broadcast
from gradcomp.errors import ConfigError, ProtocolError
from torch_compressors import init_process_group
from torch_compressors.gloo.engine import GlooEngine, message_limit
from torch_compressors.gloo.messages import BROADCASTS, MESSAGES

LIMIT = message_limit([1000], 0)

# By name: the size that a message claims, and the bytes that follow it.
DAMAGED = {
    "2^64-1": (2**64 - 1, 0),
    "2^63": (2**63, 0),
    "2^40": (2**40, 0),
    "limit+1": (LIMIT + 1, 8),
    "short": (100, 0),
    "without a mark": (100, 100),
}

# By name: the sizes of two requests' parts in a message, which 5 bytes follow.
PAIRS = {
    "second 2^63": (5, 2**63),
    "both 2^63": (2**63, 2**63),
    "short pair": (5, 100),
}


def main() -> None:
    init_process_group()
    group = dist.new_group(backend="gloo")
    engine = GlooEngine({"all": group}, LIMIT)
    try:
        engine.finish(engine.start(AllReduce("int16", np.zeros(5, np.int16))))
    except ConfigError as error:
        print(f"refused: {error}", flush=True)
    for name, (size, count) in DAMAGED.items():
        for make in (AllGather, Broadcast):
            if dist.get_rank() == 1:
                claimed = 2 * size if make is Broadcast and size == LIMIT + 1 else size
                answer(group, [claimed], count, BROADCASTS if make is Broadcast else MESSAGES)
                continue
            try:
                engine.finish(engine.start(make(name, np.zeros(5, np.uint8))))
            except ProtocolError as error:
                print(f"{make.kind} {name}: {error}", flush=True)
    for name, sizes in PAIRS.items():
        if dist.get_rank() == 1:
            answer(group, sizes, 5)
            continue
        first, _ = (engine.start(AllGather(one, np.zeros(5, np.uint8))) for one in (name, "other"))
        try:
            engine.finish(first)
        except ProtocolError as error:
            print(f"pair {name}: {error}", flush=True)
    dist.barrier()


def answer(group: dist.ProcessGroup, sizes: Sequence[int], count: int, tag: int = MESSAGES) -> None:
    """Receive rank 0's message, and send one that claims some sizes and has ``count`` bytes."""
    received = torch.empty(2**16, dtype=torch.uint8)
    receiving = group.recv([received], 0, tag)
    head = np.array(sizes, "<u8").view(np.uint8)
    message = np.concatenate([head, np.ones(count, np.uint8)])
    group.send([torch.from_numpy(message)], 0, tag).wait()
    receiving.wait()


if __name__ == "__main__":
    main()
