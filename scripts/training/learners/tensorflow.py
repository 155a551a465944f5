"""Learning in TensorFlow, under Horovod's stock tape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import horovod.tensorflow as hvd
import numpy.typing as npt
import tensorflow as tf
import torch
from torch import Tensor

from gradcomp.config.schema import Config
from gradcomp.errors import ConfigError
from gradcomp.exchange.state_kinds import STATE_KINDS
from gradcomp_torch.state import with_arrays
from horovod_compressors.tensorflow import Compression
from training.learners.base import Learner, State, Sums
from training.settings.train import TrainSettings
from training.tasks.data import Batch

__all__ = ["MODELS", "TensorFlowLearner"]


def _digits_mlp(classes: int) -> list[Any]:
    dense = tf.keras.layers.Dense
    return [
        tf.keras.layers.Flatten(),
        dense(512, activation="relu", name="hidden1"),
        dense(512, activation="relu", name="hidden2"),
        dense(classes, name="scores"),
    ]


def _digits_cnn(classes: int) -> list[Any]:
    conv, dense = tf.keras.layers.Conv2D, tf.keras.layers.Dense
    return [
        conv(32, 3, padding="same", activation="relu", name="conv1"),
        conv(64, 3, padding="same", activation="relu", name="conv2"),
        tf.keras.layers.MaxPooling2D(2),
        tf.keras.layers.Flatten(),
        dense(128, activation="relu", name="hidden"),
        dense(classes, name="scores"),
    ]


MODELS: Mapping[str, Callable[[int], list[Any]]] = {
    "digits-mlp": _digits_mlp,
    "digits-cnn": _digits_cnn,
}
"""Layers of `settings.train.TENSORFLOW_TASKS`, with the shapes of `training.tasks.models`."""


class TensorFlowLearner(Learner):
    """A model of Keras in a loop of the usual shape: forward, the distributed tape, an update.

    Gradients are those of PyTorch's SGD, with its weight decay and momenta, so that one
    configuration means the same in both frameworks.
    """

    def __init__(self, settings: TrainSettings, compress: Config | None, classes: int) -> None:
        tf.keras.utils.set_random_seed(settings.seed)
        self._model = tf.keras.Sequential(
            [tf.keras.layers.Input([8, 8, 1]), *MODELS[settings.task](classes)]
        )
        trained = self._model.trainable_variables
        # A variable of Keras 3 holds one of TensorFlow.
        self._weights = [v if isinstance(v, tf.Variable) else v.value for v in trained]
        self._names = [getattr(v, "path", v.name) for v in trained]
        self._momenta = [tf.Variable(tf.zeros_like(w), trainable=False) for w in self._weights]
        self._decay = settings.weight_decay
        self._momentum, self._nesterov = settings.momentum, settings.nesterov
        self._corrected = compress is not None and compress.momentum_correction is not None
        if compress is not None:
            self._check_momentum(compress)
            self.compression = Compression(compress, trained)
        self._tape: Any = None
        self._loss: Any = None

    def _check_momentum(self, compress: Config) -> None:
        """Refuse a compression with another momentum than the settings."""
        memory = compress.momentum_correction
        if memory is None:
            return
        for key, mine in (("momentum", self._momentum), ("nesterov", self._nesterov)):
            if mine != memory.params[key]:
                raise ConfigError(
                    f"train.{key} is {mine}, and {key} of '{memory.text}' is {memory.params[key]}: "
                    "give both the same value"
                )

    def parameters(self) -> dict[str, npt.NDArray[Any]]:
        """See `Learner`."""
        return dict(zip(self._names, (w.numpy() for w in self._weights), strict=True))

    @property
    def numel(self) -> int:
        """See `Learner`."""
        return sum(weight.shape.num_elements() for weight in self._weights)

    def broadcast(self) -> None:
        """See `Learner`."""
        hvd.broadcast_variables([*self._weights, *self._momenta], root_rank=0)

    def forward(self, batch: Batch) -> float:
        """See `Learner`."""
        with tf.GradientTape() as self._tape:
            self._loss = self._mean_loss(*_arrays(batch))
        return float(self._loss)

    def step(self, lr: float) -> None:
        """See `Learner`."""
        compression = self.compression or hvd.Compression.none
        tape = hvd.DistributedGradientTape(self._tape, compression=compression)
        averages = tape.gradient(self._loss, self._weights)
        self._update(averages, tf.constant(lr, tf.float32))

    @tf.function  # type: ignore[untyped-decorator]
    def _mean_loss(self, inputs: Any, classes: Any) -> Any:
        scores = self._model(inputs, training=True)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(classes, scores))

    @tf.function  # type: ignore[untyped-decorator]
    def _update(self, averages: Any, lr: Any) -> None:
        for weight, momentum, average in zip(self._weights, self._momenta, averages, strict=True):
            # As in DGCSGD: momentum correction has applied the momentum to the gradients.
            direction = self._decay * weight
            if not self._corrected:
                direction += average
            momentum.assign(self._momentum * momentum + direction)
            step = direction + self._momentum * momentum if self._nesterov else momentum
            weight.assign_sub(lr * (step + average if self._corrected else step))

    def test(self, batches: Iterable[Batch]) -> Sums:
        """See `Learner`."""
        right = nats = predictions = 0.0
        for batch in batches:
            some_right, some_nats = self._score(*_arrays(batch))
            right += float(some_right)
            nats += float(some_nats)
            predictions += len(batch.classes)
        return Sums(right, nats, predictions)

    @tf.function  # type: ignore[untyped-decorator]
    def _score(self, inputs: Any, classes: Any) -> Any:
        scores = self._model(inputs, training=False)
        right = tf.argmax(scores, 1) == classes
        nats = tf.nn.sparse_softmax_cross_entropy_with_logits(classes, scores)
        return tf.reduce_sum(tf.cast(right, tf.float32)), tf.reduce_sum(nats)

    def state_dict(self) -> State:
        """See `Learner`."""
        return {
            "model": self._named(self._weights),
            "optimizer": self._named(self._momenta),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Learner`."""
        for key, variables in (("model", self._weights), ("optimizer", self._momenta)):
            for name, variable in zip(self._names, variables, strict=True):
                variable.assign(state[key][name].numpy())

    def own_state(self) -> State:
        """Empty: no layer here gathers statistics."""
        return {}

    def load_own_state(self, state: Mapping[str, Any], *, same_world: bool) -> None:
        """Nothing to do."""

    def compressor_state(self) -> State | None:
        """See `Learner`; torch tensors, as checkpoints are loaded with ``weights_only``."""
        state = super().compressor_state()
        if state is not None:
            for kind in STATE_KINDS:
                state[kind] = {name: torch.from_numpy(array) for name, array in state[kind].items()}
        return state

    def load_compressor_state(self, state: State | Sequence[State]) -> None:
        """See `Learner`."""
        super().load_compressor_state(with_arrays(state))

    def _named(self, variables: Iterable[Any]) -> dict[str, Tensor]:
        arrays = (torch.from_numpy(variable.numpy()) for variable in variables)
        return dict(zip(self._names, arrays, strict=True))


def _arrays(batch: Batch) -> tuple[Any, Any]:
    """Images with their channels last, and classes."""
    images = batch.inputs.permute(0, 2, 3, 1).contiguous()
    return tf.constant(images.numpy()), tf.constant(batch.classes.numpy())
