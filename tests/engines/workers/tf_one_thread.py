"""Steps with one thread for the operations of graphs, which may be waiting for the other rank."""

from __future__ import annotations

import horovod.tensorflow as hvd
import tensorflow as tf
from workers.tf_harness import averages_of, check_same_on_all_ranks, gradients, variables

from horovod_compressors.tensorflow import Compression
from support.pipelines import configured

SHAPES = {"first": (80, 60), "bias": (64,), "second": (64, 90), "third": (70, 70)}


def main() -> None:
    tf.config.threading.set_inter_op_parallelism_threads(1)
    hvd.init()
    weights = variables(SHAPES)
    # Exchanges of several phases, and one that Horovod makes.
    config = configured("residual|topk(ratio=0.05)", bucket_bytes=0, exchange="sra")
    averages = tf.function(averages_of(weights, Compression(config, weights)))
    for step in range(5):
        for average in averages([tf.constant(grad) for grad in gradients(weights, step)]):
            check_same_on_all_ranks(average.numpy())
    print(f"rank {hvd.rank()} is done", flush=True)


if __name__ == "__main__":
    main()
