"""Compression in unchanged scripts for PyTorch."""

from __future__ import annotations

import inspect
from typing import Any

import horovod.torch as hvd

from gradcomp.adapter_api import Unedited
from gradcomp_torch.skipped_steps import count_skipped_steps
from horovod_compressors.torch.compression import Compression
from horovod_compressors.torch.elastic import with_compressions
from horovod_compressors.torch.outer import OuterStep
from horovod_compressors.torch.unedited_outer import check_outer, outer_step_of, with_outer_steps

__all__ = ["patch"]


def patch(module: Any, run: Unedited) -> None:
    """Replace ``DistributedOptimizer`` of Horovod's module, and ``TorchState`` of its elastic part.

    Args:
        module: ``horovod.torch``.
        run: of the script.
    """
    stock = module.DistributedOptimizer
    signature = inspect.signature(stock)

    def distributed_optimizer(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        names = call.arguments["named_parameters"]
        if names is None:  # the names that the stock optimizer would give
            groups = call.arguments["optimizer"].param_groups
            names = [
                (f"allreduce.noname.{i}.{j}", parameter)
                for i, group in enumerate(groups)
                for j, parameter in enumerate(group["params"])
            ]
        names = list(names)
        before = call.arguments["compression"]
        run.replaced(
            f"hvd.DistributedOptimizer of {len(names)} parameters",
            None if before is hvd.Compression.none else before,
        )
        process_set = call.arguments["process_set"]
        every = run.every
        if every is not None:
            check_outer(call.arguments)
            return with_outer_steps(
                call.arguments["optimizer"],
                lambda: OuterStep(run.config, names, every=every, process_set=process_set),
            )
        call.arguments["named_parameters"] = names
        call.arguments["compression"] = Compression(run.config, names, process_set=process_set)
        return stock(*call.args, **call.kwargs)

    if run.every is not None:
        count_skipped_steps(outer_step_of)
    module.DistributedOptimizer = distributed_optimizer
    module.elastic.TorchState = with_compressions(module.elastic.TorchState)
