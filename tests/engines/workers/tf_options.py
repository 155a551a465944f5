"""Options of the stock tape with compression, and refusals.

While TensorFlow converts a function to a graph, it raises our errors as its own exceptions, with
our texts.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from unittest import mock

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf
from workers import profiles
from workers.runner import Cases, refused
from workers.tf_harness import (
    MATRIX,
    averages_of,
    check_equal,
    check_same_on_all_ranks,
    check_steps,
    gradients,
    variables,
)

from gradcomp.adapter_api import AllGather
from gradcomp.errors import ConfigError
from horovod_compressors.tensorflow import Compression, CompressionState, ElasticState
from horovod_compressors.tensorflow.engine import HorovodEngine
from support.pipelines import configured

cases = Cases()

SHAPES = {"matrix": MATRIX, "bias": (64,), "scalar": (), "empty": (0,)}


@cases
def tf_eager() -> None:
    """The stock tape averages in a separate graph."""
    weights = variables(SHAPES)
    check_steps(Compression("residual|topk(ratio=0.01)", weights), weights, graph=False)


@cases
def tf_variables_without_names() -> None:
    weights = [tf.Variable(tf.zeros(MATRIX)) for _ in range(3)]
    compression = Compression("residual|topk(k=50)")
    averages = tf.function(averages_of(weights, compression))
    for step in range(2):
        averages([tf.constant(grad) for grad in gradients(weights, step)])
    names = ["Variable", "Variable_2", "Variable_3"]
    assert compression.state_dict()["rounds"] == dict.fromkeys(names, 2)


@cases
def tf_two_tapes_share_a_compression() -> None:
    """Variables of the same name, as in two models, have separate states."""
    first, second = (variables({"w": MATRIX}) for _ in range(2))
    compression = Compression("residual|topk(k=50)")
    one, other = averages_of(first, compression), averages_of(second, compression)

    @tf.function
    def both(a: Any, b: Any) -> Any:
        return one([a]), other([b])

    grads = [tf.constant(gradients(w, 0)[0]) for w in (first, second)]
    (a,), (b,) = both(*grads)
    check_equal(a.numpy(), b.numpy())
    residual = compression.state_dict()["residual"]
    check_equal(residual["w"], residual["w_2"])


@cases
def tf_exchanges_travel_beside_the_backward_pass() -> None:
    """The gradient of the first layer comes after the last layer's frames have been sent."""
    nbytes = 4 * MATRIX[0] * MATRIX[1]
    config = configured("residual|topk(ratio=0.05)", bucket_bytes=nbytes)
    weights = variables({"first": MATRIX, "last": MATRIX})
    sent = threading.Event()
    in_time = []
    run = HorovodEngine._run

    def noting(engine: Any, queue: Any) -> None:
        run(engine, queue)
        if any(isinstance(one.request, AllGather) for one in queue):
            sent.set()

    def late(gradient: Any) -> Any:
        in_time.append(sent.wait(30))
        return gradient

    @tf.custom_gradient
    def slow(values: Any) -> Any:
        return tf.identity(values), lambda gradient: tf.ensure_shape(
            tf.numpy_function(late, [gradient], tf.float32, stateful=False), MATRIX
        )

    compression = Compression(config, weights)

    @tf.function
    def step(grads: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(slow(weights[0]) * grads[0])
            loss += tf.reduce_sum(weights[1] * grads[1])
        return hvd.DistributedGradientTape(tape, compression=compression).gradient(loss, weights)

    with mock.patch.object(HorovodEngine, "_run", noting):
        step([tf.constant(grad) for grad in gradients(weights, 0)])
    assert in_time == [True]


@cases
def tf_a_backward_pass_that_was_cut_off() -> None:
    """All ranks send the last layer's gradient, and fail before the first layer's."""
    nbytes = 4 * MATRIX[0] * MATRIX[1]
    config = configured("residual|topk(ratio=0.05)", bucket_bytes=nbytes)
    weights = variables({"first": MATRIX, "last": MATRIX})
    averages = averages_of(weights, Compression(config, weights))
    first, last = gradients(weights, 0)
    sent = threading.Event()
    send = HorovodEngine.send

    def noting(engine: Any) -> None:
        send(engine)
        sent.set()

    def failing(gradient: Any) -> Any:
        assert sent.wait(30)
        raise ValueError("no gradient")

    with mock.patch.object(HorovodEngine, "send", noting):
        # TensorFlow would call the function of a constant as it optimizes the graph, and wait each time.
        step = tf.function(
            lambda given: averages(
                [tf.numpy_function(failing, [given], tf.float32, stateful=False), last]
            )
        )
        refused(lambda: step(tf.constant(first)), tf.errors.OpError, "no gradient")
    refused(
        lambda: averages([tf.constant(first), tf.constant(last)]),
        tf.errors.OpError,
        "newest checkpoint",
    )


@cases
def tf_op_sum() -> None:
    weights = variables({"matrix": MATRIX, "bias": (64,)})
    compression = Compression("residual|topk(ratio=0.05)", weights)
    check_steps(compression, weights, op=hvd.Sum, scale=hvd.size())


@cases
def tf_groups() -> None:
    weights = variables({"matrix": MATRIX, "bias": (64,), "other": MATRIX})
    check_steps(Compression("int8", weights), weights, groups=2)


@cases
def tf_predivide() -> None:
    weights = variables({"matrix": MATRIX})
    check_steps(Compression("int8", weights), weights, gradient_predivide_factor=2.0)


@cases
def tf_dtypes() -> None:
    """Sums of compressed float16 gradients are formed in float32."""
    for dtype in (tf.float16, tf.bfloat16, tf.float64):
        weights = variables({"matrix": MATRIX}, dtype)
        check_steps(Compression("residual|topk(ratio=0.05)", weights), weights)
    weights = variables(SHAPES, tf.bfloat16)  # which Horovod cannot add
    check_steps(Compression("identity", weights), weights)


@cases
def tf_exchanges() -> dict[str, int]:
    """Rounds of several phases, side by side in one graph."""
    topk = "residual|topk(ratio=0.05)"
    choices = {
        "powersgd": ("powersgd(rank=2,start_step=1)", "auto"),
        "vote": ("signsgd_mv", "auto"),
        "sra": (topk, "sra"),
        "sparse": (topk, "sparse_allreduce"),
        "nodes": (topk, "two_level"),
        "half": ("residual|fp16", "two_level"),
    }
    shapes = {"matrix": MATRIX, "vector": (5000,), "other": MATRIX}
    rules = [
        {"match": {"name": f"{name}.*"}, "use": spec, "exchange": exchange}
        for name, (spec, exchange) in choices.items()
    ]
    config = configured("identity", rules=rules, bucket_bytes=8192, ranks_per_node=2)
    weights = variables(
        {**SHAPES, **{f"{one}.{name}": shapes[name] for one in choices for name in shapes}}
    )
    compression = Compression(config, weights)
    # Without groups Horovod makes two branches for each tensor, which are slow to trace.
    check_steps(compression, weights, steps=4, groups=2)
    sent = dict(compression.stats.sent_bytes)
    assert {"allreduce", "allgather", "alltoall", "node allreduce"} <= set(sent), sent
    return sent


@cases
def tf_specs_that_follow_one_another() -> None:
    """The graph does not change, but its exchanges do."""
    schedule = [
        "identity",
        {"from_step": 2, "use": "residual|topk(ratio=0.05)"},
        {"from_step": 4, "use": "residual|int8"},
    ]
    weights = variables({"matrix": MATRIX})
    config = configured(schedule)
    check_steps(Compression(config, weights), weights, steps=6)


@cases
def tf_policy() -> None:
    """Measures in the first steps and decides; the graph is the same."""
    weights = variables({"matrix": MATRIX, "other": (128, 256)})
    compression = Compression(configured("residual|int8", policy="auto"), weights)
    averages = tf.function(averages_of(weights, compression))
    for step in range(140):
        for average in averages([tf.constant(grad) for grad in gradients(weights, step)]):
            check_same_on_all_ranks(average.numpy())
        if compression.stats.decisions:
            break
    assert compression.stats.decisions
    refused(
        lambda: Compression(configured("residual|int8", policy="auto")),
        ConfigError,
        "variables=model.trainable_variables",
    )


@cases
def tf_stats_count_dense_tensors() -> None:
    weights = variables({"bias": (100,)})
    compression = Compression("fp16", weights)
    check_steps(compression, weights, steps=3)
    assert compression.stats.dense_bytes == 1200
    assert compression.stats.sent_bytes == {"allreduce": 1200}


@cases
def tf_indexed_slices() -> None:
    table = tf.Variable(tf.zeros([60, 80]), name="table")
    rows = tf.constant([hvd.rank(), 5])

    def gradient(compression: Any, **options: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, rows))
        tape = hvd.DistributedGradientTape(tape, compression=compression, **options)
        other = tf.Variable(0.0)
        return tape.gradient(loss, [table, other])[0]

    dense = gradient(Compression("topk(k=200)"), sparse_as_dense=True).numpy()
    assert dense.sum() == 160
    assert dense[5].min() == 1
    check_same_on_all_ranks(dense)


