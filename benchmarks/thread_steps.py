"""Time of a step that threads of the core save, by the size of a bucket's tensors.

  python benchmarks/thread_steps.py --threads 2

A step of one rank without a network: encoding, and adding its own frames to the average. Steps with one
thread and with several take turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

import numpy as np

from gradcomp import Loopback, _core

SPECS = (
    "residual|topk(ratio=0.01)",
    "int8",
    "residual|sign",
    "rotate|uniform(bits=4)",
    "powersgd(rank=4,start_step=0)",
)
SIZES = (1 << 15, 1 << 17, 1 << 18, 1 << 19, 1 << 20)
COLS = 512
WARM_UP = 3


def medians(
    spec: str, numel: int, counts: Sequence[int], options: argparse.Namespace
) -> list[float]:
    """Milliseconds of a step, for each number of threads."""
    rng = np.random.default_rng(0)
    shape = (numel // COLS, COLS)
    grads = {
        f"tensor {i}": [rng.standard_normal(shape, np.float32)] for i in range(options.tensors)
    }
    loopback = Loopback(spec, 1)
    times: list[list[float]] = [[] for _ in counts]
    for _ in range(WARM_UP + options.steps):
        for count, of_count in zip(counts, times, strict=True):
            _core.set_thread_count(count)
            begin = time.perf_counter()
            loopback.step(grads)
            of_count.append(1e3 * (time.perf_counter() - begin))
    return [statistics.median(of_count[WARM_UP:]) for of_count in times]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2, help="(default: 2)")
    parser.add_argument("--tensors", type=int, default=16, help="of a bucket (default: 16)")
    parser.add_argument("--steps", type=int, default=20, help="(default: 20)")
    options = parser.parse_args()
    for name, least in (("threads", 2), ("tensors", 1), ("steps", 1)):
        if getattr(options, name) < least:
            parser.error(f"--{name} {getattr(options, name)}: it must be at least {least}")
    counts = (1, options.threads)
    print(f"| elements | spec | ms, 1 thread | ms, {options.threads} threads | ratio |")
    print("|---:|---|---:|---:|---:|")
    for numel in SIZES:
        for spec in SPECS:
            single, several = medians(spec, numel, counts, options)
            name = spec.replace("|", "\\|")
            ratio = several / single
            print(
                f"| {numel:,} | `{name}` | {single:.2f} | {several:.2f} | {ratio:.2f} |", flush=True
            )


if __name__ == "__main__":
    main()
