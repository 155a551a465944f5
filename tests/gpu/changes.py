"""Ranks on devices, whose ratio or loss scale changes, beside ranks on the host, as a process: python changes.py

Prints the number of steps that were compared; the first difference is an error.
"""

from __future__ import annotations

import os
from itertools import product

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch

import gpu.quick_interpreter  # noqa: F401
from gradcomp.codec.devices import HOST
from gradcomp_torch.gpu.device import TorchDevice
from gradcomp_torch.gpu.encoders import tiling
from gradcomp_torch.gpu.peer_device import DirectDevice
from support.mixed_ranks import (
    RANKS,
    SCALES,
    average,
    gradients,
    ranks_of,
    residuals,
    scaled_gradients,
)
from support.pipelines import config_of

HOSTS = [HOST] * RANKS


def main() -> None:
    """Compare steps."""
    tiling.TILE, tiling.BLOCK, tiling.SLOTS = 1024, 256, 256
    print(
        f"{compare_schedules()} steps of schedules, {compare_mixed_precision()} of mixed precision"
    )


def compare_schedules() -> int:
    """Ratios that change with the epoch."""
    return compare_schedule(
        "residual|topk(ratio=ramp(from=0.4,to=0.05,epochs=4))|raw32"
    ) + compare_schedule("dgc(ratio=0.05)|raw32")


def compare_schedule(spec: str) -> int:
    """A spec whose parameters change with the epoch: encoders of earlier epochs are forgotten."""
    config = config_of(spec, device="direct")
    devices = [DirectDevice(torch.device("cpu")) for _ in range(RANKS)]
    there, alone = ranks_of(config), ranks_of(config)
    for rank in (*there, *alone):
        rank.begin_peer_messages(devices[0])  # all choose the same exchange
    compared = 0
    for step in range(12):
        for rank in (*there, *alone):
            rank.set_epoch(step // 2)
        grads = gradients(step)
        if average(there, devices, grads) != average(alone, HOSTS, grads):
            raise AssertionError(f"averages differ in step {step} of {spec}")
        if [residuals(one) for one in there] != [residuals(one) for one in alone]:
            raise AssertionError(f"states differ in step {step} of {spec}")
        compared += 1
    # The first ratio is exchanged by sra, with encoders of pieces and of their averages.
    left = max(len(device._encoders) for device in devices)
    assert left == 1, f"{left} encoders of one bucket"
    return compared


def compare_mixed_precision() -> int:
    """Steps under a loss scale, of which all ranks skip one, with devices and from device to device."""
    specs = [
        "residual|topk(ratio=0.2)|raw32",
        "momentum_correction(momentum=0.9)|topk(ratio=0.1)|raw32",
    ]
    specs += ["ef21|topk(ratio=0.2)|raw32", "ef21|int8(bucket=64)"]
    specs += ["residual|randomk(ratio=0.1)", "residual|int8(bucket=64)"]
    compared = 0
    for spec, device in product(specs, ("auto", "direct")):
        config = config_of(spec, device=device, exchange="gather")
        made = DirectDevice if device == "direct" else TorchDevice
        devices = [made(torch.device("cpu")) for _ in range(RANKS)]
        there, alone = ranks_of(config), ranks_of(config)
        for step, scale in enumerate(SCALES):
            for rank in (*there, *alone):
                if scale is not None:
                    rank.set_loss_scale(scale)
            if [residuals(one) for one in there] != [residuals(one) for one in alone]:
                raise AssertionError(f"{spec}, {device}: states differ before step {step}")
            grads = scaled_gradients(step)
            with np.errstate(all="ignore"):
                found, expected = average(there, devices, grads), average(alone, HOSTS, grads)
            for name, data in expected[0].items():
                # Of a NaN, the bits may be others.
                wanted = np.frombuffer(data, np.float32)
                of_ranks = [np.frombuffer(one[name], np.float32) for one in found]
                np.testing.assert_equal(of_ranks, [wanted] * RANKS, f"{spec}, {device}: {name}")
            compared += 1
    return compared


if __name__ == "__main__":
    main()