@cases
def tf_indexed_slices_are_refused() -> None:
    table, other = tf.Variable(tf.zeros([60, 80]), name="table"), tf.Variable(1.0)

    def gradient(spec: str) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [hvd.rank()])) * other
        tape = hvd.DistributedGradientTape(tape, compression=Compression(spec))
        return tape.gradient(loss, [other, table])[1]

    refused(lambda: gradient("topk(k=200)"), TypeError, "'table'", "sparse_as_dense=True")
    assert isinstance(gradient("identity"), tf.IndexedSlices)


@cases
def tf_dtypes_that_differ() -> None:
    weights = variables({"matrix": MATRIX}, tf.float64 if hvd.rank() else tf.float32)
    averages = averages_of(weights, Compression("topk(k=100)", weights))
    refused(
        lambda: averages([tf.constant(grad) for grad in gradients(weights, 0)]),
        Exception,
        "1 of float32, digest",
        "1 of float64, digest",
    )


@cases
def tf_specs_that_differ() -> None:
    weights = variables({"matrix": MATRIX})
    spec = "topk(k=100)" if hvd.rank() == 0 else "fp16"
    averages = averages_of(weights, Compression(spec, weights))
    refused(
        lambda: averages([tf.constant(grad) for grad in gradients(weights, 0)]),
        Exception,
        "ProtocolError: the ranks run different compression",
        "rank 0:",
        "rank 1:",
    )


