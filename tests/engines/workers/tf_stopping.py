"""Trains in TensorFlow until rank 1 stops (SIGSTOP) before step 3."""

from __future__ import annotations

import os
import signal

import horovod.tensorflow as hvd
import tensorflow as tf

from horovod_compressors.tensorflow import Compression


def main() -> None:
    hvd.init()
    variable = tf.Variable(tf.ones([80, 80]), name="weight")
    compression = Compression("residual|topk(ratio=0.01)", [variable])

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable * variable)
        tape = hvd.DistributedGradientTape(tape, compression=compression)
        variable.assign_sub(0.01 * tape.gradient(loss, [variable])[0])

    for number in range(1000):
        if hvd.rank() == 1 and number == 3:
            os.kill(os.getpid(), signal.SIGSTOP)
        step()


if __name__ == "__main__":
    main()
