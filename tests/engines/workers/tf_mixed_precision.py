"""Mixed precision in TensorFlow: a loss scale, and an overflow on one rank only."""

from __future__ import annotations

from functools import cache
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf
import tf_keras
from workers.runner import Cases, refused
from workers.tf_harness import check_same_on_all_ranks

from gradcomp import Config
from gradcomp.errors import ConfigError
from horovod_compressors.tensorflow import Compression, DistributedOptimizer

cases = Cases()

SPEC = "residual|topk(ratio=0.05)"
STEPS = 8
OVERFLOW = 3
"""The step with an Inf on rank 1."""

Scale = keras.optimizers.LossScaleOptimizer
Keras2Scale = tf_keras.mixed_precision.LossScaleOptimizer


def batch(step: int) -> tuple[Any, Any]:
    """Inputs of a rank, and weights of the outputs."""
    rng = np.random.default_rng([step, hvd.rank()])
    weights = np.ones(80, np.float32)
    if step == OVERFLOW and hvd.rank() == 1:
        weights[7] = np.inf
    return tf.constant(rng.standard_normal((5, 64), np.float32)), tf.constant(weights)


def model(library: Any = keras) -> Any:
    library.utils.set_random_seed(1)
    one = library.Sequential([library.layers.Input([64]), library.layers.Dense(80)])
    kernel = np.random.default_rng(1).standard_normal((64, 80), np.float32)
    one.set_weights([kernel, np.zeros(80, np.float32)])
    return one


def values_of(one: Any) -> list[Any]:
    return [v.value for v in one.trainable_variables]


def loss_of(one: Any, x: Any, weights: Any) -> Any:
    return tf.reduce_mean(one(x) * weights)


class Run:
    """Training with some averaging; weights and scales after each step.

    Args:
        tape: from a tape to one that may average; None for an optimizer of Keras 2.
    """

    def __init__(self, one: Any, optimizer: Any, compression: Compression, tape: Any) -> None:
        self.model, self.optimizer, self.compression = one, optimizer, compression
        optimizer.build(one.trainable_variables)

        @tf.function
        def step(x: Any, weights: Any) -> None:
            with tf.GradientTape() as inner:
                loss = optimizer.scale_loss(loss_of(one, x, weights))
            optimizer.apply(tape(inner).gradient(loss, values_of(one)), one.trainable_variables)

        @tf.function
        def step_of_keras_2(x: Any, weights: Any) -> None:
            with tf.GradientTape() as inner:
                loss = loss_of(one, x, weights)
            optimizer.minimize(loss, one.trainable_variables, inner)

        self.step = step_of_keras_2 if tape is None else step

    @property
    def scale(self) -> float:
        one = self.optimizer
        return float((one.loss_scale if hasattr(one, "loss_scale") else one.dynamic_scale).numpy())

    def unscaled(self) -> list[Any]:
        """The residuals without the scale."""
        state = self.compression.state_dict()
        return [value / state["loss_scale"] for value in state["residual"].values()]

    def train(self, before: Any = lambda: None) -> list[float]:
        scales, residuals = [], []
        weights: list[Any] = [one.copy() for one in self.model.get_weights()]
        for step in range(STEPS):
            before()
            self.step(*batch(step))
            scales.append(self.scale)
            before()
            residuals.append(self.unscaled())
            now = self.model.get_weights()
            for one in now:
                assert np.isfinite(one).all()
                check_same_on_all_ranks(one)
            skipped = all((a == b).all() for a, b in zip(weights, now, strict=True))
            assert skipped == (step == OVERFLOW), step
            weights = [one.copy() for one in now]
        for was, after in zip(residuals[OVERFLOW - 1], residuals[OVERFLOW], strict=True):
            assert was.any()
            np.testing.assert_array_equal(was, after)  # the skipped step left no trace
        return scales


@cache
def plain() -> list[Any]:
    """The weights after training in float32, without the step that overflows."""
    one = model()
    optimizer = keras.optimizers.SGD(0.125)
    optimizer.build(one.trainable_variables)
    compression = Compression(SPEC, one.trainable_variables)

    @tf.function
    def step(x: Any, weights: Any) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(one, x, weights)
        tape = hvd.DistributedGradientTape(tape, compression=compression)
        optimizer.apply(tape.gradient(loss, values_of(one)), one.trainable_variables)

    for number in range(STEPS):
        if number != OVERFLOW:
            step(*batch(number))
    return list(one.get_weights())


# Powers of two, so that scaling rounds nothing.
SCALES = [1024.0, 2048.0, 2048.0, 1024.0, 1024.0, 2048.0, 2048.0, 4096.0]


@cases
def tf_tape_with_a_loss_scale() -> None:
    """A loop of one's own: `set_loss_scale` before each step. Nothing is lost or counted twice."""
    one = model()
    optimizer = Scale(keras.optimizers.SGD(0.125), initial_scale=1024.0, dynamic_growth_steps=2)
    compression = Compression(SPEC, one.trainable_variables)
    run = Run(
        one,
        optimizer,
        compression,
        lambda tape: hvd.DistributedGradientTape(tape, compression=compression),
    )
    assert run.train(lambda: compression.set_loss_scale(run.scale)) == SCALES
    for found, expected in zip(one.get_weights(), plain(), strict=True):
        np.testing.assert_array_equal(found, expected)


