"""Helpers of cases on TensorFlow.

``python -m workers.tf_harness REPORTS SHARED MODULE...`` runs the cases of some modules (see `runner`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from workers.runner import run

from gradcomp import Loopback
from horovod_compressors.tensorflow import Compression

MATRIX = (64, 80)
"""Enough elements and dimensions to be compressed under the default rules."""


def variables(shapes: Mapping[str, Sequence[int]], dtype: Any = tf.float32) -> list[Any]:
    """Variables of value 0."""
    return [
        tf.Variable(tf.zeros(shape, dtype), name=name, dtype=dtype)
        for name, shape in shapes.items()
    ]


def gradients(weights: Sequence[Any], step: int, rank: int | None = None) -> list[Any]:
    """The gradients of ``rank`` (by default this one) in a step, which all ranks can compute."""
    seed = [step, hvd.rank() if rank is None else rank]
    return [
        np.random.default_rng([*seed, position])
        .standard_normal(tuple(w.shape))
        .astype(w.dtype.as_numpy_dtype)
        for position, w in enumerate(weights)
    ]


def averages_of(weights: Sequence[Any], compression: Any, **options: Any) -> Callable[..., Any]:
    """A function from gradients to their averages by the stock tape."""

    def averages(grads: Sequence[Any]) -> Any:
        with tf.GradientTape() as tape:
            terms = [
                tf.reduce_sum(tf.cast(w * g, tf.float64))
                for w, g in zip(weights, grads, strict=True)
            ]
            loss = tf.add_n(terms)
        distributed = hvd.DistributedGradientTape(tape, compression=compression, **options)
        return distributed.gradient(loss, weights)

    return averages


def check_steps(
    compression: Compression,
    weights: Sequence[Any],
    *,
    steps: int = 3,
    scale: int = 1,
    graph: bool = True,
    **options: Any,
) -> list[Any]:
    """Average gradients in some steps, and check for equality with the loopback to the last bit.

    Args:
        scale: factor from the loopback's averages to the expected averages.
        graph: whether to trace one graph; otherwise Horovod makes graphs.
        options: options of the tape.

    Returns:
        The last averages.
    """
    averages = averages_of(weights, compression, **options)
    traces = 0

    def counted(grads: Sequence[Any]) -> Any:
        nonlocal traces
        traces += 1
        return averages(grads)

    function = tf.function(counted) if graph else counted
    names = [w.name.removesuffix(":0") for w in weights]
    loopback = Loopback(compression.config, hvd.size())
    for step in range(steps):
        mine = [tf.constant(grad) for grad in gradients(weights, step)]
        found = [one.numpy() for one in function(mine)]
        of_ranks = [gradients(weights, step, rank) for rank in range(hvd.size())]
        expected = loopback.step(
            {name: [grads[n] for grads in of_ranks] for n, name in enumerate(names)}
        )
        for n, name in enumerate(names):
            wanted = np.asarray(expected[name][hvd.rank()])
            check_equal(found[n], (wanted * scale).astype(found[n].dtype), f"{step}: {name}")
            check_same_on_all_ranks(found[n], name)
    if graph:
        assert traces == 1, f"traced {traces} times"
    return found


def check_equal(actual: Any, expected: Any, label: str = "") -> None:
    """Check for equality to the last bit, NaN included."""
    assert actual.dtype == expected.dtype, f"{label}: {actual.dtype} instead of {expected.dtype}"
    np.testing.assert_array_equal(actual, expected, label)


def check_same_on_all_ranks(array: Any, label: str = "") -> None:
    """Check that every rank has the same bytes."""
    data = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
    rows = hvd.allgather(tf.constant(data[None]))
    for rank, row in enumerate(rows.numpy()):
        assert np.array_equal(row, data), f"{label} differs between this rank and rank {rank}"


def barrier() -> None:
    """Wait for all ranks."""
    hvd.allgather(tf.zeros(1, tf.uint8))


def main(reports: str, modules: Sequence[str]) -> None:
    """Run the cases of modules, and write a line for each."""
    tf.config.threading.set_inter_op_parallelism_threads(2)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    hvd.init()
    run(hvd.rank(), barrier, reports, modules)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[3:])
