"""The tasks a configuration can name: a model and its data."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import nn

from training.data import Dataset, load_cifar10, load_digits_images
from training.models import ResNet20, digits_cnn, digits_mlp
from training.settings import TrainSettings

__all__ = ["Task", "task_of"]


class Task(NamedTuple):
    """How to make the model, and how to load its data."""

    model: Callable[[], nn.Module]
    load: Callable[[], Dataset]


def task_of(settings: TrainSettings) -> Task:
    """The task that ``settings`` name."""
    if settings.task == "digits-mlp":
        return Task(digits_mlp, load_digits_images)
    if settings.task == "digits-cnn":
        return Task(digits_cnn, load_digits_images)
    folder = settings.data_dir
    assert folder is not None, "settings require it of this task"
    return Task(ResNet20, lambda: load_cifar10(folder))