@cases
def tf_an_older_state_on_one_rank() -> None:
    weights = variables({"matrix": MATRIX})
    compression = Compression("randomk(ratio=0.1)", weights)
    averages = tf.function(averages_of(weights, compression))

    def step(number: int) -> None:
        averages([tf.constant(grad) for grad in gradients(weights, number)])

    step(0)
    older = compression.state_dict()
    step(1)
    if hvd.rank() == 1:
        compression.load_state_dict(older)
    refused(lambda: step(2), Exception, "ProtocolError", "step: 2 on rank 0; 1 on rank 1")


@cases
def tf_a_save_on_one_rank() -> None:
    weights = variables({"matrix": MATRIX})
    compression = Compression("randomk(ratio=0.1)", weights)
    averages = tf.function(averages_of(weights, compression))
    averages([tf.constant(grad) for grad in gradients(weights, 0)])

    def act() -> None:
        if hvd.rank() == 0:
            compression.save(Path(tempfile.gettempdir()) / "never", 1)
        else:
            averages([tf.constant(grad) for grad in gradients(weights, 1)])

    refused(act, Exception, "every rank must call save()", "save() on rank 0; a step on rank 1")


@cases
def tf_models_that_drift_apart() -> None:
    weights = variables({"first": MATRIX, "second": MATRIX})
    config = configured("residual|topk(ratio=0.1)").model_copy(update={"check_replicas_every": 2})
    averages = tf.function(averages_of(weights, Compression(config, weights)))

    def step(number: int) -> None:
        averages([tf.constant(grad) for grad in gradients(weights, number)])

    for number in range(2):
        step(number)
    if hvd.rank() == 1:
        weights[1].assign_add(tf.ones(MATRIX))
    step(2)
    refused(lambda: step(3), Exception, "1 of 2 parameters differ before step 2, first 'second'")


