"""Guard elements around every tensor of a process, which kernels may neither read nor write."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

GUARD = 256
"""Bytes before and after a tensor's elements, so that their alignment stays."""

PATTERN = torch.tensor([0xFF, 0xFF, 0x7F, 0x7F], dtype=torch.uint8).repeat(GUARD // 4)
"""The largest float32, which is a large integer as well."""

_MAKERS = ("empty", "zeros", "full", "tensor", "zeros_like", "from_numpy")
"""Functions of torch that kernels' callers allocate with."""

_new_memory = torch.empty
_guarded: list[tuple[torch.Tensor, str]] = []
_used: set[str] = set()
_begins = np.zeros(1, np.uint64)
"""Sorted first addresses of all guards, after a 0."""


def guard_all_tensors() -> None:
    """From now on, all tensors of the process have guards.

    Compiled kernels are caught when they change a guard, interpreted ones when they read it, too.
    """
    for name in _MAKERS:
        setattr(torch, name, _with_guards(getattr(torch, name)))
    if "TRITON_INTERPRET" in os.environ:
        _watch_interpreter()


def used_guards() -> Iterator[str]:
    """The tensors made since the last call beyond which a kernel has read or written."""
    global _begins
    for memory, name in _guarded:
        pattern = PATTERN.to(memory.device)
        if not (torch.equal(memory[:GUARD], pattern) and torch.equal(memory[-GUARD:], pattern)):
            _used.add(name)
    yield from (f"a kernel uses memory beyond {name}" for name in sorted(_used))
    _guarded.clear()
    _used.clear()
    _begins = _begins[:1]


def _with_guards(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(make)
    def guarded(*args: Any, **options: Any) -> torch.Tensor:
        made = make(*args, **options)
        # Kernels do not use pinned memory.
        return made if made.is_pinned() else _copy(made)

    return guarded


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    global _begins
    memory = _new_memory(tensor.nbytes + 2 * GUARD, dtype=torch.uint8, device=tensor.device)
    memory[:GUARD] = memory[-GUARD:] = PATTERN.to(memory.device)
    elements = memory[GUARD:-GUARD].view(tensor.dtype).view(tensor.shape)
    elements.copy_(tensor)
    _guarded.append((memory, f"a tensor of {tuple(tensor.shape)}, {tensor.dtype}"))
    first = memory.data_ptr()
    guards = np.array([first, first + memory.nbytes - GUARD], np.uint64)
    _begins = np.insert(_begins, np.searchsorted(_begins, guards), guards)
    return elements


def _watch_interpreter() -> None:
    from triton.runtime.interpreter import InterpreterBuilder

    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def watched_load(self: Any, ptrs: Any, mask: Any, *others: Any) -> Any:
        _watch(ptrs.data[mask.data])
        return load(self, ptrs, mask, *others)

    def watched_store(self: Any, ptrs: Any, value: Any, mask: Any, *others: Any) -> Any:
        _watch(ptrs.data[mask.data])
        return store(self, ptrs, value, mask, *others)

    InterpreterBuilder.create_masked_load = watched_load
    InterpreterBuilder.create_masked_store = watched_store


def _watch(addresses: np.ndarray) -> None:
    """Note the tensors in whose guards an address lies."""
    for address in addresses[_is_guard(addresses)].tolist():
        _used.update(
            name
            for memory, name in _guarded
            if memory.data_ptr() <= address < memory.data_ptr() + memory.nbytes
        )


def _is_guard(addresses: np.ndarray) -> np.ndarray:
    before = np.searchsorted(_begins, addresses, side="right")
    guarded: np.ndarray = addresses - _begins[before - 1] < GUARD
    return guarded
