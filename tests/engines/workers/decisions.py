"""The specs of the table of docs/which-compressor.md, as they are there, train on Horovod and with DDP."""

from __future__ import annotations

from typing import Any, NamedTuple

import horovod.torch as hvd
import torch
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from workers import harness
from workers.ddp_model import join
from workers.harness import Cases

from horovod_compressors.torch import Compression
from torch_compressors import DGCSGD, ddp_hook

cases = Cases()


class Row(NamedTuple):
    """How a row of the table trains.

    Attributes:
        steps: of the run; the last 20 are after warm-ups.
        fewer: least ratio of the last 20 steps, in which the policy of `auto` still measures.
    """

    steps: int
    fewer: float


ROWS = {
    "auto": Row(20, 0.9),
    "residual|adaptive(rate=0.5)": Row(20, 15.0),
    "dgc(ratio=0.001)": Row(32, 30.0),
    "powersgd(rank=4)": Row(120, 7.0),
}
STEPS_OF_AN_EPOCH = 2


class Task:
    """A small classification, with the optimizer of a row."""

    def __init__(self, spec: str) -> None:
        torch.manual_seed(0)
        self.teacher = torch.nn.Linear(64, 10)
        self.model = torch.nn.Sequential(
            *(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
        )
        kind = DGCSGD if spec.startswith("dgc") else torch.optim.SGD
        self.optimizer: Any = kind(self.model.parameters(), lr=0.05, momentum=0.9)

    def loss(self, model: torch.nn.Module, step: int) -> torch.Tensor:
        torch.manual_seed(hvd.size() * step + hvd.rank())
        inputs = torch.randn(64, 64)
        return cross_entropy(model(inputs), self.teacher(inputs).argmax(1))

    def train(self, spec: str, model: torch.nn.Module, compression: Any) -> None:
        row = ROWS[spec]
        losses = []
        for step in range(row.steps):
            if step % STEPS_OF_AN_EPOCH == 0:
                compression.set_epoch(step // STEPS_OF_AN_EPOCH)
            self.optimizer.zero_grad()
            loss = self.loss(model, step)
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
        assert sum(losses[-5:]) / 5 < 0.95 * losses[0], f"{spec}: {losses}"
        ratio = compression.stats.recent_ratio
        assert ratio >= row.fewer, f"{spec}: {ratio}"
        for parameter in self.model.parameters():
            harness.check_same_on_all_ranks(parameter, spec)


@cases
def rows_on_horovod() -> None:
    for spec in ROWS:
        task = Task(spec)
        compression = Compression(spec, task.model.named_parameters())
        task.optimizer = hvd.DistributedOptimizer(
            task.optimizer,
            named_parameters=task.model.named_parameters(),
            compression=compression,
        )
        task.train(spec, task.model, compression)


@cases
def rows_with_ddp() -> None:
    join()
    for spec in ROWS:
        task = Task(spec)
        model = DistributedDataParallel(task.model)
        state, hook = ddp_hook(spec, model, task.optimizer)
        model.register_comm_hook(state, hook)
        task.train(spec, model, state)
        state.close()
