"""The runs of the comparison: tasks, specs, and the plan in the order in which runs are made."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import product
from typing import NamedTuple

from torch import nn

from gradcomp.config.preset import AUTO_SPEC
from gradcomp.errors import ConfigError
from proof.training import UNCOMPRESSED, TrainingTask
from training.tasks.data import Dataset, load_fashion_mnist
from training.tasks.models import CharLSTM, CharTransformer, ResNet20, fashion_cnn
from training.tasks.text import PIECE, load_kjv

__all__ = ["AUTO", "LOCAL_STEPS", "SGD_ONLY", "SPECS", "TASKS", "Cell", "Setup", "chosen", "plan"]

AUTO = "auto"

SPECS = {
    UNCOMPRESSED: UNCOMPRESSED,
    "fp16": "fp16",
    AUTO: AUTO_SPEC,
    "adaptive 1": "residual|adaptive(rate=1)",
    "adaptive .5": "residual|adaptive(rate=0.5)",
    "adaptive E .1": "residual|adaptive(error=0.1)",
    "top-k 1%": "residual|topk(ratio=0.01)",
    "top-k .1%": "residual|topk(ratio=0.001)",
    "DGC .1%": "dgc(ratio=0.001,warmup_epochs=0)",
    "PowerSGD 4": "powersgd(rank=4,start_step=10)",
    "sign": "residual|sign",
    "polar .5": "residual|polar(rate=0.5)",
    "local 10": "int8",
}
"""Specs by the names that tables and patterns have. PowerSGD is dense in the first 10 steps."""

LOCAL_STEPS = {"local 10": 10}
"""Steps between two averages of the parameters, by spec; the others average gradients in every step."""

SGD_ONLY = ("DGC .1%",)
"""They apply the momentum of SGD themselves."""


class Setup(NamedTuple):
    """A task of the comparison.

    Attributes:
        title: data, and model with its number of parameters.
        load: reads the data; raises ConfigError.
        model: makes the model for a number of classes.
        batch: samples of a rank in a step, at least 1.
        rates: the learning rate by optimizer.
        bits: whether losses are in bits (per character), not in nats.
    """

    title: str
    load: Callable[[], Dataset]
    model: Callable[[int], nn.Module]
    batch: int
    rates: Mapping[str, float]
    bits: bool

    def task(self) -> TrainingTask:
        """What is trained, with the data read."""
        data = self.load()
        return TrainingTask(data, lambda: self.model(data.classes), self.batch, self.bits)


class Cell(NamedTuple):
    """One run.

    Attributes:
        task: a key of `TASKS`.
        optimizer: "sgd" or "adamw".
        ranks: number of ranks, at least 1.
        steps: number of steps, at least 1.
        spec: a key of `SPECS`.
        seed: of initial values and batches, at least 0.
    """

    task: str
    optimizer: str
    ranks: int
    steps: int
    spec: str
    seed: int

    @property
    def name(self) -> str:
        """What patterns are compared with, such as "kjv-1m/adamw/2 ranks/400 steps/auto/seed 0"."""
        return (
            f"{self.task}/{self.optimizer}/{self.ranks} ranks/{self.steps} steps/{self.spec}/"
            f"seed {self.seed}"
        )


_fashion = functools.cache(load_fashion_mnist)
_kjv = functools.cache(load_kjv)


def _transformer(parameters: str, width: int, batch: int, rates: Mapping[str, float]) -> Setup:
    return Setup(
        title=f"King James Bible, transformer of {parameters} parameters",
        load=_kjv,
        model=lambda classes: CharTransformer(classes, PIECE, width),
        batch=batch,
        rates=rates,
        bits=True,
    )


TASKS = {
    "fashion-cnn": Setup(
        title="Fashion-MNIST, CNN of 421,642 parameters",
        load=_fashion,
        model=fashion_cnn,
        batch=16,
        rates={"sgd": 0.05, "adamw": 2e-3},
        bits=False,
    ),
    "fashion-resnet20": Setup(
        title="Fashion-MNIST, ResNet-20 of 269,434 parameters",
        load=_fashion,
        model=lambda classes: ResNet20(classes, 1),
        batch=16,
        rates={"sgd": 0.05, "adamw": 1e-3},
        bits=False,
    ),
    "kjv-1m": _transformer("1,003,663", 200, 8, {"sgd": 0.5, "adamw": 3e-3}),
    "kjv-small": _transformer("421,183", 128, 8, {"sgd": 0.5, "adamw": 3e-3}),
    "kjv-lstm": Setup(
        title="King James Bible, LSTM of 349,951 parameters",
        load=_kjv,
        model=CharLSTM,
        batch=8,
        rates={"sgd": 2.0, "adamw": 8e-3},
        bits=True,
    ),
    "kjv-6m": _transformer("6,403,135", 512, 4, {"sgd": 0.2, "adamw": 1e-3}),
}


class _Block(NamedTuple):
    task: str
    ranks: int
    steps: int
    specs: Sequence[str]
    seeds: Sequence[int]
    optimizers: Sequence[str] = ("sgd", "adamw")


_FIRST = (UNCOMPRESSED, AUTO, "top-k 1%", "PowerSGD 4", "adaptive .5")
_REST = (
    "sign",
    "DGC .1%",
    "polar .5",
    "fp16",
    "adaptive 1",
    "adaptive E .1",
    "top-k .1%",
    "local 10",
)
_PAIR = (UNCOMPRESSED, AUTO)

_BLOCKS = (
    _Block("fashion-cnn", 2, 400, _FIRST, range(3)),
    _Block("kjv-1m", 2, 400, _FIRST[:3], range(3)),
    _Block("fashion-cnn", 2, 400, _REST, range(3)),
    _Block("fashion-cnn", 4, 400, _PAIR, range(3)),
    _Block("fashion-resnet20", 2, 100, _PAIR, range(3), ("sgd",)),
    _Block("kjv-6m", 2, 100, _PAIR, range(2), ("adamw",)),
    _Block("fashion-cnn", 8, 400, _PAIR, range(3), ("adamw",)),
    _Block("kjv-lstm", 2, 400, _PAIR, range(3)),
    _Block("kjv-small", 2, 400, _PAIR, range(5)),
    _Block("kjv-1m", 2, 400, _FIRST[3:], range(3)),
    _Block("kjv-1m", 2, 400, _REST, range(3)),
    _Block("fashion-cnn", 8, 400, _PAIR, range(3), ("sgd",)),
    _Block("kjv-1m", 4, 400, _PAIR, range(3)),
    _Block("kjv-1m", 8, 400, _PAIR, range(3)),
    _Block("kjv-lstm", 2, 400, _FIRST[2:], range(3)),
    _Block("kjv-6m", 2, 400, _FIRST, range(3)),
    _Block("fashion-resnet20", 2, 1000, _FIRST, range(3)),
    # Five seeds, then middle and long runs.
    _Block("fashion-cnn", 2, 400, _PAIR, range(3, 5)),
    _Block("kjv-1m", 2, 400, _PAIR, range(3, 5)),
    _Block("fashion-cnn", 2, 2000, _FIRST, range(3)),
    _Block("kjv-1m", 2, 2000, _FIRST, range(3)),
    _Block("fashion-cnn", 2, 10000, _FIRST, range(3)),
    _Block("kjv-1m", 2, 10000, _FIRST, range(3)),
)
"""In the order in which runs are made."""


def plan() -> Iterator[Cell]:
    """All runs, the most important ones first."""
    for block in _BLOCKS:
        for spec, optimizer, seed in product(block.specs, block.optimizers, block.seeds):
            if optimizer == "sgd" or spec not in SGD_ONLY:
                yield Cell(block.task, optimizer, block.ranks, block.steps, spec, seed)


def chosen(patterns: Sequence[str]) -> list[Cell]:
    """The runs of the plan whose names match any of ``patterns``; without patterns all.

    Raises:
        ConfigError: a pattern matches no name.
    """
    cells = list(plan())
    for pattern in patterns:
        if not any(fnmatchcase(cell.name, pattern) for cell in cells):
            raise ConfigError(
                f"--cells: {pattern!r} matches no run; expected a pattern for names such as "
                f"{cells[0].name!r}, which --list prints"
            )
    return [
        cell
        for cell in cells
        if not patterns or any(fnmatchcase(cell.name, pattern) for pattern in patterns)
    ]
