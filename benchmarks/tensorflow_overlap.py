"""Time of a TensorFlow step whose gradients travel beside the backward pass, and of one where they do not.

  python benchmarks/netlab --ranks 2 --rate 1gbit -- python benchmarks/tensorflow_overlap.py

Each rank trains a perceptron. A step's gradients go into its exchange in one part, after the last of
them, or in several; steps take turns. Rank 0 prints the medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from horovod_compressors.tensorflow import Compression, compression

SPECS = ("residual|topk(ratio=0.01)", "residual|int8", "fp16", "powersgd(rank=4,start_step=0)")
WARM_UP = 3
Step = Callable[[], Any]


def step_of(spec: str | None, parts: int, options: argparse.Namespace) -> Step:
    """A step of training; without a spec, of a rank alone."""
    width = options.width
    random = np.random.default_rng(0)
    weights = [
        tf.Variable(random.standard_normal((width, width), np.float32) / width**0.5, name=f"{n}")
        for n in range(options.layers)
    ]
    inputs = tf.constant(random.standard_normal((options.batch, width), np.float32))
    compressed = None if spec is None else Compression(spec, weights)

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            x = inputs
            for weight in weights:
                x = tf.nn.relu(x @ weight)
            loss = tf.reduce_mean(x * x)
        if compressed is not None:
            tape = hvd.DistributedGradientTape(tape, compression=compressed)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.01 * gradient)
        return loss

    with mock.patch.object(compression, "PARTS", parts):
        step()  # traced now
    return lambda: step().numpy()


def main() -> None:
    """Parse the command line, and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("specs", nargs="*", default=SPECS, metavar="SPEC")
    parser.add_argument("--layers", type=int, default=12, help="(default: 12)")
    parser.add_argument("--width", type=int, default=1024, help="(default: 1024)")
    parser.add_argument("--batch", type=int, default=128, help="samples of a rank (default: 128)")
    parser.add_argument("--steps", type=int, default=15, help="(default: 15)")
    options = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    hvd.init()
    contenders = [step_of(None, 1, options)]
    contenders += [
        step_of(spec, parts, options) for spec in options.specs for parts in (1, compression.PARTS)
    ]
    seconds: list[list[float]] = [[] for _ in contenders]
    for _ in range(WARM_UP + options.steps):
        for step, of_step in zip(contenders, seconds, strict=True):
            hvd.broadcast(tf.zeros(1), 0)  # ranks begin together
            began = time.perf_counter()
            step()
            of_step.append(1e3 * (time.perf_counter() - began))
    alone, *medians = (statistics.median(of_step[WARM_UP:]) for of_step in seconds)
    if hvd.rank() == 0:
        print(f"{'':32} {'one part':>10} {'parts':>10} {'ratio':>6}")
        print(f"{'nothing averaged':32} {alone:7.1f} ms {alone:7.1f} ms")
        for spec, single, several in zip(options.specs, medians[::2], medians[1::2], strict=True):
            print(f"{spec:32} {single:7.1f} ms {several:7.1f} ms {several / single:6.2f}")


if __name__ == "__main__":
    main()
