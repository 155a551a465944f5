"""Prediction of steps of DDP on GPUs over NCCL, from the times of one process without a network.

A step takes its computation, the time that the hook takes of a process alone, and what of the exchange the
backward pass does not hide.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradcomp.codec.codec import get_codec
from gradcomp.codec.frame_parts import kept_count
from gradcomp.codec.shares import Shares
from gradcomp.codec.spec import Spec, Stage, parse
from gradcomp.errors import GradcompError
from gradcomp.exchange.automatic import share_link_bytes, spec_link_bytes
from gradcomp.exchange.link import dense_link_bytes, link_bytes
from gradcomp.exchange.patterns.sparse_allreduce import MIN_SHARE
from gradcomp.tools.advise.calibrate import config_of
from gradcomp.tools.advise.predict import Job, late_pipeline
from gradcomp.tools.advise.rank import Candidate, candidates
from gradcomp.tools.step_model import StepTime
from gradcomp.tools.synthetic import LATE_STEP

__all__ = ["GPU_SPECS", "H100", "NO_HOOK", "GpuAdvice", "GpuTimes", "advise_gpu", "read_times"]

GPU_SPECS = (
    "fp16",
    "residual|int8",
    "residual|int4",
    "residual|topk(ratio=0.01)",
    "residual|topk(ratio=0.001)",
    "powersgd(rank=4,start_step=0)",
)
"""Specs that are compared without a choice of the user's."""

NO_HOOK = "do not compress"
FP16_HOOK = "PyTorch fp16 hook"
POWERSGD_HOOK = "PyTorch PowerSGD hook"

NCCL_SHARE = 0.85
"""Part of a link's bandwidth that NCCL is assumed to reach."""

_BACKWARD = 2 / 3
"""Of a model's time, as in `gradcomp.tools.advise.predict`."""

_ELEMENTS = 6 * (2048 * 2048 + 3 * 2048)
"""Of the model of benchmarks/gpu.py, whose steps are measured."""

_FRAMES = 8
"""Frames that benchmarks/gpu.py adds up, of `_ADDED` elements."""
_ADDED = 25_000_000

_BUCKET_BYTES = 25_000_000
"""Of gradients that travel together from device to device, as docs/gpu.md sets ``compress.bucket_bytes``."""

_TOPK, _INT8, _FP16 = "residual|topk(ratio=0.01)", "residual|int8", "fp16"
_POWERSGD = "powersgd(rank=4,start_step=0)"
_MEASURED = {
    **dict.fromkeys(("topk", "sampled_topk", "randomk"), _TOPK),
    **dict.fromkeys(("int8", "int4", "qsgd", "uniform", "sign", "onebit", "terngrad"), _INT8),
    **dict.fromkeys(("fp16", "bf16"), _FP16),
    "powersgd": _POWERSGD,
}
"""By codec or algorithm, the spec with the times that it is assumed to have."""

_KERNELS = {_TOPK: "add 8 frames of topk(ratio=0.01)", _INT8: "add 8 frames of int8"}

_DEVICES = {
    "direct": ("reduce", "gather", "sra", "sparse_allreduce", "algorithm"),
    "auto": ("reduce", "gather", "algorithm"),
    "host": ("reduce", "gather", "sra", "sparse_allreduce", "algorithm"),
}
"""Values of ``compress.device``, and the exchanges for which gradients are not on the host with each."""


@dataclass(frozen=True)
class GpuTimes:
    """Times of a machine with a GPU, for each element of a model.

    Attributes:
        machine: the GPU, and versions.
        hooks: seconds that a hook adds to the step of one process: ours by "SPEC, DEVICE".
        added: seconds of the GPU for adding one rank's message, by spec.
        read: seconds of the host for reading one rank's frame, on 8 threads.
    """

    machine: str
    hooks: Mapping[str, float]
    added: Mapping[str, float]
    read: float

    @classmethod
    def of(cls, results: Mapping[str, Any]) -> GpuTimes:
        """The times in results of benchmarks/gpu.py.

        Raises:
            KeyError, TypeError, ValueError: they are not such results, or lack a part.
        """
        steps = {str(row["name"]): row["ms"] for row in results["steps"] if row["ranks"] == 1}
        alone = steps.pop("no hook")
        hooks = {name: 1e-3 * max(ms - alone, 0) / _ELEMENTS for name, ms in steps.items()}
        each = 1e-3 / (_FRAMES * _ADDED)
        kernels = {
            row["name"]: row["graph"] for row in results["kernels"] if row["numel"] == _ADDED
        }
        added = {spec: each * kernels[name] for spec, name in _KERNELS.items()}
        (read,) = (
            row["added"]
            for row in results["frames"]
            if (row["numel"], row["threads"]) == (_ADDED, 8)
        )
        return cls(str(results["machine"]), hooks, added, each * read)


