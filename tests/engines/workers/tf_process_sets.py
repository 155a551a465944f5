"""Process sets, with a rank outside; needs three ranks."""

from __future__ import annotations

from functools import cache
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from workers.runner import Cases, refused
from workers.tf_harness import MATRIX, averages_of, check_equal, check_steps, gradients, variables

from gradcomp import Loopback
from horovod_compressors.tensorflow import Compression
from support.pipelines import configured

cases = Cases()

MEMBERS = [0, 2]


@cache
def process_set() -> Any:
    return hvd.add_process_set(MEMBERS)


_TOPK = "residual|topk(k=100)"
_RULES = {
    "gathered": (_TOPK, "auto"),
    "phases": ("powersgd(rank=2,start_step=1)", "auto"),
    "scattered": (_TOPK, "sra"),
    "half": ("fp16", "auto"),
}


def _average(members: list[int], scale: int = 1, **options: Any) -> None:
    """Members get the averages of a loopback of their number; others keep their gradients."""
    shapes = {**dict.fromkeys(_RULES, MATRIX), "bias": (64,)}
    weights = variables(shapes)
    rules = [
        {"match": {"name": name}, "use": spec, "exchange": exchange}
        for name, (spec, exchange) in _RULES.items()
    ]
    config = configured("identity", rules=rules)
    sets = {key: options[key] for key in options if key == "process_set"}
    compression = Compression(config, weights, **sets)
    averages = tf.function(averages_of(weights, compression, **options))
    loopback = Loopback(config, len(members))
    for step in range(3):
        mine = gradients(weights, step)
        found = [one.numpy() for one in averages([tf.constant(grad) for grad in mine])]
        if hvd.rank() not in members:
            for actual, expected in zip(found, mine, strict=True):
                check_equal(actual, expected)
            continue
        of_members = [gradients(weights, step, rank) for rank in members]
        wanted = loopback.step(
            {name: [grads[n] for grads in of_members] for n, name in enumerate(shapes)}
        )
        for name, actual in zip(shapes, found, strict=True):
            one = np.asarray(wanted[name][members.index(hvd.rank())]) * np.float32(scale)
            check_equal(actual, one, f"{step}: {name}")
    if hvd.rank() in members:
        state = compression.state_dict()
        assert (state["rank"], state["world_size"]) == (members.index(hvd.rank()), len(members))


@cases
def tf_members_average_among_themselves() -> None:
    """One phase, several phases, and sums; then all ranks, after one has used fewer compressors."""
    _average(MEMBERS, process_set=process_set())
    _average(MEMBERS, scale=2, op=hvd.Sum, process_set=process_set())
    weights = variables({"matrix": MATRIX})
    check_steps(Compression(_TOPK, weights), weights)


@cases
def tf_process_sets_that_differ_are_refused() -> None:
    def gradient(process_set_of_tape: dict[str, Any], own: dict[str, Any]) -> Any:
        weights = variables({"matrix": MATRIX})
        compression = Compression("topk(k=100)", weights, **own)
        averages = averages_of(weights, compression, **process_set_of_tape)
        return averages([tf.constant(grad) for grad in gradients(weights, 0)])

    if hvd.rank() in MEMBERS:
        number = process_set().process_set_id
        refused(
            lambda: gradient({}, {"process_set": process_set()}),
            Exception,
            f"the optimizer averages over process set 0 and Compression over {number}",
            "pass the same process_set to both",
        )
        refused(
            lambda: gradient({"process_set": process_set()}, {}),
            Exception,
            f"process set {number} and Compression over 0",
        )
