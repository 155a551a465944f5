"""Ranks in one process with gradients on devices, and others on the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gradcomp import Config, Pipeline
from gradcomp.codec.devices import Device, device_of
from gradcomp.runtime.loopback import run_rounds

SHAPES = {"conv": (8, 3, 3), "fc": (40, 25), "bias": (40,)}
RANKS = 3


def gradients(step: int, ranks: int = RANKS) -> dict[str, list[np.ndarray]]:
    rng = np.random.default_rng(step)
    return {
        name: [rng.standard_normal(shape, np.float32) for _ in range(ranks)]
        for name, shape in SHAPES.items()
    }


SCALES = (None, None, 4.0, 4.0, 2.0, 2.0, 4.0)
"""The loss scale of each step; None: there is none yet. A smaller one says that the last step was skipped."""


def scaled_gradients(step: int) -> dict[str, list[np.ndarray]]:
    """As `gradients`; in the step that is skipped, of two tensors some ranks' have Inf or NaN."""
    grads = gradients(step)
    if SCALES[step : step + 2] == (4.0, 2.0):
        grads["fc"][1][3, 5] = -np.inf
        grads["conv"][0][-1, -1, -1] = np.nan
    return grads


def average(
    pipelines: Sequence[Pipeline],
    devices: Sequence[Device],
    grads: Mapping[str, Sequence[np.ndarray]],
    run: Callable[[Sequence[Any]], Sequence[Any]] = run_rounds,
    *,
    overwrite: bool = False,
) -> list[dict[str, bytes]]:
    """One step; each rank's gradients are on its device where its pipeline takes them there.

    Args:
        run: makes the requests of one round of each rank.
        overwrite: averages may overwrite the gradients.
    """
    resolved = [pipeline.resolve_all(SHAPES) for pipeline in pipelines]
    results: list[dict[str, bytes]] = [{} for _ in pipelines]
    for names in pipelines[0].buckets(resolved[0]):
        rounds = []
        for rank, (pipeline, device) in enumerate(zip(pipelines, devices, strict=True)):
            given = {}
            for name in names:
                grad = grads[name][rank]
                there = pipeline.on_device(resolved[rank][name], device)
                given[name] = device.from_host(grad) if there else grad
            resolved_here = resolved[rank]
            rounds.append(
                pipeline.bucket_round(names[0], given, overwrite=overwrite, resolved=resolved_here)
            )
        for result, of_rank in zip(results, run(rounds), strict=True):
            for name, one in zip(names, of_rank, strict=True):
                result[name] = device_of(one).to_host(one).tobytes()
    return results


def residuals(pipeline: Pipeline) -> dict[str, dict[str, bytes]]:
    state = pipeline.state_dict()
    return {
        kind: {name: array.tobytes() for name, array in state[kind].items()}
        for kind in ("residual", "momentum", "estimate", "estimate_mean")
    }


def ranks_of(config: Config) -> list[Pipeline]:
    return [Pipeline(config, rank, RANKS) for rank in range(RANKS)]
