"""Contenders on Horovod: its stock optimizer with its own compression, and with ours."""

import horovod.torch as hvd
import torch

from e2e.contenders import Contender
from e2e.model import Synthetic
from e2e.worker import Run, config_of, optimizer
from horovod_compressors.torch import Compression
from horovod_compressors.torch.wait import wait

_OWN = {"none": hvd.Compression.none, "fp16": hvd.Compression.fp16}


class Engine:
    """See e2e.worker.Engine."""

    def __init__(self) -> None:
        hvd.init()
        self.rank = hvd.rank()

    def barrier(self) -> None:
        """Wait for all ranks."""
        # Not hvd.barrier: early ranks would keep the others' processors busy.
        done = hvd.allreduce_async(torch.zeros(1), name="e2e.barrier")
        wait(done)
        hvd.synchronize(done)

    def prepare(self, contender: Contender, model: Synthetic, prefix: str) -> Run:
        """The step function of a contender."""
        named = [(prefix + name, weight) for name, weight in model.named_weights()]
        ours = Compression(config_of(contender.spec), named) if contender.kind == "ours" else None
        wrapped = optimizer(model, contender.spec)
        if contender.kind != "alone":
            wrapped = hvd.DistributedOptimizer(
                wrapped, named_parameters=named, compression=ours or _OWN[contender.kind]
            )

        def step() -> None:
            wrapped.zero_grad()
            model(torch.zeros(1, requires_grad=True)).backward()
            wrapped.step()

        return Run(step, ours)

    def close(self) -> None:
        """Leave the job."""
        hvd.shutdown()
