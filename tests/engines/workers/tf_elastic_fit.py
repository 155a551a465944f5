"""A worker of an elastic job of Horovod with ``fit`` of Keras 3; it logs each step.

Argument: the folder of its rows. A file ``last`` next to the folder has the number of steps.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_keras
import keras
import numpy as np
import tensorflow as tf
from workers.elastic_model import PAUSE, SHAPE, SPECS, config, gradient

from elastic.job import log_row
from horovod_compressors.tensorflow import Compression, DistributedOptimizer, ElasticState

NAMES = (*SPECS, "bias")
STEPS = 40  # of one call of fit


class Product(keras.layers.Layer):
    """The scalar product of its weights and each input, which is the gradient of the weights.

    Weights are float64, as float32 would round changes of all elements, of a rank that is alone.
    """

    def build(self, _: Any) -> None:
        self.held = [self.add_weight(shape=SHAPE, name=name, dtype="float64") for name in NAMES]

    def call(self, inputs: Any) -> Any:
        products = [
            tf.reduce_sum(weight * inputs[:, n], [1, 2]) for n, weight in enumerate(self.held)
        ]
        return tf.add_n(products)[:, None]


class Log(keras.callbacks.Callback):
    def __init__(self, folder: Path, life: float, state: Any) -> None:
        super().__init__()
        self._folder, self._life, self._state = folder, life, state

    def _total(self) -> float:
        (top,) = (one for one in self.model.weights if one.path.endswith("/top"))
        return float(tf.reduce_sum(top.value))

    def _residual(self) -> float:
        residual = self._state.compression.state_dict()["residual"]
        return sum(
            float(one.astype("float64").sum())
            for name, one in residual.items()
            if name.endswith("/top")
        )

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        time.sleep(PAUSE)
        self._start, self._before = self._total(), self._residual()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        given = gradient(self._state.step, "top", hvd.rank(), hvd.size())
        self._state.step += 1
        weights = np.concatenate([one.reshape(-1) for one in self.model.get_weights()])
        log_row(
            self._folder,
            weights.tobytes(),
            life=self._life,
            step=self._state.step,
            rank=hvd.rank(),
            size=hvd.size(),
            applied=self._start - self._total(),
            given=float(given.astype("float64").sum()),
            before=self._before,
            after=self._residual(),
        )
        if self._state.step >= int((self._folder.parent / "last").read_text()):
            self.model.stop_training = True


def main(folder: Path) -> None:
    tf.config.threading.set_inter_op_parallelism_threads(2)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    hvd.init()
    keras.utils.set_random_seed(os.getpid() % 1000)  # rank 0's weights are everyone's
    model = keras.Sequential([keras.layers.Input([len(NAMES), *SHAPE]), Product()])
    compression = Compression(config(), model.trainable_variables)
    optimizer = DistributedOptimizer(keras.optimizers.SGD(1.0), compression)
    model.compile(optimizer, lambda _, products: tf.reduce_mean(products), jit_compile=False)
    state = ElasticState(model, compression=compression, step=0)

    @hvd.elastic.run
    def train(state: Any) -> None:
        life = float(hvd.broadcast(tf.constant(time.time(), tf.float64), 0, "life"))
        callbacks = [Log(folder, life, state), hvd_keras.elastic.CommitStateCallback(state, 3)]
        while state.step < int((folder.parent / "last").read_text()):
            here = hvd.rank(), hvd.size()
            steps = range(state.step, state.step + STEPS)
            inputs = np.stack([[gradient(step, name, *here) for name in NAMES] for step in steps])
            model.fit(
                inputs,
                np.zeros(STEPS),
                batch_size=1,
                shuffle=False,
                callbacks=callbacks,
                verbose=0,
            )

    train(state)
    hvd.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