@cases
def tf_keras_with_a_loss_scale() -> None:
    """The optimizer's scale is read in each step."""
    one = model()
    inner = Scale(keras.optimizers.SGD(0.125), initial_scale=1024.0, dynamic_growth_steps=2)
    compression = Compression(SPEC, one.trainable_variables)
    optimizer = DistributedOptimizer(inner, compression)
    assert Run(one, optimizer, compression, lambda tape: tape).train() == SCALES
    for found, expected in zip(one.get_weights(), plain(), strict=True):
        np.testing.assert_array_equal(found, expected)


def of_keras_2(compression: Compression, **options: Any) -> Any:
    inner = DistributedOptimizer(tf_keras.optimizers.SGD(0.125), compression, **options)
    return Keras2Scale(inner, initial_scale=1024.0, dynamic_growth_steps=2)


@cases
def tf_keras_2_with_a_loss_scale() -> None:
    """The scale of the optimizer around ours is read in each step."""
    one = model(tf_keras)
    compression = Compression(SPEC, one.trainable_variables)
    assert Run(one, of_keras_2(compression), compression, None).train() == SCALES
    for found, expected in zip(one.get_weights(), plain(), strict=True):
        np.testing.assert_array_equal(found, expected)
    refused(
        lambda: DistributedOptimizer(Keras2Scale(tf_keras.optimizers.SGD(0.1)), compression),
        ConfigError,
        "LossScaleOptimizer(DistributedOptimizer(optimizer, compression))",
    )
    other = model(tf_keras)
    compression = Compression(SPEC, other.trainable_variables)
    accumulating = of_keras_2(compression, backward_passes_per_step=2)
    refused(
        lambda: Run(other, accumulating, compression, None).step(*batch(0)),
        Exception,
        "use backward_passes_per_step=1",
    )


@cases
def tf_keras_2_fit_in_float16() -> None:
    """``compile`` under mixed_float16 adds the LossScaleOptimizer."""
    policy = tf_keras.mixed_precision.global_policy()
    tf_keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        one = model(tf_keras)
        compression = Compression(SPEC, one.trainable_variables)
        sgd = tf_keras.optimizers.SGD(0.1)
        one.compile(DistributedOptimizer(sgd, compression), "mse", jit_compile=False)
    finally:
        tf_keras.mixed_precision.set_global_policy(policy)
    assert isinstance(one.optimizer, Keras2Scale)
    x = np.random.default_rng(hvd.rank()).standard_normal((48, 64), np.float32)
    before = one.get_weights()
    one.fit(x, np.zeros((48, 80), np.float32), batch_size=16, epochs=2, verbose=0)
    for was, weight in zip(before, one.get_weights(), strict=True):
        assert (weight != was).any()
        check_same_on_all_ranks(weight)
    scale = compression.state_dict()["loss_scale"]
    assert scale == float(one.optimizer.loss_scale.numpy()) > 1, scale


@cases
def tf_keras_fit_in_float16() -> None:
    """``fit`` under mixed_float16, and the wrong order of the two wrappers."""

    def fit(wrap: Any) -> Any:
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Input([64]), keras.layers.Dense(80, dtype="mixed_float16")]
        one = keras.Sequential(layers)
        compression = Compression(SPEC, one.trainable_variables)
        one.compile(wrap(compression), "mse", jit_compile=False)
        x = np.random.default_rng(hvd.rank()).standard_normal((48, 64), np.float32)
        one.fit(x, np.zeros((48, 80), np.float32), batch_size=16, verbose=0)
        for weight in one.get_weights():
            check_same_on_all_ranks(weight)
        return compression.state_dict()["loss_scale"]

    def sgd() -> Any:
        return keras.optimizers.SGD(0.1)

    assert fit(lambda one: DistributedOptimizer(Scale(sgd(), 512.0), one)) == 512.0
    refused(
        lambda: fit(lambda one: Scale(DistributedOptimizer(sgd(), one))),
        Exception,
        "LossScaleOptimizer around DistributedOptimizer",
        "DistributedOptimizer(LossScaleOptimizer(optimizer), compression)",
    )
    momentum = Config.from_spec("dgc(ratio=0.01)")
    refused(
        lambda: DistributedOptimizer(Scale(keras.optimizers.SGD(0.1, 0.9)), Compression(momentum)),
        ConfigError,
        "SGD has momentum=0.9",
    )


@cases
def tf_a_discarded_step() -> None:
    """Nothing of a gradient that is averaged and thrown away comes back."""
    kept, plain = Compression(SPEC), Compression(SPEC)
    kept.allow_discard()
    variable = tf.Variable(tf.zeros((64, 80)), name="discarded")

    def average(compression: Compression, step: int, scale: float = 1.0) -> Any:
        rng = np.random.default_rng([step, hvd.rank()])
        grad = tf.constant(scale * rng.standard_normal((64, 80)), tf.float32)
        with tf.GradientTape() as inner:
            loss = tf.reduce_sum(variable * grad)
        tape = hvd.DistributedGradientTape(inner, compression=compression)
        return tape.gradient(loss, [variable])[0].numpy()

    for step in range(4):
        if step in (0, 2):
            average(kept, 100 + step, 1000.0)
            kept.discard_step()
        np.testing.assert_array_equal(average(kept, step), average(plain, step))
    refused(tf.function(kept.discard_step), Exception, "outside of tf.function")
