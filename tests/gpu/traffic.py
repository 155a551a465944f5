"""Counts the bytes that kernels read and write, in the interpreter: python traffic.py NUMEL SPEC...

Prints for each spec, with error feedback around it, one line of JSON: bytes per element by kernel. Of `powersgd`
those of what follows from the average of a product.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
from triton.runtime import interpreter

import gpu.quick_interpreter  # noqa: F401
from gradcomp.exchange.algorithms.factor_device import SettleItem
from gradcomp_torch.gpu import codecs
from gradcomp_torch.gpu.bucket import LaunchItem
from gradcomp_torch.gpu.encoders.encoder import Launches
from gradcomp_torch.gpu.factors import FactorExchange
from gradcomp_torch.gpu.peer_device import DirectDevice

_read: Counter[str] = Counter()
_kernel = [""]
_load = interpreter.InterpreterBuilder.create_masked_load
_store = interpreter.InterpreterBuilder.create_masked_store
_run = interpreter.GridExecutor.__call__


def _count(pointers: Any, mask: Any) -> None:
    size = pointers.get_element_ty().primitive_bitwidth // 8
    _read[_kernel[0]] += size * int(
        np.count_nonzero(np.broadcast_to(mask.data, pointers.data.shape))
    )


def _counting_load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
    _count(pointers, mask)
    return _load(self, pointers, mask, *rest)


def _counting_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
    _count(pointers, mask)
    return _store(self, pointers, value, mask, *rest)


def _counting_run(self: Any, *args: Any, **kwargs: Any) -> Any:
    _kernel[0] = self.fn.__name__
    return _run(self, *args, **kwargs)


def _settle(gradient: torch.Tensor) -> None:
    """The matrix has 128 columns, and its factors 4 vectors."""
    device = DirectDevice(torch.device("cpu"))
    m = device.array(gradient.view(-1, 128))
    rows, cols = m.shape
    factor, kept = device.zeros(4 * cols), device.zeros(4 * rows)
    exchange = FactorExchange(((rows, cols, 4, False),), False, torch.device("cpu"))
    average = device.zeros(m.size).reshape(m.shape)
    settle = SettleItem(m, factor, False, kept, average, False)
    exchange.settle(torch.ones(4 * rows), [settle], of_average=False)


def main(numel: int, specs: list[str]) -> None:
    """Launch each spec once for a gradient of ``numel`` normal numbers."""
    interpreter.InterpreterBuilder.create_masked_load = _counting_load
    interpreter.InterpreterBuilder.create_masked_store = _counting_store
    interpreter.GridExecutor.__call__ = _counting_run
    gradient = torch.from_numpy(np.random.default_rng(0).standard_normal(numel).astype(np.float32))
    for spec in specs:
        _read.clear()
        if spec == "powersgd":
            _settle(gradient)
        else:
            encoder = codecs.encoder(spec, [numel], torch.device("cpu"))
            Launches(encoder).run([LaunchItem(gradient, torch.zeros(numel))])
        print(json.dumps({kernel: read / numel for kernel, read in _read.items()}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
