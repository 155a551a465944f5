"""Records real gradients during training, for `gradcomp bench --all --data`.

Trains a small model in one process and stores the gradients of a few steps, early and late, as
float16 in one .npz file. Nothing is downloaded: the CNN learns scikit-learn's digits, the LSTM and
the transformer the texts of Python's own help(), which come with every Python.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import typer
from torch import nn

# Run as a file, Python finds modules next to it only: the packages of scripts/ are one level up.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from training.tasks.data import Batch, load_digits_images
from training.tasks.models import CharLSTM, CharTransformer, digits_cnn
from training.tasks.text import load_python_topics


class Model(StrEnum):
    """Models to train."""

    DIGITS_CNN = "digits-cnn"
    CHAR_LSTM = "char-lstm"
    CHAR_TRANSFORMER = "char-transformer"
    CHAR_TRANSFORMER_1M = "char-transformer-1m"


class Training(NamedTuple):
    """A model with random weights, its optimizer and its batches.

    Attributes:
        steps: steps to record by default, counted from 1.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batch: Callable[[np.random.Generator], Batch]
    steps: tuple[int, ...]


def _digits_cnn() -> Training:
    model, data = digits_cnn(), load_digits_images()
    samples = len(data.train_classes)
    return Training(
        model,
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        lambda rng: data.train_batch(rng.choice(samples, 64, replace=False), rng),
        steps=(1, 10, 50, 200),
    )


def _char_lstm() -> Training:
    text = load_python_topics()
    model = CharLSTM(len(text.vocabulary))
    return Training(
        model,
        torch.optim.AdamW(model.parameters(), lr=2e-3),
        lambda rng: text.batch(rng, 32, 64),
        steps=(1, 10, 100, 400),
    )


def _char_transformer(width: int = 128) -> Training:
    length = 64
    text = load_python_topics()
    model = CharTransformer(len(text.vocabulary), length, width)
    return Training(
        model,
        torch.optim.AdamW(model.parameters(), lr=1e-3),
        lambda rng: text.batch(rng, 32, length),
        steps=(1, 10, 100, 400),
    )


TRAININGS: dict[Model, Callable[[], Training]] = {
    Model.DIGITS_CNN: _digits_cnn,
    Model.CHAR_LSTM: _char_lstm,
    Model.CHAR_TRANSFORMER: _char_transformer,
    Model.CHAR_TRANSFORMER_1M: lambda: _char_transformer(width=200),
}


def record(model: Model, output: Path, seed: int = 0, steps: tuple[int, ...] | None = None) -> None:
    """Write the gradients of ``steps`` (counted from 1; the model's own by default) to ``output``.

    The same seed gives the same file on the same machine with the same versions and threads.
    """
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    training = TRAININGS[model]()
    wanted = steps or training.steps
    recorded: dict[str, npt.NDArray[np.float16]] = {}
    for step in range(1, max(wanted) + 1):
        batch = training.batch(rng)
        training.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(training.model(batch.inputs), batch.classes)
        loss.backward()  # type: ignore[no-untyped-call]
        if step in wanted:
            print(f"step {step}: loss {loss.item():.3f}")
            for name, parameter in training.model.named_parameters():
                assert parameter.grad is not None
                recorded[f"step{step}/{name}"] = parameter.grad.numpy().astype(np.float16)
        training.optimizer.step()
    output.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(output, allow_pickle=False, **recorded)
    print(f"{output}: {output.stat().st_size:,} bytes, {len(recorded)} gradients")


def _step_range(text: str) -> tuple[int, ...]:
    first, colon, last = text.partition(":")
    if not (colon and first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last)):
        raise typer.BadParameter(
            f"'{text}' is no range of steps; expected FIRST:LAST with 1 <= FIRST <= LAST, such as "
            "141:150"
        )
    return tuple(range(int(first), int(last) + 1))


def main(
    output: Annotated[
        Path | None,
        typer.Argument(help="The .npz file to write.", show_default="runs/gradients/MODEL.npz"),
    ] = None,
    model: Annotated[
        Model,
        typer.Option(
            help="digits-cnn: 151,306 parameters, scikit-learn's digits, SGD; a few seconds. "
            "char-transformer: two causal layers of width 128, about 430,000 parameters, the "
            "texts of Python's own help() (pydoc_data.topics), AdamW; about a minute. "
            "char-transformer-1m: the same of width 200, about 1,020,000 parameters. char-lstm: "
            "one layer of width 256, about 360,000 parameters, the same text and optimizer."
        ),
    ] = Model.DIGITS_CNN,
    seed: Annotated[int, typer.Option(help="Seed of weights and sample order.")] = 0,
    steps: Annotated[
        str | None,
        typer.Option(
            metavar="FIRST:LAST",
            help="Steps to record, all from FIRST to LAST, counted from 1.",
            show_default="a few, early and late",
        ),
    ] = None,
) -> None:
    """Train a small model and record gradients of it, for gradcomp bench --all --data."""
    torch.set_num_threads(1)  # so that the file does not depend on the cores; more gain little here
    path = output or Path("runs/gradients") / f"{model}.npz"
    if steps is None:
        record(model, path, seed)
    else:
        record(model, path, seed, steps=_step_range(steps))


if __name__ == "__main__":
    typer.run(main)
