#!/usr/bin/env python3
"""Bytes of real gradients after `lossless`, and its speed.

python benchmarks/lossless_gradients.py

Trains the models of scripts/results/record_gradients.py in float32, in float32 under autocast to
bfloat16, and in bfloat16. Bytes are sums over all tensors of the recorded steps, with all headers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from time import process_time

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


def sizes(model: Model, precision: str) -> list[tuple[int, int, int]]:
    """Step, bytes of the gradients in their own type, and bytes of their frames."""
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
            found.append((step, before, sum(codec.encode(grad).size for grad in grads)))
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
    print(f"{'model':<18}{'precision':<12}{'step':>6}{'bytes':>12}{'lossless':>12}{'times':>8}")
    for model in MODELS:
        for precision in PRECISIONS:
            for step, before, after in sizes(model, precision):
                ratio = before / after
                print(f"{model:<18}{precision:<12}{step:>6}{before:>12,}{after:>12,}{ratio:>8.3f}")
    print(f"\nGB/s     {'memcpy':>10}{'encode':>10}{'decode':>10}{'decode_add':>12}")
    for name, element_bytes in (("bfloat16", 2), ("float32", 4)):
        copy, encode, decode, add = speeds(element_bytes)
        print(f"{name:<9}{copy:>10.2f}{encode:>10.2f}{decode:>10.2f}{add:>12.2f}")


if __name__ == "__main__":
    main()
