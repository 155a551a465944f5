"""`fit` of Keras 3, or with TF_USE_LEGACY_KERAS=1 of Keras 2:
horovodrun -np 2 python examples/keras_digits.py.

Horovod's own example, except for one line: the optimizer.
"""

import argparse

import horovod.tensorflow as hvd
import tensorflow as tf
from sklearn.datasets import load_digits  # type: ignore[import-untyped]

from horovod_compressors.tensorflow import Compression, DistributedOptimizer

parser = argparse.ArgumentParser()
parser.add_argument("--compression", default="residual|topk(ratio=0.01)", metavar="SPEC")
parser.add_argument("--epochs", type=int, default=10)
arguments = parser.parse_args()

hvd.init()
tf.keras.utils.set_random_seed(0)

digits = load_digits()
images, classes = digits.data.astype("float32") / 16, digits.target
train, test = slice(hvd.rank(), 1440, hvd.size()), slice(1440, None)

model = tf.keras.Sequential(
    [
        tf.keras.layers.Input([64]),
        tf.keras.layers.Dense(128, activation="relu"),
        tf.keras.layers.Dense(10),
    ]
)
optimizer = tf.keras.optimizers.SGD(0.1)
optimizer = DistributedOptimizer(
    optimizer, Compression(arguments.compression, model.trainable_variables)
)
model.compile(
    optimizer,
    tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
    jit_compile=False,
)
# A variable of Keras 3 holds one of TensorFlow.
weights = [v if isinstance(v, tf.Variable) else v.value for v in model.variables]
hvd.broadcast_variables(weights, root_rank=0)
model.fit(images[train], classes[train], batch_size=24, epochs=arguments.epochs, verbose=0)

if hvd.rank() == 0:
    _, accuracy = model.evaluate(images[test], classes[test], verbose=0)
    print(f"test accuracy {accuracy:.4f}", flush=True)
