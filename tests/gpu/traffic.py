"""Counts the bytes that kernels read and write, in the interpreter: python traffic.py NUMEL SPEC...

Prints for each spec, with error feedback around it, one line of JSON: launches, and bytes per element, by kernel. Of
`powersgd` those of what follows from the average of a product; of sums:SPEC those of the sum of 8 ranks' payloads, each
byte counted once in a launch for reading and once for writing, as caches hold the rest.
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
from gradcomp import get_codec
from gradcomp.exchange.algorithms.factor_device import SettleItem
from gradcomp_torch.gpu import codecs
from gradcomp_torch.gpu.bucket import LaunchItem
from gradcomp_torch.gpu.encoders.encoder import Launches
from gradcomp_torch.gpu.factors import FactorExchange
from gradcomp_torch.gpu.peer_device import DirectDevice
from gradcomp_torch.gpu.peer_sums import PeerTensor, Place, peer_form_of, sums_of

RANKS = 8
_read: Counter[str] = Counter()
_launches: Counter[str] = Counter()
_bytes: dict[str, list[Any]] = {"load": [], "store": []}
_kernel = [""]
_load = interpreter.InterpreterBuilder.create_masked_load
_store = interpreter.InterpreterBuilder.create_masked_store
_run = interpreter.GridExecutor.__call__


def _count(kind: str, pointers: Any, mask: Any) -> None:
    size = pointers.get_element_ty().primitive_bitwidth // 8
    used = np.broadcast_to(mask.data, pointers.data.shape)
    _read[_kernel[0]] += size * int(np.count_nonzero(used))
    _bytes[kind].append((pointers.data[used][:, None] + np.arange(size, dtype=np.uint64)).ravel())


def _counting_load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
    _count("load", pointers, mask)
    return _load(self, pointers, mask, *rest)


def _counting_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
    _count("store", pointers, mask)
    return _store(self, pointers, value, mask, *rest)


def _counting_run(self: Any, *args: Any, **kwargs: Any) -> Any:
    _kernel[0] = self.fn.__name__
    _launches[_kernel[0]] += 1
    return _run(self, *args, **kwargs)


def _sum(spec: str, gradient: torch.Tensor) -> dict[str, float]:
    """A launch counts apart: a kernel that is launched for each rank reads and writes the sum as often."""
    payload = torch.from_numpy(get_codec(spec).encode_payload(gradient.numpy()))
    messages = [payload.clone() for _ in range(RANKS)]
    tensor = PeerTensor(gradient, Place(0, 0, gradient.numel()), [0] * RANKS)
    sums = sums_of(peer_form_of(spec), begun=False, decodes=False)
    sums.prepare([tensor], messages, 1 / RANKS)
    counted: Counter[str] = Counter()

    def run(self: Any, *args: Any, **kwargs: Any) -> None:
        for addresses in _bytes.values():
            addresses.clear()
        _counting_run(self, *args, **kwargs)
        for addresses in _bytes.values():
            counted[_kernel[0]] += np.unique(np.concatenate(addresses)).size

    interpreter.GridExecutor.__call__ = run
    sums.launch(torch.zeros((RANKS, 4), dtype=torch.int32))
    interpreter.GridExecutor.__call__ = _counting_run
    return dict(counted)


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
    """Launch each spec once for a gradient of ``numel`` normal numbers; rows:SPEC for one with rows that are larger,
    bf16:SPEC for one of bfloat16."""
    interpreter.InterpreterBuilder.create_masked_load = _counting_load
    interpreter.InterpreterBuilder.create_masked_store = _counting_store
    interpreter.GridExecutor.__call__ = _counting_run
    normal = np.random.default_rng(0).standard_normal(numel).astype(np.float32)
    for text in specs:
        _read.clear()
        _launches.clear()
        _bytes["load"].clear()
        _bytes["store"].clear()
        kind, _, spec = text.rpartition(":")
        gradient = torch.from_numpy(normal.copy())
        if kind == "rows":
            gradient[5 * 2048 : 6 * 2048] *= 100
        if kind == "sums":
            counted = _sum(spec, gradient)
            _read.clear()
            _read.update(counted)
        elif spec == "powersgd":
            _settle(gradient)
        else:
            encoder = codecs.encoder(spec, [numel], torch.device("cpu"))
            if kind == "bf16":
                gradient = gradient.bfloat16()
            Launches(encoder).run([LaunchItem(gradient, torch.zeros(numel))])
        found = {
            kernel: {"launches": count, "bytes": _read[kernel] / numel}
            for kernel, count in _launches.items()
        }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
