#!/usr/bin/env python3
"""Bytes of real gradients after `lossless`, and its speed.

python benchmarks/lossless_gradients.py

Trains the models of scripts/results/record_gradients.py in float32, in float32 under autocast to
bfloat16, and in bfloat16. Bytes are sums over all tensors of the recorded steps, with all headers.
`bound` is the ratio without tables and headers: each tensor's exponents at their entropy, signs and
significands of elements other than 0 as they are. Speeds are those of GRADCOMP_SIMD's level.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

import gradcomp

# Run as a file, Python finds modules beside it only.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from results.record_gradients import TRAININGS, Model

MODELS = (Model.DIGITS_CNN, Model.CHAR_TRANSFORMER)
PRECISIONS = ("float32", "autocast", "bfloat16")
SPEED_NUMEL = 1 << 23
REPEATS = 9


def least_bits(grad: torch.Tensor) -> float:
    """Bits of a tensor whose exponents are coded one by one, and nothing else."""
    bits = grad.float().numpy().view(np.uint32)
    significand_bits = 23 if np.any(bits & 0xFFFF) else 7
    exponents = bits >> 23 & 0xFF
    counts = np.bincount(exponents.ravel())
    counts = counts[counts > 0]
    entropy = float(counts @ np.log2(grad.numel() / counts))
    return entropy + (1 + significand_bits) * int(np.count_nonzero(exponents))


class Size(NamedTuple):
    """Bytes of a step's gradients: in their own type, of their frames, and at least."""

    step: int
    before: int
    after: int
    least: float


def sizes(model: Model, precision: str) -> list[Size]:
    """The sizes of a training's recorded steps."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    training = TRAININGS[model]()
    codec = gradcomp.get_codec("lossless")
    if precision == "bfloat16":
        training.model.to(torch.bfloat16)
    found = []
    for step in range(1, max(training.steps) + 1):
        batch = training.batch(rng)
        inputs = batch.inputs
        if precision == "bfloat16" and inputs.is_floating_point():
            inputs = inputs.to(torch.bfloat16)
        training.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
            outputs = training.model(inputs)
        nn.functional.cross_entropy(outputs.float(), batch.classes).backward()  # type: ignore[no-untyped-call]
        if step in training.steps:
            grads = [p.grad for p in training.model.parameters() if p.grad is not None]
            before = sum(grad.numel() * grad.element_size() for grad in grads)
            after = sum(codec.encode(grad).size for grad in grads)
            bits = sum(least_bits(grad) for grad in grads)
            found.append(Size(step, before, after, bits / 8))
        training.optimizer.step()
    return found


def best(run: Callable[[], object]) -> float:
    """Seconds of CPU time of the fastest run."""
    times = []
    for _ in range(REPEATS):
        start = process_time()
        run()
        times.append(process_time() - start)
    return min(times)


def speeds(element_bytes: int) -> list[float]:
    """GB/s of memcpy, encode, decode and decode_add, in bytes of the gradient's own type."""
    codec = gradcomp.get_codec("lossless")
    x = np.random.default_rng(0).standard_normal(SPEED_NUMEL, np.float32)
    if element_bytes == 2:
        x = (x.view(np.uint32) & 0xFFFF0000).view(np.float32)
    payload = codec.encode_payload(x)
    y = np.empty_like(x)
    runs = (
        lambda: np.copyto(y, x),
        lambda: codec.encode_payload(x),
        lambda: codec.decode_payload(payload, x.size, out=y),
        lambda: codec.decode_payload_add(payload, y),
    )
    return [element_bytes * x.size / best(run) / 1e9 for run in runs]


def main() -> None:
    """Print both tables."""
    torch.set_num_threads(1)
    titles = f"{'bytes':>12}{'lossless':>12}{'times':>8}{'bound':>8}"
    print(f"{'model':<18}{'precision':<12}{'step':>6}{titles}")
    for model in MODELS:
        for precision in PRECISIONS:
            for size in sizes(model, precision):
                ratios = f"{size.before / size.after:>8.3f}{size.before / size.least:>8.3f}"
                measured = f"{size.before:>12,}{size.after:>12,}{ratios}"
                print(f"{model:<18}{precision:<12}{size.step:>6}{measured}")
    print(f"\nGB/s     {'memcpy':>10}{'encode':>10}{'decode':>10}{'decode_add':>12}")
    for name, element_bytes in (("bfloat16", 2), ("float32", 4)):
        copy, encode, decode, add = speeds(element_bytes)
        print(f"{name:<9}{copy:>10.2f}{encode:>10.2f}{decode:>10.2f}{add:>12.2f}")


if __name__ == "__main__":
    main()
