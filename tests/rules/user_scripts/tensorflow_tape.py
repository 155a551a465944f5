"""A script with Horovod and TensorFlow."""

from __future__ import annotations

import horovod.tensorflow as hvd
import tensorflow as tf

from horovod_compressors.tensorflow import Compression, DistributedOptimizer


def main() -> None:
    hvd.init()
    model = tf.keras.Sequential([tf.keras.layers.Dense(4)])
    compression = Compression("residual|topk(ratio=0.01)", model.trainable_variables)
    with tf.GradientTape() as tape:
        loss = model(tf.ones((1, 8)))
    averaged = hvd.DistributedGradientTape(
        tape,
        compression=compression,  # pyright: ignore[reportArgumentType]
    )
    averaged.gradient(loss, model.trainable_variables)
    compression.save("checkpoints", 1, keep=3)
    step: int | None = compression.load("checkpoints")
    print(step, compression.stats.ratio)
    optimizer = DistributedOptimizer(tf.keras.optimizers.SGD(), compression)
    model.compile(optimizer, jit_compile=False)
