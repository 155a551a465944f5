"""Workers that are not equal: python -m workers.byteps_apart WAY,... SPEC.

Worker 1 loads a state of another step (``load``), skips a call of set_epoch (``epoch``), trains
from another step (``step``), sets another loss scale (``scale``), has another version
(``version``), changes its own weights (``drift``) or does not take part in a comparison
(``absent``). The errors of all ways but the last one are printed, and do not end the worker.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace

import byteps.torch as bps
import torch

from byteps_compressors.gather import TIMEOUT
from byteps_compressors.torch import DistributedOptimizer
from gradcomp import Config
from gradcomp.errors import ProtocolError
from gradcomp.runtime.agree import agreement


def differ(way: str, spec: str) -> None:
    """Train two models that are not equal, of names that begin with the way."""
    odd = bps.rank() == 1
    if way == "version" and odd:
        agreement.installed_version = lambda: "9.9"
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(100, 100), torch.nn.Linear(100, 100))
    if way == "dtype" and odd:
        model.double()
    named = [(f"{way}.{name}", p) for name, p in model.named_parameters()]
    config = Config.from_spec(spec)
    optimizer = DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-4),
        named,
        config.model_copy(update={"check_replicas_every": 3}),
    )

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=False)
            model(torch.randn(4, 100)).square().sum().backward()
            optimizer.step()

    train(3)
    state = optimizer.compression.state_dict()
    train(3)
    print(f"{way}: equal so far", flush=True)
    if way == "load":
        train(1)
        optimizer.compression.load_state_dict(
            state if odd else {**state, "rounds": dict.fromkeys(state["rounds"], 7)}
        )
    elif way == "epoch" and not odd:
        optimizer.compression.set_epoch(1)
    elif way == "step" and odd:
        for tensor in optimizer.compression._tensors.values():
            tensor.progress = replace(tensor.progress, steps=3)
    elif way == "scale":
        optimizer.compression.set_loss_scale(2.0 if odd else 4.0)
    elif way == "drift" and odd:
        with torch.no_grad():
            model[1].weight[5, 7] += 0.5
    elif way == "absent":
        if odd:
            time.sleep(600)
        os.environ[TIMEOUT] = "3"
        optimizer.compression.check_replicas()
    train(3)
    print("trained on", flush=True)


def main(ways: str, spec: str) -> None:
    bps.init()
    *printed, last = ways.split(",")
    for way in printed:
        try:
            differ(way, spec)
        except ProtocolError as error:
            print(f"ProtocolError: {error}", flush=True)
    differ(last, spec)


if __name__ == "__main__":
    main(*sys.argv[1:])
