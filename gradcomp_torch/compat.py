"""Names of PyTorch that its documentation does not have, or that its versions do not share.

No other module of the adapters uses such names (tests/rules/test_compat.py). Each function tells the versions in which
its names were seen: "2.4 to 2.15" are 2.4, 2.6, and each from 2.8 on. docs/versions.md tells what was run with each.
Importing this module refuses a PyTorch that is too old.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from gradcomp.errors import ConfigError

__all__ = [
    "BUILTIN_HOOK",
    "COMPILED_PART",
    "LEAST",
    "at_end_of_backward",
    "check_version",
    "comm_hooks",
    "current_backward",
    "destroy_process_group",
    "foreach_add_",
    "foreach_copy_",
    "foreach_mul",
    "foreach_mul_",
    "foreach_sub_",
    "foreach_zero_",
    "fsdp_state",
    "gather_into",
    "has_gradient_hooks",
    "ignores_joined_ranks",
    "kernels_refusal",
    "require",
    "second_connection",
    "store_of",
    "uses_python_reducer",
    "version_counter",
]

LEAST = (2, 4)
"""The oldest PyTorch with which jobs were run."""

LEAST_FOR_KERNELS = {"PyTorch": (2, 7), "Triton": (3, 6)}
"""The oldest versions for kernels on a GPU: streams of devices, and Triton's compiler.

Code of Triton 3.4 and 3.5 for sm_80 and sm_90 flushes denormals in `int8`, and 3.3 does not compile `topk`. That of 3.6
has no such fault (tests/gpu/generated.py).
"""

COMPILED_PART = "_orig_mod"
"""The attribute of a module of torch.compile that has the module itself; 2.4 to 2.15."""

BUILTIN_HOOK = "_register_builtin_comm_hook"
"""The method of DistributedDataParallel that registers hooks in C++; 2.4 to 2.15."""


def check_version(version: str = torch.__version__) -> None:
    """Refuse a PyTorch older than `LEAST`.

    Raises:
        ConfigError: the version is too old.
    """
    if _is_older(version, LEAST):
        least = ".".join(map(str, LEAST))
        raise ConfigError(
            f"PyTorch {version} is too old; the adapters of gradcomp need {least} or later: run "
            f"pip install 'torch>={least}'"
        )


def _is_older(version: str, least: tuple[int, int]) -> bool:
    found = re.match(r"(\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) < least


check_version()


def kernels_refusal(triton: str, version: str = torch.__version__) -> str:
    """Why versions of Triton and PyTorch do not run kernels; nothing if they do."""
    for package, text in (("PyTorch", version), ("Triton", triton)):
        least = LEAST_FOR_KERNELS[package]
        if _is_older(text, least):
            return f"{package} {text} is too old for kernels, which need {'.'.join(map(str, least))} or later"
    return ""


def require(owner: Any, name: str, least: str, part: str) -> None:
    """Check that PyTorch has a public name that its older versions lack.

    Args:
        owner: a module or an object.
        name: of its attribute.
        least: the oldest PyTorch that was seen to have it.
        part: of gradcomp that needs it.

    Raises:
        ConfigError: the name is missing.
    """
    if not hasattr(owner, name):
        raise ConfigError(
            f"PyTorch {torch.__version__} has no {name}, which {part} needs: run pip install "
            f"'torch>={least}'"
        )


# torch.distributed ----------------------------------------------------------------------------------


def store_of(group: Any) -> Any:
    """The store of a process group; private in 2.4, 2.6 and 2.8, public from 2.9 on."""
    if hasattr(group, "get_group_store"):
        return group.get_group_store()
    return importlib.import_module("torch.distributed.distributed_c10d")._world.pg_map[group][1]


def second_connection(store: Any) -> Any:
    """A store like this one, by a connection of its own, from 2.8 on; the store itself in 2.4 and 2.6.

    There a thread that waits in the store holds up the others, so that messages about lost ranks may not
    name them.
    """
    return store.clone() if hasattr(store, "clone") else store


def destroy_process_group(group: Any = None, version: str = torch.__version__) -> None:
    """``torch.distributed.destroy_process_group`` that does not wait for a thread which waits for it.

    Before 2.8, the destructor of a process group waits for Gloo's threads without releasing the lock of the
    interpreter, which a thread needs to free a tensor (pytorch/pytorch#154976). That of its back end releases it, so
    the last reference must be one to the back end.
    """
    held = _host_backends() if _is_older(version, (2, 8)) else []
    importlib.import_module("torch.distributed.distributed_c10d").destroy_process_group(group)
    held.clear()


def _host_backends() -> list[Any]:
    """The back ends of all process groups for tensors of the host; 2.4, 2.6."""
    c10d = importlib.import_module("torch.distributed.distributed_c10d")
    found = []
    for group in c10d._world.pg_map:
        with suppress(RuntimeError):  # it has none
            found.append(group._get_backend(torch.device("cpu")))
    return found


def gather_into(group: Any, out: torch.Tensor, message: torch.Tensor) -> Any:
    """Gather messages of equal size into one tensor; 2.13. Its public function has another name in each version."""
    return group._allgather_base(out, message)


# DistributedDataParallel ----------------------------------------------------------------------------


def comm_hooks(model: object) -> list[tuple[Any, Any]]:
    """The registered hooks of a DistributedDataParallel, with their states; 2.4 to 2.15."""
    return list(vars(model).get("_comm_hooks", ()))


def uses_python_reducer(model: Any) -> bool:
    """Whether a DistributedDataParallel gives hooks no buckets; 2.4 to 2.15."""
    return bool(getattr(model, "_use_python_reducer", False))


def ignores_joined_ranks(model: Any) -> bool:
    """Whether it is in ``join(divide_by_initial_world_size=False)``; 2.4 to 2.15."""
    return bool(model._join_config.enable and not model._divide_by_initial_world_size)


# fully_shard ----------------------------------------------------------------------------------------


def fsdp_state(module: Any) -> Any:
    """What the modules of one call of ``fully_shard`` share; 2.6, 2.8 to 2.15."""
    return module._get_fsdp_state()


# Autograd -------------------------------------------------------------------------------------------


def at_end_of_backward(call: Callable[[], None]) -> None:
    """Let the autograd engine make a call when its present backward pass ends; 2.4 to 2.15.

    Raises:
        RuntimeError: there is no such pass.
    """
    engine: Any = torch.autograd.Variable._execution_engine
    engine.queue_callback(call)


def current_backward() -> int:
    """The number of this thread's present backward pass; -1 outside of one; 2.4 to 2.15."""
    return torch._C._current_graph_task_id()


def version_counter(tensor: torch.Tensor) -> int:
    """The number of changes of a tensor in place; 2.4 to 2.15."""
    return tensor._version


def has_gradient_hooks(parameter: torch.Tensor) -> bool:
    """Whether ``register_post_accumulate_grad_hook`` was called; ``fully_shard`` looks there, too; 2.4 to 2.15."""
    hooks: Any = parameter._post_accumulate_grad_hooks
    return bool(hooks)


# Operations on lists of tensors ---------------------------------------------------------------------
# 2.4 to 2.15.

foreach_add_ = torch._foreach_add_
foreach_copy_ = torch._foreach_copy_
foreach_mul = torch._foreach_mul
foreach_mul_ = torch._foreach_mul_
foreach_sub_ = torch._foreach_sub_
foreach_zero_ = torch._foreach_zero_
