"""A worker of an elastic job of Horovod; it logs each step.

Argument: the folder of its rows. A file ``last`` beside the folder has the number of steps.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import numpy as np
import torch

from elastic_job import log_row
from gradcomp import Config
from horovod_compressors.torch import Compression
from support.pipelines import configured, rules_of

SPECS = {
    "top": "residual|topk(ratio=0.02)",
    "low": "powersgd(rank=2,start_step=2,variant=paper)",
    "some": "residual|randomk(ratio=0.1)",
    "polar": "residual|polar(rate=0.25)",
    "basis": "residual|adaptive(rate=0.5,preset=basis)",
}
DGC = "dgc(ratio=0.05,warmup_epochs=0)"
SHAPE = (72, 64)
PAUSE = 0.03


def config() -> Config:
    return configured("identity", rules=rules_of(SPECS, "{}"))


def model_of(names: list[str]) -> torch.nn.Module:
    return torch.nn.ParameterDict({name: torch.nn.Parameter(torch.zeros(SHAPE)) for name in names})


def gradient(step: int, name: str) -> torch.Tensor:
    rng = np.random.default_rng([step, hvd.rank(), hvd.size(), len(name)])
    return torch.from_numpy(rng.normal(size=SHAPE).astype(np.float32))


def residual_sum(compression: Any, name: str) -> float:
    residual = compression.state_dict()["residual"]
    return float(residual[name].double().sum()) if name in residual else 0.0


def main(folder: Path) -> None:
    hvd.init()
    torch.set_num_threads(1)
    models = [model_of([*SPECS, "bias"]), model_of(["momentum"])]
    compressions = [
        Compression(config(), models[0].named_parameters()),
        Compression(configured(DGC), models[1].named_parameters()),
    ]
    optimizers = [
        hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=1.0),
            named_parameters=model.named_parameters(),
            compression=compression,
        )
        for model, compression in zip(models, compressions, strict=True)
    ]
    state = hvd.elastic.TorchState(
        model=models[0],
        optimizer=optimizers[0],
        compression=compressions[0],
        other_model=models[1],
        other_optimizer=optimizers[1],
        other_compression=compressions[1],
        step=0,
    )

    @hvd.elastic.run
    def train(state: Any) -> None:
        life = hvd.broadcast_object(time.time())
        while state.step < int((folder.parent / "last").read_text()):
            time.sleep(PAUSE)
            before = residual_sum(compressions[0], "top")
            start = float(models[0]["top"].detach().double().sum())
            given = 0.0
            for model, optimizer in zip(models, optimizers, strict=True):
                optimizer.zero_grad()
                loss = torch.zeros(())
                for name, p in model.items():
                    grad = gradient(state.step, name)
                    given += float(grad.double().sum()) if name == "top" else 0.0
                    loss = loss + (p * grad).sum()
                loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            state.step += 1
            parameters = [p.detach().reshape(-1) for one in models for p in one.parameters()]
            log_row(
                folder,
                torch.cat(parameters).numpy().tobytes(),
                life=life,
                step=state.step,
                rank=hvd.rank(),
                size=hvd.size(),
                applied=start - float(models[0]["top"].detach().double().sum()),
                given=given,
                before=before,
                after=residual_sum(compressions[0], "top"),
            )
            if state.step % 3 == 0:
                state.commit()

    train(state)
    hvd.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
