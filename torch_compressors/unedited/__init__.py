"""Compression of every DDP model in an unedited script: patches for ``torch_compressors.run``."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.nn.parallel import DistributedDataParallel

from gradcomp import Config
from gradcomp.adapter_api import Patch, Unedited
from gradcomp.errors import ConfigError
from gradcomp_torch.compat import BUILTIN_HOOK, comm_hooks, destroy_process_group
from torch_compressors.ddp import DDPCompression, ddp_hook
from torch_compressors.unedited.outer import OuterModels

__all__ = ["COMPRESSED", "PATCHES", "check_config", "is_first_rank"]

COMPRESSED = "DistributedDataParallel"


def check_config(config: Config) -> None:
    """Refuse specs that need the optimizer, which the script makes after its model, or before.

    Raises:
        ConfigError: the spec applies the momentum (``dgc``), follows the learning rate, or is ``dion``.
    """
    need = None
    if config.momentum_correction is not None:
        need = "applies the optimizer's momentum"
    elif config.scales_lr:
        need = "follows the optimizer's learning rate"
    elif config.step_algorithm is not None:
        need = "gives steps of the optimizer Dion or DeMo"
    if need is not None:
        raise ConfigError(
            f"'{config.compress.default}' {need}, and this launcher knows models alone: call "
            "torch_compressors.ddp_hook(config, model, optimizer) in the script, or choose another "
            "spec, such as 'residual|topk(ratio=0.01)'"
        )


def is_first_rank(index: int = 0) -> bool:
    """Whether this is rank 0.

    Without a process group, torchrun's ``RANK`` tells it, or else ``index``: the number of the process
    among those that were started together.
    """
    if dist.is_initialized():
        return dist.get_rank() == 0
    return os.environ.get("RANK", str(index)) == "0"


def _patch_ddp(module: Any, run: Unedited) -> None:
    """Make each DDP model register our hook when it is made, and refuse another one."""
    model_class = module.DistributedDataParallel
    stock = model_class.__init__
    local = None if run.every is None else OuterModels(run.config, run.every)

    @functools.wraps(stock)
    def initialize(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        stock(self, *args, **kwargs)
        if _hooks_of(self):  # mixed_precision=... registers one
            raise ConfigError(_REFUSAL.format(", ".join(map(_name, _hooks_of(self)))))
        if local is not None:
            local.take(self)
        else:
            self.register_comm_hook(*ddp_hook(run.config, self))
        count = sum(parameter.requires_grad for parameter in self.parameters())
        run.replaced(f"DistributedDataParallel of {count} parameters")

    model_class.__init__ = initialize
    for name in ("register_comm_hook", BUILTIN_HOOK):
        setattr(model_class, name, _refusing_a_second(getattr(model_class, name)))


_REFUSAL = (
    "the script gives its DistributedDataParallel model its own communication hook, {}, and a "
    "model has one hook: remove the call of register_comm_hook or the option mixed_precision from "
    "the script, or run the script without torch_compressors.run"
)


def _refusing_a_second(register: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(register)
    def register_once(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        if any(_is_ours(hook, state) for hook, state in _hooks_of(self).items()):
            hook = [*args, *kwargs.values()][-1]
            raise ConfigError(_REFUSAL.format(_name(hook)))
        register(self, *args, **kwargs)

    return register_once


def _is_ours(hook: Any, state: Any) -> bool:
    return hook is noop_hook or isinstance(state, DDPCompression)


def _hooks_of(model: DistributedDataParallel) -> dict[Any, Any]:
    """The registered states by hook."""
    return dict(comm_hooks(model))


def _name(hook: Any) -> str:
    return f"'{getattr(hook, '__qualname__', hook)}'"


def _patch_fsdp(module: Any, run: Unedited) -> None:
    """Make FSDP say that its models are not compressed."""
    model_class = module.FullyShardedDataParallel
    model_class.__init__ = _saying_uncompressed(model_class.__init__, "FSDP", run)
    if hasattr(module, "fully_shard"):  # from PyTorch 2.6 on
        module.fully_shard = _saying_uncompressed(module.fully_shard, "fully_shard", run)


def _saying_uncompressed(stock: Callable[..., Any], name: str, run: Unedited) -> Callable[..., Any]:
    said = False

    @functools.wraps(stock)
    def uncompressed(*args: Any, **kwargs: Any) -> Any:
        nonlocal said
        if not said:
            said = True
            run.say_once(
                f"the gradients of models of {name} are not compressed, as this launcher compresses "
                "DistributedDataParallel alone: call torch_compressors.fsdp.fsdp_hook in the script"
            )
        return stock(*args, **kwargs)

    return uncompressed


def _patch_destroy(module: Any, run: Unedited) -> None:
    """Make the script's process groups end in each version of PyTorch."""
    module.destroy_process_group = destroy_process_group


def _patch_spawn(module: Any, run: Unedited) -> None:
    """Make the processes of ``torch.multiprocessing.spawn`` compress, too."""
    for name in ("spawn", "start_processes"):
        setattr(module, name, _reaching(getattr(module, name), run))


def _reaching(stock: Callable[..., Any], run: Unedited) -> Callable[..., Any]:
    @functools.wraps(stock)
    def start(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        run.silent = True
        return stock(_Spawned(fn, run.config, run.every), *args, **kwargs)

    return start


class _Spawned:
    """The function of a started process, to which it travels as a pickle."""

    def __init__(self, function: Callable[..., Any], config: Config, every: int | None) -> None:
        self._function = function
        self._config = config
        self._every = every
        self._forked = True

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._forked = False

    def __call__(self, index: int, *args: Any) -> None:
        if self._forked:  # this process has the parent's patches
            self._function(index, *args)
            return
        first = functools.partial(is_first_rank, index)
        run = Unedited(self._config, COMPRESSED, first, self._every)
        run.apply(PATCHES)
        self._function(index, *args)
        run.finish(getattr(self._function, "__name__", str(self._function)))


PATCHES: dict[str, Patch] = {
    "torch.nn.parallel": _patch_ddp,
    "torch.distributed": _patch_destroy,
    "torch.distributed.fsdp": _patch_fsdp,
    "torch.multiprocessing": _patch_spawn,
}
