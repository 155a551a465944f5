"""``gradcomp advise --gpu``: what it prints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from gradcomp.cli import show
from gradcomp.cli.spec_cell import SpecCell
from gradcomp.tools.advise.gpu import NCCL_SHARE, GpuAdvice, GpuTimes
from gradcomp.tools.advise.predict import Job

__all__ = ["gpu_json", "gpu_lines"]

_LEGEND = (
    "ms: of a step. speed: of the step without a hook over this one. hook: ms that a hook takes of it on one process "
    "alone, and for the messages of all ranks. wire: ms of the exchange, of which the backward pass hides a part. MB: "
    "through a node's link in a step. Of a spec and device the fastest exchange is shown; the hooks are PyTorch's "
    "fp16_compress_hook, and powerSGD_hook with rank 4."
)


def gpu_lines(
    model: str, job: Job, times: GpuTimes, measured: bool, advices: Sequence[GpuAdvice]
) -> list[Any]:
    """The lines and the table of ``gradcomp advise --gpu``.

    Args:
        measured: the times are those of the user's file.
    """
    return [
        show.wrap(_title(model, job)),
        "",
        show.wrap(_source(times, measured)),
        "",
        _table(advices),
        "",
        show.wrap(_LEGEND),
        "",
        *_best(advices),
    ]


def gpu_json(
    job: Job, times: GpuTimes, measured: bool, advices: Sequence[GpuAdvice]
) -> dict[str, Any]:
    """The object of ``--json``."""
    rate = job.link.bits_per_second
    return {
        "engine": "torch, NCCL",
        "ranks": job.ranks,
        "ranks_per_node": job.ranks_per_node,
        "bits_per_second": rate if math.isfinite(rate) else None,
        "compute": job.compute,
        "gpu": times.machine,
        "measured": measured,
        "candidates": [
            {
                "spec": advice.name,
                "device": advice.device,
                "pattern": None if advice.candidate is None else advice.candidate.pattern,
                **asdict(advice.prediction),
                "speedup": advice.speedup,
            }
            for advice in advices
        ],
    }


def _title(model: str, job: Job) -> str:
    elements = sum(map(math.prod, job.shapes.values()))
    return (
        f"{model}, {elements:,} elements; DDP on NCCL, {job.ranks} GPUs on {job.ranks // job.ranks_per_node} nodes; "
        f"links of {job.link.bits_per_second / 1e9:g} Gbit/s; {1e3 * job.compute:g} ms of computation. Predicted:"
    )


def _source(times: GpuTimes, measured: bool) -> str:
    reach = (
        f"NCCL is assumed to reach {NCCL_SHARE:.0%} of a link. Each time grows with the elements."
    )
    if measured:
        return f"Times of hooks: measured on {times.machine}. {reach}"
    return (
        f"Times of hooks: not of your GPU, but of one run on {times.machine}, which later changes may have "
        "shortened. For those of yours, run python benchmarks/gpu.py there, and give its results.json with --gpu. "
        f"{reach}"
    )


def _table(advices: Sequence[GpuAdvice]) -> Table:
    table = show.table("spec", "device", "exchange", "ms", "speed", "hook", "wire", "MB")
    table.columns[2].no_wrap = True
    for column in range(3, 8):
        table.columns[column].justify = "right"
        table.columns[column].no_wrap = True
    shown = set()
    for advice in advices:
        prediction, candidate = advice.prediction, advice.candidate
        if (advice.name, advice.device) in shown:
            continue
        shown.add((advice.name, advice.device))
        table.add_row(
            advice.name if candidate is None else SpecCell(advice.name),
            advice.device or "-",
            "-" if candidate is None else candidate.pattern,
            f"{1e3 * prediction.seconds:.1f}",
            f"{advice.speedup:.2f}x",
            f"{1e3 * prediction.stages['hook']:.1f}",
            f"{1e3 * prediction.stages['wire']:.1f}",
            f"{prediction.link_bytes / 1e6:.4g}",
        )
    return table


def _best(advices: Sequence[GpuAdvice]) -> list[str]:
    """What to do, and the lines to paste."""
    best = advices[0]
    if best.candidate is not None:
        lines = ["version: 1", "compress:", f'  default: "{best.name}"', f"  device: {best.device}"]
        if best.candidate.exchange != "auto":
            lines.append(f"  exchange: {best.candidate.exchange}")
        if best.device == "direct":
            lines.append("  bucket_bytes: 25000000")
        return [*_default_costs(advices), "compress.yaml:", "", *lines]
    if best.speedup > 1:
        return [show.wrap(f"Do not use gradcomp here: {best.name} is predicted to be faster.")]
    return ["Do not compress: leave the script as it is."]


def _default_costs(advices: Sequence[GpuAdvice]) -> list[str]:
    """A line on the first spec with the default ``compress.device``, if it loses to no hook."""
    host = next((advice for advice in advices if advice.device == "host"), None)
    if host is None or host.speedup >= 1:
        return []
    text = f"With compress.device: host, the default, every spec is slower than no hook: set {advices[0].device}."
    return [show.wrap(text), ""]
