"""Ranks that are a step, a state or a model apart: each ends on all ranks, and names the rank."""

from __future__ import annotations

from functools import partial

import horovod.torch as hvd
from workers import harness
from workers.harness import (
    MATRIX,
    Cases,
    averages,
    gradients,
    optimizer,
    parameters,
    refused,
)

from gradcomp.errors import ProtocolError
from horovod_compressors.torch import Compression
from support.pipelines import config_of

cases = Cases()

SPECS = (
    "randomk(ratio=0.1)",
    "powersgd(rank=2,start_step=0)",
    "residual|topk(ratio=0.1)",
    "momentum_correction|identity",
)


@cases
def an_older_state_on_one_rank() -> None:
    """As after a crash between two ranks' checkpoints."""
    for spec in SPECS:
        params = parameters({"weight": MATRIX, "bias": (64,)})
        compression = Compression(config_of(spec), params.items())
        opt = optimizer(params, compression)
        older = compression.state_dict()
        for step in range(3):
            averages(opt, params, gradients(params, step))
            if step == 1:
                older = compression.state_dict()
        # The others load nothing: the rank finds out before its first gradient leaves.
        if hvd.rank() == 1:
            compression.load_state_dict(older)
        refused(
            lambda o=opt, p=params: averages(o, p, gradients(p, 3)),
            ProtocolError,
            "not at the same point of the training",
            "step: 3 on rank 0; 2 on rank 1",
        )


@cases
def states_of_another_run_on_one_rank() -> None:
    """At the same step, PowerSGD's factors differ."""
    runs = []
    for first in (0, 10):
        params = parameters({"weight": MATRIX})
        compression = Compression(config_of("powersgd(rank=2,start_step=0)"), params.items())
        opt = optimizer(params, compression)
        for step in range(first, first + 2):
            averages(opt, params, gradients(params, step))
        runs.append((params, compression, opt))
    params, compression, opt = runs[0]
    compression.load_state_dict(runs[hvd.rank()][1].state_dict())
    refused(
        lambda: averages(opt, params, gradients(params, 2)),
        ProtocolError,
        "states differ where they must be equal",
        "powersgd_q of 1 tensors",
        "on rank 1",
    )


@cases
def steps_of_the_script() -> None:
    """Rank 1 has skipped a step: the next one ends the job."""
    params = parameters({"weight": MATRIX})
    compression = Compression("residual|topk(ratio=0.1)", params.items())
    opt = optimizer(params, compression)
    for step in range(3):
        compression.set_step(step)
        averages(opt, params, gradients(params, step))
    compression.set_step(3 + hvd.rank())
    refused(
        lambda: averages(opt, params, gradients(params, 3)),
        ProtocolError,
        "the script's step: 3 on rank 0; 4 on rank 1",
    )


@cases
def a_save_or_load_on_one_rank() -> None:
    folder = harness.shared / "never"
    for call, other in (("save()", "a step"), ("load()", "a step"), ("load()", "save()")):
        params = parameters({"weight": MATRIX})
        compression = Compression("residual|topk(ratio=0.1)", params.items())
        opt = optimizer(params, compression)
        averages(opt, params, gradients(params, 0))
        acts = {
            "save()": partial(compression.save, folder, 1),
            "load()": partial(compression.load, folder),
            "a step": partial(averages, opt, params, gradients(params, 1)),
        }
        refused(
            acts[other if hvd.rank() == 1 else call],
            ProtocolError,
            f"every rank must call {call}, between the same two steps, and rank 1 does not",
            f"({call} on rank 0; {other} on rank 1)",
        )
    assert not folder.exists()


@cases
def models_that_drift_apart() -> None:
    """The digests of step 2 travel with step 3."""
    params = parameters({"first": MATRIX, "second": MATRIX, "bias": (64,)})
    config = config_of("residual|topk(ratio=0.1)").model_copy(update={"check_replicas_every": 2})
    compression = Compression(config, params.items())
    opt = optimizer(params, compression)
    for step in range(2):
        averages(opt, params, gradients(params, step))
    name = list(params)[1]
    if hvd.rank() == 1:
        params[name].data[3, 4] += 1e-6
    averages(opt, params, gradients(params, 2))
    refused(
        lambda: averages(opt, params, gradients(params, 3)),
        ProtocolError,
        f"1 of 3 parameters differ before step 2, first '{name}'",
        "on rank 1",
    )


@cases
def another_step_after_all_that() -> None:
    params = parameters({"weight": MATRIX})
    opt = optimizer(params, Compression("residual|topk(ratio=0.1)", params.items()))
    assert averages(opt, params, gradients(params, 0))
