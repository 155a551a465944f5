"""Training of the workers of elastic jobs, with TensorFlow 2: a model and an optimizer of Keras, in a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from elastic.digits import RATE, STOCK, Classes, Floats, outer_momentum
from horovod_compressors.tensorflow import Compression, ElasticState


class Training:
    """See `elastic.digits.Training`."""

    hvd = hvd

    def __init__(self, spec: str, seed: int, noted: Callable[[type[Any]], type[Any]]) -> None:
        keras.utils.set_random_seed(seed)
        layers = [
            keras.layers.Dense(512, "relu", name="first"),
            keras.layers.Dense(512, "relu", name="second"),
            keras.layers.Dense(10, name="third"),
        ]
        self._model = keras.Sequential([keras.layers.Input([64]), *layers], name="digits")
        self._optimizer = keras.optimizers.SGD(RATE, outer_momentum(spec))
        self._optimizer.build(self._model.trainable_variables)
        self._weights = [variable.value for variable in self._model.trainable_variables]
        self._compression: Any = hvd.Compression.none
        if spec == STOCK:
            # Horovod's state for models of Keras fails with Keras 3.
            variables = [*self._model.variables, *self._optimizer.variables]
            state = noted(hvd.elastic.TensorFlowState)
            self.state = state([variable.value for variable in variables], step=0)
        else:
            self._compression = Compression(spec, self._weights)
            state = noted(ElasticState)
            self.state = state(self._model, self._optimizer, compression=self._compression, step=0)
        self._graph = tf.function(
            self._step,
            input_signature=[
                tf.TensorSpec([None, 64], tf.float32),
                tf.TensorSpec([None], tf.int64),
            ],
        )

    def _step(self, inputs: Any, classes: Any) -> tuple[list[Any], list[Any]]:
        with tf.GradientTape(persistent=True) as tape:
            logits = self._model(inputs, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(classes, logits)
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, self._weights)
        tape = hvd.DistributedGradientTape(tape, compression=self._compression)
        averages = tape.gradient(loss, self._weights)
        self._optimizer.apply(averages)
        return gradients, averages

    def step(self, inputs: Floats, classes: Classes) -> tuple[list[Floats], list[Floats]]:
        """Make a step."""
        gradients, averages = (
            [tensor.numpy() for tensor in tensors] for tensors in self._graph(inputs, classes)
        )
        return gradients, averages

    def parameters(self) -> list[Floats]:
        """All parameters."""
        return [weight.numpy() for weight in self._weights]

    def unsent(self, part: str) -> list[Floats | None]:
        """Residuals, or momenta."""
        held = self._compression.state_dict()[part]
        return [held.get(variable.path) for variable in self._model.trainable_variables]

    def logits(self, inputs: Floats) -> Floats:
        """The results for inputs."""
        found: Floats = self._model(inputs).numpy()
        return found

    def of_first(self, value: float) -> float:
        """The value of rank 0."""
        return float(hvd.broadcast(tf.constant(value, tf.float64), 0, "value"))
