"""Some steps, a checkpoint, and the steps after it, or these in a new job; each worker reports.

python -m workers.byteps_resume FOLDER REPORTS [first]
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import byteps.torch as bps
import torch
from workers.byteps_cases import NUMEL, SEED, TAIL, averages, gradient
from workers.runner import refused

from byteps_compressors.torch import Attached, attach
from gradcomp import StateError
from support.pipelines import config_of

STEPS = 3
TENSORS = {
    "topk": ("residual|topk(ratio=0.01)", NUMEL, torch.float32),
    "tail": ("residual|sign", TAIL, torch.float32),
    "no memory": ("onebit", NUMEL, torch.float32),
    "drawn": ("residual|qsgd(levels=3)", NUMEL, torch.float32),
    "small": ("residual|topk(k=4)", 40, torch.float16),
    "half": ("residual|topk(ratio=0.01)", NUMEL, torch.float16),
    "double": ("residual|sign", NUMEL, torch.float64),
}


def steps(first: int) -> dict[str, str]:
    """Some steps: a digest of each tensor's averages."""
    digests = {name: hashlib.sha256() for name in TENSORS}
    for step in range(first, first + STEPS):
        grads = {
            name: gradient(name, step, bps.rank(), numel, dtype)
            for name, (_, numel, dtype) in TENSORS.items()
        }
        for name, average in averages(grads).items():
            digests[name].update(average.numpy().tobytes())
    return {name: digest.hexdigest() for name, digest in digests.items()}


def check_states(attached: dict[str, Attached], states: dict[str, Any]) -> None:
    """Check the content of the states, and that states of other jobs are refused."""
    saved = {name: state["servers"] for name, state in states.items()}
    assert all((name in saved[name]) == (bps.rank() == 0) for name in TENSORS)
    # As if four workers had saved it: two workers load it, so servers' residuals are halved.
    one, state = attached["topk"], states["topk"]
    one.load_state_dict([{**state, "rank": rank, "world_size": 4} for rank in range(4)])
    for name, array in one.state_dict()["servers"].items():
        assert torch.equal(array, saved["topk"][name] / 2)
    # Only worker 0 has the states, but all workers must raise the error.
    foreign = {**state, "servers": {name: array[1:] for name, array in saved["topk"].items()}}
    reason = "state of another model" if bps.rank() == 0 else "another worker"
    refused(lambda: one.load_state_dict(foreign), StateError, reason)
    empty = {**state, "servers": {}}
    one.load_state_dict(empty)
    assert not one.state_dict()["servers"]


def main(folder: Path, reports: Path, first: bool) -> None:
    bps.init()
    attached = {
        name: attach(
            [(name, torch.empty(numel, dtype=dtype))], config_of(spec, SEED), server_feedback="on"
        )
        for name, (spec, numel, dtype) in TENSORS.items()
    }

    def load(states: dict[str, Any]) -> None:
        for name, one in attached.items():
            one.load_state_dict(states[name])

    path = folder / f"state{bps.rank()}.pt"
    report = {}
    if first:
        steps(0)
        torch.save({name: one.state_dict() for name, one in attached.items()}, path)
        report["later"] = steps(STEPS)
        states = torch.load(path, weights_only=True)
        check_states(attached, states)
        load({name: {**state, "servers": {}} for name, state in states.items()})
        report["forgotten"] = steps(STEPS)
        load(states)
        report["again"] = steps(STEPS)
    else:
        load(torch.load(path, weights_only=True))
        report["later"] = steps(STEPS)
    (reports / f"rank{bps.rank()}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:] == ["first"])
