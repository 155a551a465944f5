"""Error feedback in models that do not use all variables in each step: given = applied + residual.

The law holds for the mean over the ranks of all gradients, of all averages, and of what residuals still hold.
`conservation` has the same law for PyTorch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf
import tf_keras
from workers.runner import Cases, refused
from workers.tf_harness import MATRIX, variables

from horovod_compressors.tensorflow import Compression, DistributedOptimizer

cases = Cases()

SPECS = ("residual|topk(ratio=0.05)", "residual|sign", "powersgd(rank=2,start_step=0)")
NAMES = ("a", "b", "c")
STEPS = 10


class Sums:
    """What a job has given and applied, by variable."""

    def __init__(self) -> None:
        self.given = {name: np.zeros(MATRIX) for name in NAMES}
        self.applied = {name: np.zeros(MATRIX) for name in NAMES}

    def gradients(self, step: int, names: str) -> list[Any]:
        """This rank's gradients; None for other variables than ``names``. Those of all ranks are given."""
        for name in names:
            ranks = [_gradient(step, rank, name) for rank in range(hvd.size())]
            self.given[name] += np.mean(ranks, axis=0)
        return [
            tf.constant(_gradient(step, hvd.rank(), name)) if name in names else None
            for name in NAMES
        ]

    def apply(self, averages: Sequence[Any]) -> None:
        """The script applies averages."""
        for name, average in zip(NAMES, averages, strict=True):
            if average is not None:
                self.applied[name] += average.numpy()

    def check(self, residuals: Mapping[str, Any], label: str) -> None:
        """Check the law."""
        for name, given in self.given.items():
            held = np.asarray(residuals.get(name, np.zeros(MATRIX)), np.float32).reshape(MATRIX)
            mean = hvd.allreduce(tf.constant(held)).numpy()
            lost = float(np.linalg.norm(given - self.applied[name] - mean))
            assert lost <= 1e-4 * np.linalg.norm(given), f"{label}: {name}: {lost} is lost"


def _gradient(step: int, rank: int, name: str) -> Any:
    rng = np.random.default_rng([step, rank, NAMES.index(name)])
    return rng.standard_normal(MATRIX).astype(np.float32)


def _in_turn(step: int) -> str:
    """The variables of a step; the last one comes late."""
    return "ab"[step % 2] + "c"[: int(step > 2)]


def _frozen(step: int) -> str:
    return "abc" if not 3 <= step < 7 else "c"


def _loss(weights: Sequence[Any], grads: Sequence[Any]) -> Any:
    used = zip(weights, grads, strict=True)
    return tf.add_n([tf.reduce_sum(w * grad) for w, grad in used if grad is not None])


def _averages(
    weights: Sequence[Any], compression: Compression, all_given: bool = True
) -> Callable[[Sequence[Any]], Any]:
    """A function from gradients, some of them None, to their averages by the stock tape; see `_tape`."""

    def averages(grads: Sequence[Any]) -> Any:
        with hvd.DistributedGradientTape(tf.GradientTape(), compression=compression) as tape:
            loss = _loss(weights, grads)
        if all_given:
            return tape.gradient(loss, weights)
        chosen = [w for w, grad in zip(weights, grads, strict=True) if grad is not None]
        found = iter(tape.gradient(loss, chosen))
        return [None if grad is None else next(found) for grad in grads]

    return averages


def _tape(
    use: Callable[[int], str],
    spec: str,
    label: str,
    *,
    graph: bool = True,
    named: bool = True,
    all_given: bool = True,
) -> None:
    """Average gradients by the stock tape.

    Args:
        use: the names of the variables that a step uses.
        graph: whether the script makes graphs: one for each choice of variables.
        named: whether the compression knows all variables from the start.
        all_given: whether the tape gets all variables, and returns None for those that are not used.
    """
    weights = variables(dict.fromkeys(NAMES, MATRIX))
    compression = Compression(spec, weights if named else None)

    averages_of = _averages(weights, compression, all_given)
    function = tf.function(averages_of) if graph else averages_of
    sums = Sums()
    for step in range(STEPS):
        grads = sums.gradients(step, use(step))
        averages = function(grads)
        assert [one is None for one in averages] == [one is None for one in grads]
        sums.apply(averages)
    sums.check(compression.state_dict()["residual"], f"{label}, {spec}")


@cases
def tf_variables_in_turn() -> None:
    for spec in SPECS:
        _tape(_in_turn, spec, "in turn")
    _tape(_in_turn, SPECS[0], "without graphs", graph=False)
    _tape(_in_turn, SPECS[0], "named as they come", named=False)
    _tape(_in_turn, SPECS[0], "those that are used", named=False, all_given=False)


@cases
def tf_variables_that_are_frozen_and_thawed() -> None:
    _tape(_frozen, SPECS[0], "frozen", all_given=False)


@cases
def tf_branches_in_turn() -> None:
    """One graph with both branches: the gradient of the other one is zero."""
    weights = variables(dict.fromkeys(NAMES, MATRIX))
    compression = Compression(SPECS[0], weights)

    @tf.function
    def average(first: Any, grads: Any) -> Any:
        a, b, _ = weights
        with hvd.DistributedGradientTape(tf.GradientTape(), compression=compression) as tape:
            loss = tf.cond(
                first,
                lambda: tf.reduce_sum(a * grads[0]),
                lambda: tf.reduce_sum(b * grads[1]),
            )
        return tape.gradient(loss, weights)

    sums = Sums()
    for step in range(STEPS):
        grads = sums.gradients(step, "ab"[step % 2])
        given = [tf.zeros(MATRIX) if grad is None else grad for grad in grads]
        averages = average(tf.constant(step % 2 == 0), given)
        assert averages[2] is None
        sums.apply(averages)
    sums.check(compression.state_dict()["residual"], "branches")


@cases
def tf_variables_that_differ_by_rank() -> None:
    """Horovod itself averages one variable's gradient with another's."""
    weights = variables(dict.fromkeys(NAMES, MATRIX))
    mine = Sums().gradients(0, "ab"[hvd.rank()] + "c")
    for graph in (True, False):
        averages = _averages(weights, Compression(SPECS[0], weights))
        function = tf.function(averages) if graph else averages
        refused(
            partial(function, mine),
            Exception,
            "ProtocolError: the ranks have gradients of different parameters in this step",
            "all but 1, b, digest",
            "all but 1, a, digest",
            "adding 0 times its sum to the loss",
        )


@cases
def tf_keras_variables_in_turn() -> None:
    """Keras applies the averages, with the rate 1."""
    for library in (keras, tf_keras):
        made = keras.Variable if library is keras else tf.Variable
        weights = [made(tf.zeros(MATRIX), name=name) for name in NAMES]
        compression = Compression(SPECS[0], weights)
        optimizer = DistributedOptimizer(library.optimizers.SGD(1.0), compression)
        optimizer.build(weights)
        sums = Sums()
        for step in range(STEPS):
            grads = sums.gradients(step, _in_turn(step))
            if library is keras:
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", "Gradients do not exist")
                    optimizer.apply(grads, weights)
            else:
                optimizer.minimize(partial(_loss, weights, grads), weights)
        sums.apply([-tf.convert_to_tensor(w) for w in weights])
        sums.check(compression.state_dict()["residual"], library.__name__)