H100 = GpuTimes(
    machine="NVIDIA H100 80GB HBM3, PyTorch 2.11.0+cu130, CUDA 13.0",
    hooks={
        name: 1e-3 * ms / _ELEMENTS
        for name, ms in {
            "torch fp16_compress_hook": 2.016,
            "torch powerSGD_hook, rank 4": 11.497,
            f"{_TOPK}, direct": 6.701,
            f"{_TOPK}, auto": 17.789,
            f"{_TOPK}, host": 29.241,
            f"{_INT8}, direct": 6.894,
            f"{_INT8}, auto": 28.865,
            f"{_INT8}, host": 24.168,
            f"{_FP16}, direct": 6.504,
            f"{_FP16}, auto": 22.284,
            f"{_FP16}, host": 27.376,
            f"{_POWERSGD}, auto": 21.925,
            f"{_POWERSGD}, host": 24.299,
        }.items()
    },
    added={_TOPK: 0.2096e-3 / (_FRAMES * _ADDED), _INT8: 0.6629e-3 / (_FRAMES * _ADDED)},
    read=7.563e-3 / (_FRAMES * _ADDED),
)
"""Those of docs/results/gpu/results.json."""


def read_times(path: str) -> GpuTimes:
    """The times in a file that benchmarks/gpu.py has written.

    Raises:
        GradcompError: the file cannot be read, or is not such a file.
    """
    try:
        return GpuTimes.of(json.loads(Path(path).read_text("utf-8")))
    except OSError as error:
        raise GradcompError(
            f"--gpu {path}: cannot be read ({error.strerror}); give h100, or a results.json of "
            "python benchmarks/gpu.py"
        ) from None
    except (KeyError, TypeError, ValueError) as error:
        raise GradcompError(
            f"--gpu {path}: is no complete results.json of python benchmarks/gpu.py "
            f"({type(error).__name__}: {error}); run it on the GPU, with speeds and steps among its --parts"
        ) from None


@dataclass(frozen=True)
class GpuAdvice:
    """A way to average gradients of GPUs.

    Attributes:
        name: the spec, or that of a hook of PyTorch.
        device: ``compress.device``; "" without gradcomp.
        candidate: with its exchange; None without gradcomp.
        prediction: of the step; ``stages`` are "model", "hook" and "wire".
        speedup: seconds of the step without a hook over those of this one.
    """

    name: str
    device: str
    candidate: Candidate | None
    prediction: StepTime
    speedup: float


def advise_gpu(job: Job, specs: Sequence[str], times: GpuTimes) -> list[GpuAdvice]:
    """All ways, the fastest step first; of equal ones the simplest.

    Args:
        job: its link is of a node, and its engine does not count.
        specs: of gradcomp.

    Raises:
        SpecError: a spec is wrong.
        GradcompError: there are no times for a spec on a GPU.
    """
    plain = [
        (NO_HOOK, 0.0, dense_link_bytes(_gradient_bytes(job), job.ranks)),
        (
            FP16_HOOK,
            times.hooks["torch fp16_compress_hook"],
            dense_link_bytes(_gradient_bytes(job) / 2, job.ranks),
        ),
        (
            POWERSGD_HOOK,
            times.hooks["torch powerSGD_hook, rank 4"],
            _link_bytes(job, Candidate(_POWERSGD, "auto", "algorithm")),
        ),
    ]
    elements = _gradient_bytes(job) / 4
    found: list[tuple[str, str, Candidate | None, StepTime]] = [
        (name, "", None, _step(job, elements * hook, nbytes)) for name, hook, nbytes in plain
    ]
    for candidate in candidates(specs, job.ranks, 1):
        if candidate.compresses:
            for device, hook in _hooks(job, candidate, times):
                step = _step(job, elements * hook, _link_bytes(job, candidate, device))
                found.append((candidate.spec, device, candidate, step))
    alone = found[0][3]
    advices = [GpuAdvice(*row, row[3].times_as_fast_as(alone)) for row in found]
    return sorted(advices, key=_order)


def _order(advice: GpuAdvice) -> tuple[float, int]:
    """Faster steps first; of equal ones the simplest, and of exchanges not the one that keeps least."""
    candidate = advice.candidate
    rank = 0 if candidate is None else 2 if candidate.pattern == "sra" else 1
    return advice.prediction.seconds, rank


