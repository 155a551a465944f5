"""Cost of averaging in TensorFlow, relative to PyTorch, on the same tensors under Horovod.

  python benchmarks/tensorflow_overhead.py [--ranks 2] [SPEC...]

For each framework one job measures steps with fixed gradients, with Horovod and without; the
difference is the cost of averaging. Specs take turns, and medians count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

SPECS = (
    "residual|topk(ratio=0.01)",
    "residual|int8",
    "fp16",
    "powersgd(rank=2,start_step=0,variant=library)",
)
# The shapes of a small network: 2.4 million parameters.
SHAPES = [(256, 512), (512, 512), (512, 1024), (1024, 1024), (1024, 400), (512,), (1024,)]
WARM_UP = 5


def torch_steps(specs: Sequence[str]) -> tuple[int, list[Callable[[], Any]]]:
    """The rank, a step without Horovod, and a step of each spec."""
    import horovod.torch as hvd
    import torch

    from horovod_compressors.torch import Compression

    hvd.init()
    torch.set_num_threads(1)

    def step_of(spec: str | None) -> Callable[[], Any]:
        weights = {
            f"{spec}.{n}": torch.nn.Parameter(torch.zeros(shape)) for n, shape in enumerate(SHAPES)
        }
        grads = [torch.from_numpy(grad) for grad in gradients(hvd.rank())]
        optimizer: Any = torch.optim.SGD(weights.values(), lr=0.0)
        if spec is not None:
            optimizer = hvd.DistributedOptimizer(
                optimizer,
                named_parameters=weights.items(),
                compression=Compression(spec, weights.items()),
            )

        def step() -> None:
            pairs = zip(weights.values(), grads, strict=True)
            torch.stack([(w * grad).sum() for w, grad in pairs]).sum().backward()
            if spec is not None:
                optimizer.synchronize()
            for w in weights.values():
                w.grad = None

        return step

    return hvd.rank(), [step_of(spec) for spec in (None, *specs)]


def tensorflow_steps(specs: Sequence[str]) -> tuple[int, list[Callable[[], Any]]]:
    """The same as `torch_steps`, in TensorFlow."""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    from horovod_compressors.tensorflow import Compression

    tf.config.threading.set_intra_op_parallelism_threads(1)
    hvd.init()

    def step_of(spec: str | None) -> Callable[[], Any]:
        weights = [tf.Variable(tf.zeros(shape), name=str(n)) for n, shape in enumerate(SHAPES)]
        grads = [tf.constant(grad) for grad in gradients(hvd.rank())]
        compression = None if spec is None else Compression(spec, weights)

        @tf.function
        def averages(grads: Any) -> Any:
            with tf.GradientTape() as tape:
                pairs = zip(weights, grads, strict=True)
                loss = tf.add_n([tf.reduce_sum(w * grad) for w, grad in pairs])
            if compression is not None:
                tape = hvd.DistributedGradientTape(tape, compression=compression)
            return tape.gradient(loss, weights)

        return lambda: [average.numpy() for average in averages(grads)[-1:]]

    return hvd.rank(), [step_of(spec) for spec in (None, *specs)]


def gradients(rank: int) -> list[Any]:
    """The gradients of one rank; the same in every framework."""
    random = np.random.default_rng(rank)
    return [random.standard_normal(shape, np.float32) for shape in SHAPES]


def measure(framework: str, specs: Sequence[str], steps: int) -> None:
    """Work of each rank; rank 0 prints the milliseconds of averaging."""
    rank, functions = (torch_steps if framework == "torch" else tensorflow_steps)(specs)
    seconds: list[list[float]] = [[] for _ in functions]
    for _ in range(WARM_UP + steps):
        for function, of_function in zip(functions, seconds, strict=True):
            began = time.perf_counter()
            function()
            of_function.append(time.perf_counter() - began)
    medians = [statistics.median(of_function[WARM_UP:]) for of_function in seconds]
    if rank == 0:
        print(json.dumps([1e3 * (median - medians[0]) for median in medians[1:]]), flush=True)


def run(framework: str, specs: Sequence[str], ranks: int, steps: int) -> list[float]:
    """Start the job of a framework."""
    launcher = [Path(sys.executable).with_name("horovodrun"), "--gloo", "-np", str(ranks)]
    worker = [sys.executable, __file__, "--framework", framework, "--steps", str(steps), *specs]
    job = subprocess.run([*launcher, *worker], capture_output=True, text=True, check=False)
    lines = [line for line in job.stdout.splitlines() if "[0]<stdout>:[" in line]
    if job.returncode != 0 or not lines:
        raise SystemExit(f"the job of {framework} failed:\n{job.stdout}{job.stderr}")
    result: list[float] = json.loads(lines[-1].partition(":")[2])
    return result


def main() -> None:
    """Parse the command line and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("specs", nargs="*", default=SPECS, metavar="SPEC")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--framework", choices=["torch", "tensorflow"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    specs = list(arguments.specs)
    if arguments.framework is not None:
        measure(arguments.framework, specs, arguments.steps)
        return
    torch, tensorflow = (
        run(framework, specs, arguments.ranks, arguments.steps)
        for framework in ("torch", "tensorflow")
    )
    print(f"{'':32} {'PyTorch':>10} {'TensorFlow':>10} {'ratio':>7}")
    for spec, a, b in zip(specs, torch, tensorflow, strict=True):
        print(f"{spec:32} {a:7.2f} ms {b:7.2f} ms {b / a:7.2f}")


if __name__ == "__main__":
    main()
