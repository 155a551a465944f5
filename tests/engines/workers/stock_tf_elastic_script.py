"""An elastic ``fit`` of Keras on stock Horovod, without any compression; it logs each step.

It looks at the residuals of the compression that it got.
Argument: the folder of its rows. A file ``last`` next to the folder has the number of steps.
"""

import sys
import time
from pathlib import Path

import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_keras
import numpy as np
import tensorflow as tf

from elastic.job import log_row

keras = tf.keras
STEPS = 40


class Log(keras.callbacks.Callback):
    def __init__(self, folder: Path, life: float, state: hvd_keras.elastic.KerasState) -> None:
        super().__init__()
        self.folder, self.life, self.state = folder, life, state

    def residual(self) -> float:
        residuals = self.state.gradcomp_compression.state_dict()["residual"]
        return float(sum(one.astype("float64").sum() for one in residuals.values()))

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        self.before = self.residual()

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        time.sleep(0.03)
        self.state.step += 1
        weights = np.concatenate([one.reshape(-1) for one in self.model.get_weights()])
        log_row(
            self.folder,
            weights.tobytes(),
            life=self.life,
            step=self.state.step,
            rank=hvd.rank(),
            size=hvd.size(),
            before=self.before,
            after=self.residual(),
        )
        if self.state.step >= int((self.folder.parent / "last").read_text()):
            self.model.stop_training = True


def main() -> None:
    folder = Path(sys.argv[1])
    hvd.init()
    model = keras.Sequential([keras.layers.Input([72]), keras.layers.Dense(64)])
    optimizer = hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.01, momentum=0.9))
    model.compile(optimizer, "mse", jit_compile=False)
    optimizer.build(model.trainable_variables)
    state = hvd_keras.elastic.KerasState(model, step=0)

    @hvd_keras.elastic.run
    def train(state: hvd_keras.elastic.KerasState) -> None:
        life = float(hvd.broadcast(tf.constant(time.time(), tf.float64), 0, "life"))
        callbacks = [Log(folder, life, state), hvd_keras.elastic.CommitStateCallback(state, 3)]
        while state.step < int((folder.parent / "last").read_text()):
            x = np.random.default_rng(hvd.rank()).normal(size=(STEPS * 8, 72)).astype("float32")
            model.fit(x, x[:, :64], batch_size=8, callbacks=callbacks, verbose=0)

    train(state)


if __name__ == "__main__":
    main()
