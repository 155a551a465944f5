"""A worker of an elastic job of Horovod; it logs each step.

Argument: the folder of its rows. A file ``last`` next to the folder has the number of steps.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch
from workers.elastic_model import DGC, PAUSE, SHAPE, SPECS, config, gradient

from elastic.job import log_row
from horovod_compressors.torch import Compression
from support.pipelines import configured


def model_of(names: list[str]) -> torch.nn.Module:
    return torch.nn.ParameterDict({name: torch.nn.Parameter(torch.zeros(SHAPE)) for name in names})


def residual_sum(compression: Any, name: str) -> float:
    residual = compression.state_dict()["residual"]
    return float(residual[name].double().sum()) if name in residual else 0.0


def estimate_sums(compression: Any, name: str) -> list[float]:
    """Of this rank's estimate, and of the mean of all."""
    state = compression.state_dict()
    mean = state["estimate_mean"][name]
    return [float(of.double().sum()) for of in (state["estimate"].get(name, mean), mean)]


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
            given = 0.0
            for model, optimizer in zip(models, optimizers, strict=True):
                optimizer.zero_grad()
                loss = torch.zeros(())
                for name, p in model.items():
                    grad = torch.from_numpy(gradient(state.step, name, hvd.rank(), hvd.size()))
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
                # Parameters would round it: a rank that is alone changes all of them.
                applied=float(models[0]["top"].grad.double().sum()),
                given=given,
                before=before,
                after=residual_sum(compressions[0], "top"),
                estimates=estimate_sums(compressions[0], "differences"),
            )
            if state.step % 3 == 0:
                state.commit()

    train(state)
    hvd.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
