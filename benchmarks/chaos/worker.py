"""One rank of a job: trains a small network, saves checkpoints, and has the fault of its plan.

  python worker.py PLAN.json FOLDER

FOLDER gets checkpoints of all ranks, and end-R.txt, a digest of the trained weights.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from torch import nn

from chaos.faults import SAVE_EVERY, STEPS, Plan

SPEC, WRONG_SPEC = "residual|topk(ratio=0.05)", "residual|topk(ratio=0.02)"
LR = 0.1
ANSWER_SECONDS = 10
"""Longest wait of DDP for another rank."""

LATE_SECONDS = 5
DISK_BYTES = 60_000
"""The disk is full before a rank's file of more than 60 kB is complete."""


class Faults:
    """The faults of this rank."""

    def __init__(self, plan: Plan, rank: int, folder: Path) -> None:
        self._plan, self._rank, self._folder = plan, rank, folder

    def here(self, fault: str) -> bool:
        """Whether this rank has this fault."""
        return self._plan.fault == fault and self._plan.rank == self._rank

    def mark(self) -> None:
        """Record the time of the fault."""
        (self._folder / "fault.txt").write_text(str(time.time()))

    def begin(self) -> None:
        """Before the engine starts."""
        if self.here("late"):
            self.mark()
            time.sleep(1 + LATE_SECONDS * self._plan.amount)

    def at(self, step: int, phase: str) -> None:
        """At a point of a step."""
        if (step, phase) != (self._plan.step, self._plan.phase):
            return
        for fault, number in (("kill", signal.SIGKILL), ("stop", signal.SIGSTOP)):
            if self.here(fault):
                self.mark()
                os.kill(os.getpid(), number)

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """No file may get longer than a few bytes: the system refuses it, as a full disk does."""
        if not self.here("disk"):
            yield
            return
        self.mark()
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        limit = int(DISK_BYTES * self._plan.amount)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    def damage_frames(self, engine: type[Any]) -> None:
        """Flip a byte of the frames that this rank sends in the step of the fault, as `engine`."""
        if not self.here("frame"):
            return
        start = engine.start
        calls = 0

        def damaged(this: Any, request: Any) -> Any:
            nonlocal calls
            frame = getattr(request, "frame", None)
            if frame is not None:
                calls += 1
                if calls == self._plan.step and frame.size:
                    self.mark()
                    frame[int(self._plan.amount * frame.size)] ^= 0x10
            return start(this, request)

        engine.start = damaged


def network() -> nn.Sequential:
    """Two layers that are both large enough to be compressed."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128, bias=False), nn.ReLU(), nn.Linear(128, 64, bias=False))


def on_horovod(spec: str, faults: Faults) -> tuple[nn.Module, Any, Any, Callable[[], None]]:
    """Model, optimizer, compression, and the function that leaves the job."""
    import horovod.torch as hvd

    from horovod_compressors.torch import Compression
    from horovod_compressors.torch.engine import HorovodEngine

    hvd.init()
    model = network()
    faults.damage_frames(HorovodEngine)
    compression = Compression(spec, model.named_parameters())
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=LR),
        named_parameters=model.named_parameters(),
        compression=compression,
    )
    return model, optimizer, compression, hvd.shutdown


def on_ddp(spec: str, faults: Faults) -> tuple[nn.Module, Any, Any, Callable[[], None]]:
    """As on_horovod."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from torch_compressors import ddp_hook
    from torch_compressors.gloo.engine import GlooEngine

    dist.init_process_group("gloo")
    model = DistributedDataParallel(network())
    faults.damage_frames(GlooEngine)
    state, hook = ddp_hook(spec, model, timeout=timedelta(seconds=ANSWER_SECONDS))
    model.register_comm_hook(state, hook)
    return model, torch.optim.SGD(model.parameters(), lr=LR), state, dist.destroy_process_group


def on_byteps(spec: str, faults: Faults) -> tuple[nn.Module, Any, Any, Callable[[], None]]:
    """As on_horovod."""
    import byteps.torch as bps

    from byteps_compressors.torch import DistributedOptimizer

    bps.init()
    model = network()
    optimizer = DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=LR), model.named_parameters(), spec
    )
    return model, optimizer, optimizer.compression, bps.shutdown


STARTS = {
    "horovod": (on_horovod, "HOROVOD_RANK"),
    "ddp": (on_ddp, "RANK"),
    "byteps": (on_byteps, "DMLC_WORKER_ID"),
}


def main(plan: Plan, folder: Path) -> None:
    """Train."""
    torch.set_num_threads(1)
    start, rank_variable = STARTS[plan.engine]
    rank = int(os.environ[rank_variable])
    faults = Faults(plan, rank, folder)
    faults.begin()
    spec = WRONG_SPEC if faults.here("config") else SPEC
    model, optimizer, compression, leave = start(spec, faults)

    home = folder / "checkpoints"
    begin = 0
    if plan.begin:
        begin = compression.load(home)
        model.load_state_dict(torch.load(home / f"model-{begin}.pt", weights_only=True))
    last = list(model.parameters())[-1]
    now = begin
    last.register_hook(lambda grad: faults.at(now, "backward"))  # type: ignore[no-untyped-call]
    for now in range(begin, STEPS):
        draw = torch.Generator().manual_seed(1000 * now + rank)
        images = torch.randn(16, 64, generator=draw)
        faults.at(now, "before")
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), images.argmax(1))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        faults.at(now, "after")
        if (now + 1) % SAVE_EVERY == 0:
            home.mkdir(exist_ok=True)
            if rank == 0:
                torch.save(model.state_dict(), home / f"model-{now + 1}.pt")
            with faults.full_disk():
                compression.save(home, now + 1, keep=STEPS)
    digest = hashlib.sha256()
    for weight in model.parameters():
        digest.update(weight.detach().numpy().tobytes())
    (folder / f"end-{rank}.txt").write_text(digest.hexdigest())
    leave()


if __name__ == "__main__":
    main(Plan(**json.loads(Path(sys.argv[1]).read_text())), Path(sys.argv[2]))
