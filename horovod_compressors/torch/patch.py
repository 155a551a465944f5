"""Compression in unchanged scripts for PyTorch."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import horovod.torch as hvd

from gradcomp import Config
from horovod_compressors.torch.compression import Compression

__all__ = ["patch"]


def patch(module: Any, config: Config, replaced: Callable[[str, Any], None]) -> None:
    """Replace ``DistributedOptimizer`` of Horovod's module.

    Args:
        module: ``horovod.torch``.
        config: of the new compression.
        replaced: called with the name of each replaced optimizer, and its former compression.
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
        call.arguments["named_parameters"] = names
        before = call.arguments["compression"]
        call.arguments["compression"] = Compression(
            config, names, process_set=call.arguments["process_set"]
        )
        replaced(
            f"hvd.DistributedOptimizer of {len(names)} parameters",
            None if before is hvd.Compression.none else before,
        )
        return stock(*call.args, **call.kwargs)

    module.DistributedOptimizer = distributed_optimizer
