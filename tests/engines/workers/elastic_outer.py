"""A process of a job with outer steps that may be killed at any time; it logs each exchange.

Arguments: port of the store, name, file of the log, spec. The key "last" of the store has the number
of exchanges after which the job ends.
"""

from __future__ import annotations

import faulthandler
import json
import signal
import sys
import time
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from workers.runner import refused

from gradcomp.errors import ConfigError
from torch_compressors import ElasticOuterStep

EVERY = 5
SHAPE = (80, 64)


def main(port: int, name: str, log: str, spec: str) -> None:
    """Train until the job ends."""
    faulthandler.register(signal.SIGUSR1)  # so that a test that waits in vain can tell where
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", port, is_master=False)
    generator = torch.Generator().manual_seed(hash(name) % 2**31)
    model = torch.nn.Linear(SHAPE[1], SHAPE[0])
    options: dict[str, Any] = {"every": EVERY, "quorum": 2, "grace": 1.0, "timeout": 8.0}
    outer = ElasticOuterStep(spec, model, store=store, name=name, lr=1.0, momentum=0.0, **options)
    refused(lambda: outer.set_loss_scale(1024.0), ConfigError, "leave the call out")
    with open(log, "a", buffering=1) as lines:

        def note(change: float, samples: int) -> None:
            parameters = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
            residual = outer.state_dict()["compression"]["residual"]
            row = {
                "round": outer.rounds,
                "members": outer.members,
                "digest": hash(parameters.numpy().tobytes()),
                "sum": float(parameters.double().sum()),
                "residual": sum(float(one.double().sum()) for one in residual.values()),
                "change": change,
                "samples": samples,
            }
            print(json.dumps(row), file=lines)

        note(0.0, 0)
        change = 0.0
        while outer.rounds < int(store.get("last")):
            time.sleep(0.005)
            before = outer.rounds
            for p in model.parameters():
                step = torch.randn(p.shape, generator=generator)
                old = float(p.detach().double().sum())
                p.data.sub_(0.1 * step)
                change += old - float(p.detach().double().sum())
            outer.step()
            if outer.rounds != before:
                note(change, EVERY)
                change = 0.0
        assert outer.stats.total_bytes > 0


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