@cases
def tf_variables_that_are_not_given() -> None:
    weights = variables({"matrix": MATRIX, "other": MATRIX})
    averages = averages_of(weights, Compression("int8", weights[:1]))
    refused(
        lambda: averages([tf.constant(grad) for grad in gradients(weights, 0)]),
        Exception,
        "ConfigError: one of 2 variables with gradients, 'other' of shape (64, 80)",
        "variables=model.trainable_variables",
    )


@cases
def tf_allreduce_by_hand_is_refused() -> None:
    refused(
        lambda: hvd.allreduce(tf.zeros(MATRIX), compression=Compression("int8")),
        ConfigError,
        "hvd.DistributedGradientTape",
    )


@cases
def tf_sums_of_float16_do_not_overflow() -> None:
    """With the tape and by hand."""
    largest = tf.fill(MATRIX, 65504.0)
    (weight,) = variables({"matrix": MATRIX})
    for spec in ("fp16", "residual|fp16"):
        compression = Compression(spec, [weight])
        with hvd.DistributedGradientTape(tf.GradientTape(), compression=compression) as tape:
            loss = tf.reduce_sum(weight * largest)
        (average,) = tape.gradient(loss, [weight])
        np.testing.assert_allclose(average, largest, rtol=2e-3)
    by_hand = hvd.allreduce(largest, compression=Compression("fp16"))
    np.testing.assert_allclose(by_hand, largest, rtol=2e-3)


@cases
def tf_integers_by_hand_travel_as_they_are() -> None:
    """Exactly, with every spec, as with the stock `Compression.fp16`."""
    for dtype in (tf.uint8, tf.int32, tf.int64):
        numbers = tf.cast(tf.reshape(tf.range(MATRIX[0] * MATRIX[1]), MATRIX), dtype)
        total = hvd.allreduce(numbers, op=hvd.Sum).numpy()
        for spec in ("identity", "fp16", "int8", "topk(k=10)"):
            found = hvd.allreduce(numbers, op=hvd.Sum, compression=Compression(spec))
            check_equal(found.numpy(), total, f"{spec} {dtype}")
    flags = tf.constant([True, False])
    assert Compression.fp16.compress(flags)[0] is flags


@cases
def tf_fp16_in_the_place_of_the_stock_one() -> None:
    """What Horovod's own test of `hvd.Compression.fp16` checks."""
    for shape in ((17, 17, 17), (3, 3), (), (0, 3)):
        for dtype in (tf.float16, tf.bfloat16, tf.float32, tf.float64):
            tensor = tf.ones(shape, dtype)
            sent, context = Compression.fp16.compress(tensor)
            assert sent.dtype == tf.float16
            found = Compression.fp16.decompress(sent, context)
            check_equal(found.numpy(), tensor.numpy(), f"{shape} {dtype}")
    number = hvd.allreduce(tf.constant(1.0 + hvd.rank()), compression=Compression.fp16)
    assert float(number) == (1 + hvd.size()) / 2


@cases
def tf_complex_gradients_travel_uncompressed() -> None:
    for spec, dtype in (("identity", tf.complex128), ("fp16", tf.complex64)):
        weights = variables({"matrix": MATRIX}, dtype)
        averages = averages_of(weights, Compression(spec, weights))
        (found,) = averages([tf.fill(MATRIX, tf.constant(1 + hvd.rank() - 2j, dtype))])
        wanted = np.full(MATRIX, (1 + hvd.size()) / 2 + 2j, dtype.as_numpy_dtype)
        check_equal(found.numpy(), wanted, spec)
    weights = variables({"matrix": MATRIX}, tf.complex64)
    averages = averages_of(weights, Compression("int8", weights))
    refused(
        lambda: averages([tf.zeros(MATRIX, tf.complex64)]), Exception, "complex64", "use: identity"
    )


