"""A training script on stock Horovod for TensorFlow, without any compression of its own.

It trains with a tape, unless it gets --fit, then with the Keras that TensorFlow has. The last line printed
is JSON.
"""

import json
import sys

import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_keras
import numpy as np
import tensorflow as tf

keras = tf.keras


def same(variables: list) -> bool:
    """Whether all ranks have the same values."""
    flat = tf.concat([tf.reshape(v, [1, -1]) for v in variables], 1)
    rows = hvd.allgather(flat).numpy()
    return bool((rows == rows[0]).all())


def main() -> None:
    hvd.init()
    weight = tf.Variable(tf.zeros([64, 80]), name="weight")

    @tf.function
    def step(x: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(x @ weight - 1))
        tape = hvd.DistributedGradientTape(tape, compression=hvd.Compression.fp16)
        weight.assign_sub(0.1 * tape.gradient(loss, [weight])[0])

    keras.utils.set_random_seed(hvd.rank())
    for _ in range(0 if "--fit" in sys.argv else 3):
        step(tf.random.normal([8, 64]))
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Input([64]), keras.layers.Dense(80)])
    # The arguments of Horovod's own example for Keras, which change nothing.
    optimizer = hvd_keras.DistributedOptimizer(
        keras.optimizers.SGD(0.1), backward_passes_per_step=1, average_aggregated_gradients=True
    )
    model.compile(optimizer, "mse", jit_compile=False)
    x = np.random.default_rng(hvd.rank()).standard_normal((64, 64)).astype("float32")
    model.fit(x, x @ np.ones((64, 80), "float32"), batch_size=16, verbose=0)
    result = {"tape": same([weight]), "fit": same(model.get_weights())}
    if hvd.rank() == 0:
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
