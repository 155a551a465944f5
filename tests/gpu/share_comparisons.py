"""Comparisons of a `sparse_allreduce` from device to device with rounds through the host; see comparisons.py."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any
from unittest import mock

import numpy as np
import torch

from gradcomp import Config, Pipeline
from gradcomp.codec.devices import HOST
from gradcomp.codec.shares import SHARE_BLOCK
from gradcomp.exchange.patterns import peer_sparse_allreduce
from gradcomp.exchange.patterns.peer_sparse_allreduce import PeerSparseAllReduce
from gradcomp_torch.gpu.peer_device import DirectDevice
from support.mixed_ranks import SHAPES, average, gradients, residuals
from support.pipelines import configured, rules_of

__all__ = ["CASES", "steps"]


class _Waiting(DirectDevice):
    """Messages are complete when their calls return, as no engine waits for them."""

    def begin_shares(self, *args: Any) -> Any:
        return self._wait(super().begin_shares(*args))

    def begin_messages(self, *args: Any) -> Any:
        return self._wait(super().begin_messages(*args))

    def _wait(self, messages: Any) -> Any:
        if self._device.type != "cpu":
            torch.accelerator.synchronize(self._device)
        return messages


def _ranks_of(config: Config, devices: list[DirectDevice]) -> list[Pipeline]:
    """Pipelines of ranks that have agreed on messages from device to device."""
    pipelines = [Pipeline(config, rank, len(devices)) for rank in range(len(devices))]
    for pipeline, device in zip(pipelines, devices, strict=True):
        pipeline.begin_peer_messages(device)
        resolved = pipeline.resolve_all(SHAPES)
        assert pipeline.buckets(resolved) == [tuple(reversed(SHAPES))]
        for tensor in resolved.values():
            pattern = getattr(tensor.aggregator, "_inner", tensor.aggregator)
            assert isinstance(pattern, PeerSparseAllReduce)
    return pipelines


def crowded(step: int, ranks: int) -> dict[str, list[np.ndarray]]:
    """Large gradients in the share of one rank, so that they have too few slots; one is NaN in step 1.

    The last rank has no others, and zeros among them, which its codecs keep.
    """
    grads = gradients(step, ranks)
    numel = sum(rank[0].size for rank in grads.values())
    block = np.arange(numel) // SHARE_BLOCK
    large = (block + block // ranks) % ranks == 1
    begin = 0
    for name in reversed(SHAPES):  # their order in a bucket
        of_ranks = grads[name]
        for grad in of_ranks:
            part = large[begin : begin + grad.size].reshape(grad.shape)
            grad *= np.where(part, 100, 1).astype(np.float32)
        few = part & (np.arange(part.size).reshape(part.shape) % 5 < 3)
        of_ranks[-1][~few] = 0
        if step == 1 and name == "fc":
            of_ranks[0].reshape(-1)[np.flatnonzero(part)[-1]] = np.nan
            of_ranks[1].reshape(-1)[np.flatnonzero(part)[-2]] = np.inf
        begin += of_ranks[0].size
    return grads


USES = [
    ["residual|topk(ratio=0.2)", "residual(lr=scale)|topk(ratio=0.3)|rice", "topk(k=7)|raw32"],
    ["residual|sampled_topk(ratio=0.2,sample_ratio=0.1,values=bf16)"] * 3,
    ["momentum_correction(momentum=0.9)|topk(ratio=0.2,values=fp16)"] * 3,
    ["ef21|topk(ratio=0.2)"] * 3,
    # The first steps travel through the host, as parameters change.
    ["residual|topk(ratio=0.2)"] * 2 + ["residual|topk(ratio=ramp(from=0.5,to=0.2,steps=2))"],
]


CASES = list(product(USES, (gradients, crowded)))


def steps(case: int, ranks: int, count: int, place: torch.device) -> Iterator[str]:
    """Averages and states of ``count`` steps, to the last bit; a NaN has to reach the average.

    Args:
        case: index in `CASES`.
        place: where the ranks' gradients are.
    """
    specs, make = CASES[case]
    rules = rules_of(dict(zip(SHAPES, specs, strict=True)), "{}")
    config = configured(specs[0], rules=rules, exchange="sparse_allreduce", device="direct")
    devices: list[DirectDevice] = [_Waiting(place) for _ in range(ranks)]
    with mock.patch.object(peer_sparse_allreduce, "MIN_SHARE", SHARE_BLOCK):
        direct, alone = _ranks_of(config, devices), _ranks_of(config, devices)
        for step in range(count):
            for rank in (*direct, *alone):
                rank.set_lr(0.1 / (1 + step))
            grads = make(step, ranks)
            found = average(direct, devices, grads)
            wanted = average(alone, [HOST] * ranks, grads)
            if any(one != found[0] for one in found):
                yield f"{specs}: averages of ranks differ in step {step}"
            got, want = (
                np.concatenate([np.frombuffer(one[0][name], np.float32) for name in SHAPES])
                for one in (found, wanted)
            )
            if not np.array_equal(got, want, equal_nan=True):
                yield f"{specs}: averages differ in step {step}"
            # A sampled codec keeps the first elements that reach a threshold.
            wild = make is crowded and step == 1
            if np.isfinite(got).all() == wild and "sampled" not in specs[0]:
                yield f"{specs}: NaN in step {step}"
            if [residuals(one) for one in direct] != [residuals(one) for one in alone]:
                yield f"{specs}: states differ in step {step}"
    sent, through_host = (one[0].stats.sent_bytes["alltoall"] for one in (direct, alone))
    if sent == through_host:
        yield f"{specs}: through the host"