@cases
def tf_adasum_is_refused() -> None:
    weights = variables({"matrix": MATRIX})
    averages = averages_of(weights, Compression("int8", weights), op=hvd.Adasum)
    refused(
        lambda: averages([tf.constant(grad) for grad in gradients(weights, 0)]),
        Exception,
        "ConfigError: 'int8(bucket=512,rounding=nearest)' does not work with this optimizer's op",
    )


@cases
def tf_elastic_jobs() -> None:
    """All that depends on fixed ranks, and variables that are still to come."""
    two_level = configured("int8", exchange="two_level", ranks_per_node=1)
    with mock.patch.dict(os.environ, HOROVOD_ELASTIC="1"):
        refused(lambda: Compression(two_level).pipeline, ConfigError, "the job is elastic")
        weights = variables({"matrix": MATRIX})
        grouped = averages_of(weights, Compression("int8", weights), groups=1)
        grads = [tf.constant(grad) for grad in gradients(weights, 0)]
        refused(
            lambda: grouped(grads), Exception, "ConfigError: groups does not work in elastic jobs"
        )
    later = keras.Sequential([keras.layers.Dense(2)])
    refused(lambda: ElasticState(later), ConfigError, "'model', a Sequential, has no variables yet")
    other = keras.optimizers.SGD()
    refused(
        lambda: ElasticState([tf.Variable(0.0)], other=other), ConfigError, "'other', a SGD, has no"
    )


@cases
def tf_checkpoints() -> None:
    """A new compression continues to the last bit."""
    spec = "residual|topk(ratio=0.02)"
    weights = variables({"matrix": MATRIX, "a/b": MATRIX})
    first = Compression(spec, weights)
    averages = tf.function(averages_of(weights, first))
    for step in range(2):
        averages([tf.constant(grad) for grad in gradients(weights, step)])
    with tempfile.TemporaryDirectory() as folder:
        saved = tf.train.Checkpoint(compression=CompressionState(first))
        path = saved.save(str(Path(folder) / f"rank{hvd.rank()}"))
        second = Compression(spec, weights)
        restored = tf.train.Checkpoint(compression=CompressionState(second)).restore(path)
        restored.assert_consumed()
    again = tf.function(averages_of(weights, second))
    grads = [tf.constant(grad) for grad in gradients(weights, 2)]
    for expected, actual in zip(averages(grads), again(grads), strict=True):
        check_equal(actual.numpy(), expected.numpy())
    own, other = first.state_dict(), second.state_dict()
    assert own["rounds"] == other["rounds"] == {"matrix": 3, "a/b": 3}
    for name, residual in own["residual"].items():
        assert np.abs(residual).max() > 0
        check_equal(other["residual"][name], residual)


@cases
def tf_profile() -> None:
    """A profile adds up, and its errors equal the loopback's."""
    weights = variables(profiles.SHAPES)
    with tempfile.TemporaryDirectory() as folder:
        compression = Compression(profiles.config(Path(folder) / "profile"), weights)
        averages = tf.function(averages_of(weights, compression))
        loopback = profiles.loopback(hvd.size())
        began = time.perf_counter()
        for step in range(profiles.STEPS):
            found = averages([tf.constant(grad) for grad in gradients(weights, step)])
            of_ranks = [gradients(weights, step, rank) for rank in range(hvd.size())]
            expected = loopback.step(
                {name: [grads[n] for grads in of_ranks] for n, name in enumerate(profiles.SHAPES)}
            )
            for name, one in zip(profiles.SHAPES, found, strict=True):
                check_equal(one.numpy(), expected[name][hvd.rank()], name)
        profiles.check(compression.stats, loopback.stats[0], time.perf_counter() - began)
