"""Every codec, alone and with every memory, and algorithms, for many steps of one model."""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from workers.runner import Cases
from workers.specs import FEW_STEPS, SHAPES, SPECS, config, normal
from workers.tf_harness import averages_of

from gradcomp import Loopback
from horovod_compressors.tensorflow import Compression

cases = Cases()

COMPARED = 20
"""Steps in which averages are compared with those of the loopback."""


@cases
def tf_replicas() -> dict[str, dict[str, Any]]:
    """For each spec: whether all ranks end with the same variables; the distance that these have
    moved; and, on rank 0, in which of the first steps averages differ from those of a loopback with
    the same gradients.
    """
    rules = config()
    # A matrix for each spec; all other shapes for a few.
    shapes = {
        f"{position}.{shape}": SHAPES[shape]
        for position in range(len(SPECS))
        for shape in (SHAPES if position % 10 == 0 else ["matrix"])
    }
    weights = [tf.Variable(tf.zeros(shape), name=name) for name, shape in shapes.items()]
    sizes = [w.shape.num_elements() for w in weights]
    ends = np.cumsum(sizes)[:-1]
    size, rank = hvd.size(), hvd.rank()
    targets = [normal(sum(sizes), r) for r in range(size)]
    traced: list[int] = []
    # Without groups Horovod makes two branches for each tensor, which are slow to trace.
    averages = averages_of(weights, Compression(rules, weights), groups=4)

    @tf.function
    def average(flat: Any) -> Any:
        traced.append(1)
        parts = zip(tf.split(flat, sizes), weights, strict=True)
        found = averages([tf.reshape(part, w.shape) for part, w in parts])
        return tf.concat([tf.reshape(one, [-1]) for one in found], 0)

    loopback = Loopback(rules, size) if rank == 0 else None
    differences: dict[str, list[int]] = {name: [] for name in shapes}
    now = np.zeros(sum(sizes), np.float32)
    for step in range(FEW_STEPS):
        # The gradient of a squared distance to the rank's own target, with noise.
        of_ranks = [now - targets[r] + normal(now.size, r, step) for r in range(size)]
        found = average(tf.constant(of_ranks[rank])).numpy()
        if loopback is not None and step < COMPARED:
            parts = [np.split(grad, ends) for grad in of_ranks]
            grads = {
                name: [part[n].reshape(shape) for part in parts]
                for n, (name, shape) in enumerate(shapes.items())
            }
            expected = loopback.step(grads)
            for name, actual in zip(shapes, np.split(found, ends), strict=True):
                if not np.array_equal(actual, expected[name][rank].reshape(-1)):
                    differences[name].append(step)
        # The optimizer's update of the variables, on which these gradients do not depend.
        now -= np.float32(0.01) * found
    assert len(traced) == 1, f"traced {len(traced)} times"
    of_all = hvd.allgather(tf.constant(now[None])).numpy()
    spans = dict(zip(shapes, np.split(np.arange(now.size), ends), strict=True))
    result = {}
    for position, text in enumerate(SPECS):
        names = [name for name in shapes if name.startswith(f"{position}.")]
        of_spec = np.concatenate([spans[name] for name in names])
        result[text] = {
            "identical": all(np.array_equal(row[of_spec], now[of_spec]) for row in of_all),
            "moved": float(np.abs(now[of_spec]).max()),
            "differences": {name: differences[name][:3] for name in names if differences[name]},
        }
    return result
