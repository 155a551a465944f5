"""An elastic training script on stock Horovod, in the structure of its own example for TensorFlow 2.

That is ``examples/elastic/tensorflow2/tensorflow2_mnist_elastic.py`` of Horovod 0.28.1: a step in a
graph with a distributed tape, one local step that makes the optimizer's variables, rates that follow
the number of ranks, and a commit in each step. It needs Keras 2, as the example does. Digits are
scikit-learn's, which need no download, and each step is logged, with the part of an average that is not 0.
Argument: the folder of its rows. A file ``last`` next to the folder has the number of steps.
"""

import sys
import time
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

from elastic.job import log_row

folder = Path(sys.argv[1])
hvd.init()

digits = load_digits()
dataset = tf.data.Dataset.from_tensor_slices(
    (
        tf.cast(digits.images[..., None] / 16, tf.float32),
        tf.cast(digits.target, tf.int64),
    )
)
dataset = dataset.repeat().shuffle(2000).batch(32)

model = tf.keras.Sequential(
    [
        tf.keras.layers.Conv2D(8, [3, 3], activation="relu"),
        tf.keras.layers.MaxPooling2D(pool_size=(2, 2)),
        tf.keras.layers.Dropout(0.25),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(64, activation="relu"),
        tf.keras.layers.Dense(10, activation="softmax"),
    ]
)
loss = tf.losses.SparseCategoricalCrossentropy()
LR = 0.001
opt = tf.optimizers.Adam(LR * hvd.size())


@tf.function
def training_step(images: Any, labels: Any, allreduce: bool = True) -> Any:
    with tf.GradientTape() as tape:
        probs = model(images, training=True)
        loss_value = loss(labels, probs)
    if allreduce:
        tape = hvd.DistributedGradientTape(tape)
    grads = tape.gradient(loss_value, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables, strict=True))
    sent = tf.math.count_nonzero(grads[2]) / tf.size(grads[2], tf.int64)
    return loss_value, sent


for images, labels in dataset.take(1):
    training_step(images, labels, allreduce=False)


@hvd.elastic.run
def train(state: hvd.elastic.TensorFlowKerasState) -> None:
    life = float(hvd.broadcast(tf.constant(time.time(), tf.float64), 0, "life"))
    for images, labels in dataset.skip(state.batch):
        if state.batch >= int((folder.parent / "last").read_text()):
            break
        time.sleep(0.03)
        _, sent = training_step(images, labels)
        state.batch += 1
        log_row(
            folder,
            np.concatenate([one.reshape(-1) for one in model.get_weights()]).tobytes(),
            life=life,
            step=state.batch,
            rank=hvd.rank(),
            size=hvd.size(),
            sent=float(sent),
        )
        state.commit()


def on_state_reset() -> None:
    opt.lr.assign(LR * hvd.size())


state = hvd.elastic.TensorFlowKerasState(model, opt, batch=0)
state.register_reset_callbacks([on_state_reset])
train(state)
