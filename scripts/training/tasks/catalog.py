"""The tasks that a configuration can name: model, data set and metric of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import nn

from training.metrics import ACCURACY, BITS_PER_CHARACTER, Metric
from training.settings.train import TrainSettings
from training.tasks.data import Dataset, load_cifar10, load_digits_images
from training.tasks.models import CharTransformer, ResNet20, digits_cnn, digits_mlp, digits_vgg
from training.tasks.text import PIECE, TextPieces, load_python_topics, load_text

__all__ = ["Task", "task_of"]


class Task(NamedTuple):
    """One task.

    Attributes:
        model: makes the model for a number of classes.
        load: reads the data set; raises ConfigError.
        metric: measures the quality of the model.
    """

    model: Callable[[int], nn.Module]
    load: Callable[[], Dataset]
    metric: Metric


def task_of(settings: TrainSettings) -> Task:
    """The task that ``settings`` name."""
    if settings.task == "digits-mlp":
        return Task(digits_mlp, load_digits_images, ACCURACY)
    if settings.task == "digits-cnn":
        return Task(digits_cnn, load_digits_images, ACCURACY)
    if settings.task == "digits-vgg":
        return Task(digits_vgg, load_digits_images, ACCURACY)
    if settings.task == "digits-resnet20":
        return Task(lambda classes: ResNet20(classes, 1), load_digits_images, ACCURACY)
    if settings.task == "char-transformer":
        file = settings.text_file
        return Task(
            lambda characters: CharTransformer(characters, PIECE, settings.width or 128),
            lambda: TextPieces(load_python_topics() if file is None else load_text(file)),
            BITS_PER_CHARACTER,
        )
    folder = settings.data_dir
    assert folder is not None, "settings require it of this task"
    return Task(ResNet20, lambda: load_cifar10(folder), ACCURACY)
