"""A worker of an elastic job of Horovod with TensorFlow; it logs each step.

One compression is in the graph of a tape, one in the optimizer of Keras 3, and one adds without a graph.
Argument: the folder of its rows. A file ``last`` next to the folder has the number of steps. A file
``newcomer`` next to it has the spec of the sums for workers that start later.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import keras
import tensorflow as tf
from workers.elastic_model import DGC, PAUSE, SHAPE, SPECS, config, gradient

from elastic.job import log_row
from horovod_compressors.tensorflow import Compression, DistributedOptimizer, ElasticState
from support.pipelines import configured

SUMS = "residual|topk(ratio=0.05)"


def variables(names: Sequence[str]) -> list[Any]:
    return [tf.Variable(tf.zeros(SHAPE), name=name) for name in names]


def residual_sum(compression: Any, name: str) -> float:
    residual = compression.state_dict()["residual"]
    return float(residual[name].astype("float64").sum()) if name in residual else 0.0


def total(variable: Any) -> float:
    return float(tf.reduce_sum(tf.cast(variable, tf.float64)))


def averaged(weights: Sequence[Any], grads: Sequence[Any], compression: Any, **options: Any) -> Any:
    with tf.GradientTape() as tape:
        loss = tf.add_n([tf.reduce_sum(w * g) for w, g in zip(weights, grads, strict=True)])
    tape = hvd.DistributedGradientTape(tape, compression=compression, **options)
    return tape.gradient(loss, weights)


def main(folder: Path) -> None:
    tf.config.threading.set_inter_op_parallelism_threads(2)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    hvd.init()
    newcomer = folder.parent / "newcomer"
    summing = newcomer.read_text() if newcomer.exists() else SUMS
    weights = variables([*SPECS, "bias"])
    momentum = keras.Variable(tf.zeros(SHAPE), name="momentum")
    added = variables(["added"])
    in_graph = Compression(config(), weights)
    in_keras = Compression(configured(DGC), [momentum])
    in_sum = Compression(configured(summing), added)
    optimizer = DistributedOptimizer(keras.optimizers.SGD(1.0), in_keras)
    optimizer.build([momentum])
    state = ElasticState(
        weights,
        model_of_keras=[momentum],
        optimizer_of_keras=optimizer,
        added=added,
        in_graph=in_graph,
        in_keras=in_keras,
        in_sum=in_sum,
        step=0,
    )

    @tf.function
    def step_of_graph(grads: Sequence[Any]) -> Any:
        averages = averaged(weights, grads, in_graph)
        for weight, average in zip(weights, averages, strict=True):
            weight.assign_sub(average)
        return averages[0]

    @hvd.elastic.run
    def train(state: Any) -> None:
        life = float(hvd.broadcast(tf.constant(time.time(), tf.float64), 0, "life"))
        while state.step < int((folder.parent / "last").read_text()):
            time.sleep(PAUSE)
            here = state.step, hvd.rank(), hvd.size()
            before, before_added = residual_sum(in_graph, "top"), residual_sum(in_sum, "added")
            grads = [gradient(here[0], name, *here[1:]) for name in (*SPECS, "bias")]
            average = step_of_graph([tf.constant(grad) for grad in grads])
            grad = tf.constant(gradient(here[0], "momentum", *here[1:]))
            optimizer.apply([grad], [momentum])
            grad = tf.constant(gradient(here[0], "added", *here[1:]))
            (sum_of_ranks,) = averaged(added, [grad], in_sum, op=hvd.Sum)
            added[0].assign_sub(sum_of_ranks)
            state.step += 1
            values = [tf.reshape(one, [-1]) for one in (*weights, momentum.value, *added)]
            log_row(
                folder,
                tf.concat(values, 0).numpy().tobytes(),
                life=life,
                step=state.step,
                rank=hvd.rank(),
                size=hvd.size(),
                # Parameters would round it: a rank that is alone changes all of them.
                applied=total(average),
                given=float(grads[0].astype("float64").sum()),
                before=before,
                after=residual_sum(in_graph, "top"),
                sum={
                    "applied": total(sum_of_ranks),
                    "owed": total(grad) + before_added - residual_sum(in_sum, "added"),
                },
            )
            if state.step % 3 == 0:
                state.commit()

    train(state)
    hvd.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
