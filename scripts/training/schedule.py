"""The learning rate as a pure function of the step, so that checkpoints need not save it."""

from __future__ import annotations

import math

from training.settings.train import TrainSettings

__all__ = ["learning_rate"]


def learning_rate(
    settings: TrainSettings, *, workers: int, steps_per_epoch: int, step: int
) -> float:
    """The learning rate of ``step``, counted from 0 over all epochs."""
    peak = settings.lr * (workers if settings.scale_lr else 1)
    warmup_steps = settings.warmup_epochs * steps_per_epoch
    warmup = min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0
    epoch = step // steps_per_epoch
    if settings.schedule == "step":
        decay = settings.gamma ** sum(epoch >= milestone for milestone in settings.milestones)
    elif settings.schedule == "cosine":
        progress = step / (settings.epochs * steps_per_epoch)
        decay = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    else:
        decay = 1.0
    return peak * warmup * decay
