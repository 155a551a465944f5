"""The ``train`` section of a configuration; docs/training.md describes every key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, StrictBool, StrictInt

from gradcomp.config.compose import KeyPath
from gradcomp.config.fields import ExpandedPath
from gradcomp.errors import ConfigError
from training.settings.section import Number, Section

__all__ = ["TASKS", "TENSORFLOW_TASKS", "TrainSettings"]

_Task = Literal[
    "digits-mlp",
    "digits-cnn",
    "digits-vgg",
    "digits-resnet20",
    "cifar10-resnet20",
    "char-transformer",
]

TASKS: tuple[str, ...] = get_args(_Task)

TENSORFLOW_TASKS = ("digits-mlp", "digits-cnn")


class TrainSettings(Section):
    """The task, its length, the optimizer and the output."""

    section = "train"
    example = "{task: digits-cnn}"

    task: _Task = Field(description=f"one of {', '.join(TASKS)}")
    data_dir: ExpandedPath = Field(None, description="the path of a folder (cifar10-resnet20 only)")
    text_file: ExpandedPath = Field(
        None, description="the path of a text file in UTF-8 (char-transformer only)"
    )
    width: StrictInt | None = Field(
        None, ge=4, multiple_of=4, description="a multiple of 4, or none: 128"
    )
    epochs: StrictInt = Field(10, ge=1, description="an integer >= 1")
    steps_per_epoch: StrictInt | None = Field(
        None, ge=1, description="an integer >= 1, or none: all samples"
    )
    batch_size: StrictInt = Field(32, ge=1, description="an integer >= 1, samples per worker")
    lr: Number = Field(0.05, gt=0, description="a number > 0")
    scale_lr: StrictBool = Field(False, description="true or false")
    warmup_epochs: Number = Field(0.0, ge=0, description="a number >= 0")
    schedule: Literal["constant", "step", "cosine"] = Field(
        "constant", description="constant, step or cosine"
    )
    milestones: tuple[Annotated[StrictInt, Field(ge=1)], ...] = Field(
        (), description="a list of epochs, each an integer >= 1 (schedule: step only)"
    )
    gamma: Number = Field(0.1, gt=0, le=1, description="a number in (0, 1]")
    momentum: Number = Field(0.9, ge=0, lt=1, description="a number in [0, 1)")
    nesterov: StrictBool = Field(False, description="true or false")
    weight_decay: Number = Field(0.0, ge=0, description="a number >= 0")
    seed: StrictInt = Field(0, ge=0, lt=2**63, description="an integer in [0, 2^63)")
    eval_every: StrictInt = Field(1, ge=1, description="an integer >= 1, in epochs")
    checkpoint_every: StrictInt = Field(
        1, ge=0, description="an integer >= 0, in epochs (0: none but the last)"
    )
    keep_checkpoints: StrictInt = Field(2, ge=1, description="an integer >= 1")
    log_every: StrictInt = Field(1, ge=1, description="an integer >= 1, in steps")
    tensorboard: StrictBool = Field(False, description="true or false")

    @classmethod
    def from_mapping(
        cls, mapping: Mapping[Any, Any], origin: Callable[[KeyPath], str]
    ) -> TrainSettings:
        """Validate the ``train`` section of a merged configuration.

        ``origin`` tells the file or override that set a key. Raises ConfigError naming
        every wrong key, its value, the allowed values and the remedy.
        """
        if "train" not in mapping:
            raise ConfigError(
                "there is no train section; add a task, such as --config configs/digits/cnn.yaml"
            )
        return cls.of(mapping["train"], origin)

    def check_framework(self, framework: str) -> None:
        """Raise ConfigError where ``framework`` does not have the task."""
        if framework == "tensorflow" and self.task not in TENSORFLOW_TASKS:
            raise ConfigError(
                f"train.task: got {self.task!r}, which --framework tensorflow does not have; "
                f"expected one of {', '.join(TENSORFLOW_TASKS)}, or --framework torch"
            )

    def check_combinations(self) -> None:
        """See `Section`."""
        if self.task.startswith("cifar") and self.data_dir is None:
            raise ConfigError(
                f"train.data_dir: missing; {self.task} reads CIFAR-10's python batches from a "
                "folder: add --set train.data_dir=FOLDER"
            )
        if not self.task.startswith("cifar") and self.data_dir is not None:
            raise ConfigError(
                f"train.data_dir: got {str(self.data_dir)!r}, but {self.task} reads no folder; "
                "remove the key"
            )
        if self.task != "char-transformer" and self.text_file is not None:
            raise ConfigError(
                f"train.text_file: got {str(self.text_file)!r}, but {self.task} reads no text; "
                "remove the key"
            )
        if self.task != "char-transformer" and self.width is not None:
            raise ConfigError(
                f"train.width: got {self.width}, but the width of {self.task} is fixed; remove the "
                "key, or set train.task=char-transformer"
            )
        if self.schedule == "step" and not self.milestones:
            raise ConfigError(
                "train.milestones: missing; schedule: step needs the epochs after which the "
                "learning rate falls, such as [5, 8]"
            )
        if self.schedule != "step" and self.milestones:
            raise ConfigError(
                f"train.milestones: got {list(self.milestones)}, but schedule: {self.schedule} has "
                "none; remove the key or set train.schedule=step"
            )
        if list(self.milestones) != sorted(set(self.milestones)):
            raise ConfigError(
                f"train.milestones: got {list(self.milestones)}; expected increasing epochs"
            )
        if self.nesterov and self.momentum == 0:
            raise ConfigError(
                "train.nesterov: got true with momentum 0; set train.momentum above 0, such as 0.9"
            )
