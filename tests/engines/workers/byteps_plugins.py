"""Codecs of plug-ins in a BytePS job: ``python -m workers.byteps_plugins REPORTS CASE...``."""

from __future__ import annotations

import sys
from typing import Any

import torch
from workers.byteps_cases import NUMEL, agree, cases, main, train
from workers.runner import refused

from byteps_compressors.torch import attach
from gradcomp import ConfigError


@cases
def plugin_codec() -> None:
    """Averages are equal to the model's, bit for bit."""
    ramp = "absmax8(threshold=ramp(from=0.5,to=0.01,steps=2))"
    correction = "momentum_correction(masking=false,clip=scaled_norm,clip_norm=5)"
    specs = {"plain": "absmax8", "ramp": f"residual|{ramp}", "average": "signum|absmax8"}
    specs |= {"waits": "residual(average=0.5)|absmax8", "correction": f"{correction}|absmax8"}
    agree(specs, NUMEL, torch.float32, "off")
    agree({"two_way": "residual|absmax8(threshold=0.1)"}, NUMEL, torch.float32, "on")


@cases
def plugin_training() -> Any:
    """The worker's accuracy and a digest of its weights."""
    return train("residual|absmax8(threshold=0.1)", 60, "plugin")


@cases
def plugin_in_python() -> None:
    matrix = [("plugin.w", torch.empty(100, 100))]
    refused(lambda: attach(matrix, "residual|bf8"), ConfigError, "'bf8'", "in Python", "Horovod")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
