"""A training loop in TensorFlow 2: horovodrun -np 2 python examples/tensorflow2_digits.py.

Horovod's own example, except for one line: the tape's `compression`.
"""

import argparse

import horovod.tensorflow as hvd
import tensorflow as tf
from sklearn.datasets import load_digits  # type: ignore[import-untyped]

from horovod_compressors.tensorflow import Compression

parser = argparse.ArgumentParser()
parser.add_argument("--compression", default="residual|topk(ratio=0.01)", metavar="SPEC")
parser.add_argument("--epochs", type=int, default=10)
arguments = parser.parse_args()

hvd.init()
tf.random.set_seed(0)

digits = load_digits()
images = tf.constant(digits.data / 16, tf.float32)
classes = tf.constant(digits.target)
train, test = slice(hvd.rank(), 1440, hvd.size()), slice(1440, None)
dataset = tf.data.Dataset.from_tensor_slices((images[train], classes[train])).batch(24)

hidden = tf.Variable(tf.random.normal([64, 128], stddev=0.1), name="hidden")
hidden_bias = tf.Variable(tf.zeros([128]), name="hidden_bias")
output = tf.Variable(tf.random.normal([128, 10], stddev=0.1), name="output")
output_bias = tf.Variable(tf.zeros([10]), name="output_bias")
variables = [hidden, hidden_bias, output, output_bias]
hvd.broadcast_variables(variables, root_rank=0)
compression = Compression(arguments.compression, variables)


def model(x: tf.Tensor) -> tf.Tensor:
    """The scores of all classes."""
    return tf.nn.relu(x @ hidden + hidden_bias) @ output + output_bias


@tf.function
def train_step(batch: tf.Tensor, target: tf.Tensor) -> None:
    """One step of SGD."""
    with tf.GradientTape() as tape:
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(target, model(batch))
        loss = tf.reduce_mean(loss)
    tape = hvd.DistributedGradientTape(tape, compression=compression)
    for variable, grad in zip(variables, tape.gradient(loss, variables), strict=True):
        variable.assign_sub(0.1 * grad)


for _ in range(arguments.epochs):
    for batch, target in dataset:
        train_step(batch, target)

if hvd.rank() == 0:
    right = tf.argmax(model(images[test]), 1) == tf.cast(classes[test], tf.int64)
    print(f"test accuracy {tf.reduce_mean(tf.cast(right, tf.float32)):.4f}", flush=True)
