"""Steps in TensorFlow whose gradients travel as they come, and after the last one.

  python benchmarks/netlab --ranks 2 --rate 200mbit -- python benchmarks/tensorflow_overlap.py [SPEC...]

Each rank is a process of Horovod. The model is a chain of dense layers. Rank 0 prints the median times
of steps: without Horovod, with gradients that are exchanged as the backward pass makes them, and with
gradients that wait for the last one. The three take turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from horovod_compressors.tensorflow import Compression

SPECS = ("residual|topk(ratio=0.01)", "residual|int8")
WARM_UP = 5


class AfterTheLast(tf.GradientTape):
    """A tape whose gradients all wait for the last one."""

    def gradient(self, *args: Any, **kwargs: Any) -> Any:
        """See the base class."""
        grads = super().gradient(*args, **kwargs)
        with tf.control_dependencies(grads):
            return [tf.identity(grad) for grad in grads]


def step_of(
    shape: tuple[int, int], batch: int, tape_class: Any, spec: str | None
) -> Callable[[], Any]:
    """A step of a chain of so many layers of this width; no spec: without Horovod."""
    layers, width = shape
    random = np.random.default_rng(hvd.rank())
    weights = [
        tf.Variable(random.standard_normal((width, width), np.float32) / width**0.5, name=str(n))
        for n in range(layers)
    ]
    x = tf.constant(random.standard_normal((batch, width), np.float32))
    compression = None if spec is None else Compression(spec, weights)

    @tf.function
    def averages() -> Any:
        with tape_class() as tape:
            values = x
            for weight in weights:
                values = tf.nn.relu(values @ weight)
            loss = tf.reduce_mean(values * values)
        if compression is not None:
            tape = hvd.DistributedGradientTape(tape, compression=compression)
        return [grad[0, 0] for grad in tape.gradient(loss, weights)]

    return lambda: [average.numpy() for average in averages()]


def medians(steps: Sequence[Callable[[], Any]], rounds: int) -> list[float]:
    """The median of each step's times, in milliseconds."""
    seconds: list[list[float]] = [[] for _ in steps]
    for _ in range(WARM_UP + rounds):
        for step, of_step in zip(steps, seconds, strict=True):
            began = time.perf_counter()
            step()
            of_step.append(time.perf_counter() - began)
    return [1e3 * statistics.median(one[WARM_UP:]) for one in seconds]


def main() -> None:
    """Parse the command line and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("specs", nargs="*", default=SPECS, metavar="SPEC")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=30)
    arguments = parser.parse_args()
    hvd.init()
    shape = arguments.layers, arguments.width
    tapes = (tf.GradientTape, AfterTheLast)
    steps = [step_of(shape, arguments.batch, tf.GradientTape, None)]
    for spec in arguments.specs:
        steps += [step_of(shape, arguments.batch, tape, spec) for tape in tapes]
    alone, *others = medians(steps, arguments.steps)
    if hvd.rank() != 0:
        return
    print(f"without Horovod: {alone:.1f} ms")
    print(f"{'':28} {'as they come':>14} {'after the last':>15}")
    for spec, first, second in zip(arguments.specs, others[::2], others[1::2], strict=True):
        print(f"{spec:28} {first:11.1f} ms {second:12.1f} ms")


if __name__ == "__main__":
    main()
