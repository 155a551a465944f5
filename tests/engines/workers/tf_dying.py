"""Trains in TensorFlow until rank 1 ends in the backward pass of step 5, while gradients are under way.

python -m workers.tf_dying kill|raise
"""

from __future__ import annotations

import os
import signal
import sys

import horovod.tensorflow as hvd
import tensorflow as tf
from workers.tf_overlap import Model, input_of


def main(way: str) -> None:
    hvd.init()
    steps = 0

    def work() -> None:
        if hvd.rank() == 1 and steps == 5:
            print("the end of rank 1", flush=True)
            if way == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ArithmeticError("raised in the backward pass")

    model = Model("residual|topk(ratio=0.01)", work)
    for _ in range(1000):
        model.averages(tf.constant(input_of(hvd.rank())))
        steps += 1


if __name__ == "__main__":
    main(sys.argv[1])
