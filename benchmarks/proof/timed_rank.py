"""One rank of the job of times.py: it trains for some steps with each spec; rank 0 writes how long they took.

python timed_rank.py ORDER.json
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from proof.cells import AUTO, LOCAL_STEPS, SGD_ONLY, SPECS, TASKS
from proof.training import UNCOMPRESSED, make_optimizer, set_rate
from torch_compressors import OuterStep, ddp_hook


def prepare(
    name: str, model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[nn.Module, Callable[[], Any]]:
    """What computes gradients with a spec, and what follows on a step of the optimizer.

    With a name that is not in `SPECS`, nothing is sent.
    """
    if name not in SPECS:
        return model, lambda: None
    if name in LOCAL_STEPS:
        return model, OuterStep(SPECS[name], model, every=LOCAL_STEPS[name]).step
    ddp = DistributedDataParallel(model)
    if name != UNCOMPRESSED:
        # The spec of the preset comes with a policy, which its name alone brings along.
        spec = AUTO if name == AUTO else SPECS[name]
        ddp.register_comm_hook(*ddp_hook(spec, ddp, optimizer))
    return ddp, lambda: None


def seconds_of(name: str, order: dict[str, Any]) -> list[float]:
    """Of each step with a spec, for its slowest rank."""
    setup = TASKS[order["task"]]
    task = setup.task()
    torch.manual_seed(0)
    rng = np.random.default_rng(dist.get_rank())
    optimizer_name = "sgd" if name in SGD_ONLY else order["optimizer"]
    lr, total = setup.rates[optimizer_name], order["of"]
    model = task.model()
    spec = SPECS.get(name, UNCOMPRESSED)
    optimizer = make_optimizer(optimizer_name, tuple(model.parameters()), lr, spec)
    module, after = prepare(name, model, optimizer)
    seconds = []
    for step in range(order["steps"][name]):
        set_rate(optimizer, lr, step, total)
        samples = rng.integers(task.data.train_samples, size=task.batch)
        batch = task.data.train_batch(samples, rng)
        dist.barrier()
        begin = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(batch.inputs), batch.classes).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        after()
        seconds.append(time.perf_counter() - begin)
    slowest = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return [round(x, 6) for x in slowest.tolist()]


def main() -> None:
    """Take all steps."""
    order = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = {}
    for name in order["steps"]:
        found[name] = seconds_of(name, order)
        gc.collect()
    if dist.get_rank() == 0:
        Path(order["output"]).write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
