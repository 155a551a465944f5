"""Gradients are exchanged while the backward pass goes on: laws about order, not about time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from workers.runner import Cases, refused
from workers.tf_harness import (
    MATRIX,
    averages_of,
    check_equal,
    check_same_on_all_ranks,
    gradients,
    variables,
)

from gradcomp import Loopback
from gradcomp.adapter_api import AllGather
from horovod_compressors.tensorflow import Compression
from horovod_compressors.tensorflow.engine import HorovodEngine
from support.pipelines import configured

cases = Cases()

LIMIT = 60.0


def gated(value: Any, work: Callable[[], None]) -> Any:
    """The value; its gradient passes after ``work`` was called."""

    def run(upstream: Any) -> Any:
        work()
        return upstream

    @tf.custom_gradient
    def gate(x: Any) -> Any:
        def back(upstream: Any) -> Any:
            passed = tf.numpy_function(run, [upstream], upstream.dtype)
            passed.set_shape(upstream.shape)
            return passed

        return tf.identity(x), back

    return gate(value)


class Model:
    """``sum(early * late * x)``; the gradient of ``early`` is the last one."""

    def __init__(self, spec: Any, work: Callable[[], None]) -> None:
        self.weights = variables({"early": MATRIX, "late": MATRIX})
        for weight in self.weights:
            weight.assign(tf.ones(MATRIX))
        self.compression = Compression(spec, self.weights)
        self._work = work
        self.averages = tf.function(self._averages)

    def _averages(self, x: Any) -> Any:
        early, late = self.weights
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(gated(early, self._work) * late * x)
        tape = hvd.DistributedGradientTape(tape, compression=self.compression)
        return tape.gradient(loss, self.weights)


def input_of(rank: int) -> Any:
    return np.random.default_rng(rank).standard_normal(MATRIX).astype(np.float32)


@cases
def tf_exchange_begins_before_the_last_gradient() -> None:
    """The last gradient waits until all ranks' frames of the other one are here."""
    here = threading.Event()
    stock = HorovodEngine.start

    def start(engine: Any, request: Any) -> Any:
        handle = stock(engine, request)
        if isinstance(request, AllGather) and request.name == "late":
            handle[1].add_done_callback(lambda _: here.set())
        return handle

    def wait() -> None:
        assert here.wait(LIMIT), "no exchange of 'late' before the gradient of 'early'"
        here.clear()

    spec = configured("residual|topk(ratio=0.05)", bucket_bytes=0)
    loopback = Loopback(spec, hvd.size())
    model = Model(spec, wait)
    of_ranks = [input_of(rank) for rank in range(hvd.size())]
    with mock.patch.object(HorovodEngine, "start", start):
        for _ in range(3):
            found = model.averages(tf.constant(of_ranks[hvd.rank()]))
            expected = loopback.step({"early": of_ranks, "late": of_ranks})
            for name, average in zip(("early", "late"), found, strict=True):
                check_equal(average.numpy(), expected[name][hvd.rank()], name)


@cases
def tf_steps_in_a_loop_of_a_graph() -> None:
    """The same weights as with a call for each step."""

    def trained(steps: int, calls: int) -> list[Any]:
        model = Model("residual|topk(ratio=0.05)", lambda: None)

        @tf.function
        def train(x: Any) -> None:
            for _ in tf.range(steps):
                for weight, average in zip(model.weights, model.averages(x), strict=True):
                    weight.assign_sub(0.1 * average)

        for _ in range(calls):
            train(tf.constant(input_of(hvd.rank())))
        assert model.compression.stats.steps == steps * calls
        return [weight.numpy() for weight in model.weights]

    for one, other in zip(trained(6, 1), trained(1, 6), strict=True):
        check_equal(one, other)


@cases
def tf_steps_of_one_graph_do_not_mix() -> None:
    """Neither beside a function that the graph calls, although all gradients are there at once."""
    models = [variables({"a": MATRIX, "b": MATRIX}) for _ in range(3)]
    compression = Compression(configured("residual|topk(k=50)", bucket_bytes=0))
    first, *others = (averages_of(weights, compression) for weights in models)
    inner = tf.function(first)

    @tf.function
    def all_three(grads: Any) -> Any:
        return others[0](grads), inner(grads), others[1](grads)

    for step in range(3):
        found = all_three([tf.constant(grad) for grad in gradients(models[0], step)])
        for averages in found[1:]:
            for one, other in zip(averages, found[0], strict=True):
                check_equal(one.numpy(), other.numpy())


@cases
def tf_backward_pass_that_fails() -> None:
    """Others may wait for its gradients, so that the next step cannot be a new one."""
    fails = threading.Event()

    def work() -> None:
        if fails.is_set():
            raise FloatingPointError("no gradient")

    model = Model("residual|topk(ratio=0.05)", work)
    check_same_on_all_ranks(model.averages(tf.constant(input_of(hvd.rank())))[0].numpy())
    fails.set()
    refused(lambda: model.averages(tf.constant(input_of(0))), Exception, "no gradient")
    fails.clear()
    refused(
        lambda: model.averages(tf.constant(input_of(0))),
        Exception,
        "ProtocolError: a step begins before the last one has ended",
        "start the job again",
    )
