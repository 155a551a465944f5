"""Contenders on BytePS: its stock optimizer, uncompressed, with its own compressors, with ours."""

import byteps.torch as bps
import torch
from byteps.torch import ops

from byteps_compressors.torch import DistributedOptimizer, declare
from e2e.contenders import Contender
from e2e.model import Synthetic
from e2e.worker import Run, config_of, optimizer


class Engine:
    """See e2e.worker.Engine."""

    def __init__(self) -> None:
        bps.init()
        self.rank = bps.rank()

    def barrier(self) -> None:
        """Wait for all ranks: servers answer when all have pushed."""
        ops.synchronize(ops.push_pull_async_inplace(torch.zeros(1), name="barrier"))

    def prepare(self, contender: Contender, model: Synthetic, prefix: str) -> Run:
        """The step function of a contender."""
        named = [(prefix + name, weight) for name, weight in model.named_weights()]
        idle = optimizer(model, contender.spec)
        attached = None
        if contender.kind == "ours":
            wrapped = DistributedOptimizer(idle, named, config_of(contender.spec))
            attached = wrapped.compression
        elif contender.kind == "alone":
            wrapped = idle
        else:
            if contender.kind == "own":
                kind, *others = contender.spec.split()
                arguments = dict(other.split("=") for other in others)
                for name, weight in named:
                    if weight.ndim > 1:
                        declare(f"Gradient.{name}", compressor_type=kind, **arguments)
            wrapped = bps.DistributedOptimizer(idle, named_parameters=named)

        def step() -> None:
            wrapped.zero_grad()
            model(torch.zeros(1, requires_grad=True)).backward()
            wrapped.step()

        # Pushed bytes add up over all contenders so far; the worker takes differences.
        return Run(step, attached)

    def close(self) -> None:
        """Leave the job."""
        bps.shutdown()
