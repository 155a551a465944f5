"""The ``train`` section of a configuration; docs/training.md describes every key."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    ValidationError,
)

from gradcomp.compose import KeyPath, format_path
from gradcomp.errors import ConfigError

__all__ = ["TASKS", "TENSORFLOW_TASKS", "TrainSettings"]

TASKS = ("digits-mlp", "digits-cnn", "digits-resnet20", "cifar10-resnet20", "char-transformer")

TENSORFLOW_TASKS = ("digits-mlp", "digits-cnn")


def _number(value: object) -> object:
    # YAML 1.1 reads 1e-3 (no dot) as text; True is an int to Python.
    if isinstance(value, bool):
        raise ValueError("not a number")
    return value


def _path(value: object) -> object:
    return Path(value).expanduser() if isinstance(value, str) and value else value


Number = Annotated[float, BeforeValidator(_number)]


class TrainSettings(BaseModel):
    """What to train, and how.

    The description of a field says what is allowed there; error messages quote it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    task: Literal[
        "digits-mlp", "digits-cnn", "digits-resnet20", "cifar10-resnet20", "char-transformer"
    ] = Field(description=f"one of {', '.join(TASKS)}")
    data_dir: Annotated[Path | None, BeforeValidator(_path)] = Field(
        None, description="the path of a folder (cifar10-resnet20 only)"
    )
    text_file: Annotated[Path | None, BeforeValidator(_path)] = Field(
        None, description="the path of a text file in UTF-8 (char-transformer only)"
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
        every key that is wrong, its value, what is allowed and the remedy.
        """
        if "train" not in mapping:
            raise ConfigError(
                "there is no train section; add a task, such as --config configs/digits/cnn.yaml"
            )
        try:
            settings = cls.model_validate(mapping["train"])
        except ValidationError as error:
            problems = error.errors(include_url=False)
        else:
            settings._check_combinations()
            return settings
        lines = []
        for problem in problems:
            path: KeyPath = ("train", *problem["loc"])
            lines.append(f"{origin(path)}: {format_path(path)}: {_explain(problem)}")
        raise ConfigError("\n".join(lines))

    def check_framework(self, framework: str) -> None:
        """Raise ConfigError where the task is not there in the framework."""
        if framework == "tensorflow" and self.task not in TENSORFLOW_TASKS:
            raise ConfigError(
                f"train.task: got {self.task!r}, which --framework tensorflow does not have; "
                f"expected one of {', '.join(TENSORFLOW_TASKS)}, or --framework torch"
            )

    def _check_combinations(self) -> None:
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


def _explain(problem: Mapping[str, Any]) -> str:
    if not problem["loc"]:
        return (
            f"got {reprlib.repr(problem['input'])}; expected a mapping such as {{task: digits-cnn}}"
        )
    key = str(problem["loc"][0])
    fields = TrainSettings.model_fields
    if key not in fields:
        near = difflib.get_close_matches(key, fields, n=1)
        guess = f"did you mean {near[0]!r}? " if near else ""
        return f"unknown key; {guess}Known keys: {', '.join(fields)}"
    expected = fields[key].description
    if problem["type"] == "missing":
        return f"missing; expected {expected}"
    return f"got {reprlib.repr(problem['input'])}; expected {expected}"