def _hooks(job: Job, candidate: Candidate, times: GpuTimes) -> Iterator[tuple[str, float]]:
    """Each ``compress.device`` that the exchange can have, with the hook's seconds for an element."""
    spec = parse(candidate.spec)
    stage = _stage_of(spec)
    measured = _MEASURED.get(stage.name)
    if measured is None:
        raise GradcompError(
            f"'{candidate.spec}': there are no times on a GPU for {stage.name}; they are for "
            f"{', '.join(_MEASURED)}. On the host it is predicted without --gpu"
        )
    # A process alone has read one message. In sra and sparse_allreduce a rank adds up a part of each rank's, and
    # reads all sums: two messages in all.
    more = {"gather": job.ranks - 1, "sra": 1, "sparse_allreduce": 1}.get(candidate.pattern, 0)
    for device, exchanges in _DEVICES.items():
        hook = times.hooks.get(f"{measured}, {device}")
        if device == "direct" and not _goes_between_devices(spec):
            continue
        if hook is not None and candidate.pattern in exchanges:
            each = times.added.get(measured, 0.0) if device == "direct" else times.read
            yield device, hook + more * each


def _stage_of(spec: Spec) -> Stage:
    """The stage of a spec's codec, or its algorithm."""
    return spec.algorithm or next(stage for stage in spec.stages if stage.kind == "codec")


def _goes_between_devices(spec: Spec) -> bool:
    """Whether messages of a measured spec can travel from device to device."""
    if spec.algorithm is not None or "sparse" not in get_codec(spec.first_codec).caps:
        return True
    stage = _stage_of(spec)
    values = stage.params.get("values", "fp32")
    return stage.name != "randomk" and values in ("fp32", "fp16", "bf16")


def _step(job: Job, hook: float, nbytes: float) -> StepTime:
    """A step whose hook takes seconds of its own, and whose exchange the backward pass hides in part."""
    wire = job.link.seconds(nbytes) / NCCL_SHARE
    late = max(0.0, wire - _BACKWARD * job.compute)
    stages = {"model": job.compute, "hook": hook, "wire": wire}
    return StepTime(job.compute + hook + late, stages, nbytes)


def _shared_link_bytes(spec: Spec, numels: Sequence[int], ranks: int) -> float:
    """Bytes of tensors with a `sparse_allreduce` from device to device, which has spare slots in each bucket."""
    params = _stage_of(spec).params
    numel, kept = sum(numels), sum(kept_count(params, numel) for numel in numels)
    buckets = -(-4 * numel // _BUCKET_BYTES)
    if numel < MIN_SHARE * ranks * buckets:
        return sum(spec_link_bytes(spec, "gather", ranks, numel) for numel in numels)
    shares = Shares(numel // buckets, kept // buckets, ranks)
    return buckets * share_link_bytes(shares, str(params["values"]))


def _gradient_bytes(job: Job) -> int:
    return 4 * sum(map(math.prod, job.shapes.values()))


def _link_bytes(job: Job, candidate: Candidate, device: str = "host") -> float:
    """Bytes that pass a node's link in a step."""
    spec = parse(candidate.spec)
    late = spec.at(LATE_STEP, LATE_STEP)
    pipeline = late_pipeline(config_of(candidate.spec, candidate.exchange, 1), job)
    total = 0.0
    shared: list[int] = []
    for name, tensor in pipeline.resolve_all(job.shapes).items():
        if pipeline.sends_dense(tensor):
            total += dense_link_bytes(4 * tensor.key.numel, job.ranks)
        elif spec.algorithm is not None:
            rows, numel = job.shapes[name][0], tensor.key.numel
            nbytes = 4 * int(spec.algorithm.params["rank"]) * (rows + numel // rows)  # type: ignore[arg-type]
            total += link_bytes("allreduce", nbytes, job.ranks)
        elif (device, candidate.pattern) == ("direct", "sparse_allreduce"):
            shared.append(tensor.key.numel)
        else:
            total += spec_link_bytes(late, candidate.pattern, job.ranks, tensor.key.numel)
    if shared:
        total += _shared_link_bytes(late, shared, job.ranks)
    if candidate.pattern in ("sra", "sparse_allreduce") and job.ranks > 1:
        # Half of it goes from each rank to each other one, so ranks of a node share its link.
        outside = job.ranks - job.ranks_per_node
        total *= (1 + job.ranks_per_node * outside / (job.ranks - 1)) / 2
    return total if job.ranks > job.ranks_per_node else 0.0
