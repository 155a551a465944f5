"""A worker of the elastic jobs of `faults` and `recovery`.

It makes trainings, one after the other. The last argument is the folder of rows; files with the
results of trainings are next to it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from elastic.digits import HELD_OUT, MOMENTUM, Floats, Training, digits, samples
from elastic.job import log_row

EVERY = 5
"""Steps from one commit to the next."""


def results(folder: Path, number: int, seed: int) -> Path:
    """The file with the results of the spec of this number."""
    return folder / f"result-{number}-{seed}.json"


class Marks:
    """The moments of a reset, until they are logged."""

    def __init__(self) -> None:
        self.times: dict[str, float] = {}

    def noted(self, stock: type[Any]) -> type[Any]:
        """A state of Horovod that notes when it is used in a reset."""
        note = self._note

        class State(stock):
            def restore(self) -> None:
                note("noticed")
                super().restore()

            def on_reset(self) -> None:
                note("ranks")
                super().on_reset()

            def sync(self) -> None:
                super().sync()
                note("synced")

        return State

    def _note(self, name: str) -> None:
        self.times[name] = time.time()


class Sums:
    """Sums of the elements of all tensors, with three choices of signs."""

    def __init__(self, training: Training) -> None:
        self._sizes = [parameter.size for parameter in training.parameters()]
        self._signs = np.random.default_rng(1).choice([-1.0, 1.0], (3, sum(self._sizes)))

    def of(self, tensors: Iterable[Floats | None]) -> npt.NDArray[np.float64]:
        """The three sums; None is a tensor of zeros."""
        total, begin = np.zeros(3), 0
        for tensor, size in zip(tensors, self._sizes, strict=True):
            if tensor is not None:
                flat = tensor.reshape(-1).astype(np.float64)
                total += self._signs[:, begin : begin + size] @ flat
            begin += size
        return total


def parameters_of(training: Training) -> bytes:
    """All parameters."""
    return b"".join(parameter.tobytes() for parameter in training.parameters())


def common_momenta(training: Training) -> list[Floats | None]:
    """Momenta of biases, which travel dense: equal on all ranks, and newcomers get them in their first step."""
    pairs = zip(training.unsent("momentum"), training.parameters(), strict=True)
    return [momentum if parameter.ndim == 1 else None for momentum, parameter in pairs]


def train(spec: str, seed: int, options: argparse.Namespace) -> dict[str, float]:
    """Make a training; returns its results."""
    marks = Marks()
    make = importlib.import_module(f"elastic.on_{options.framework}").Training
    training: Training = make(spec, seed, marks.noted)
    hvd, sums = training.hvd, Sums(training)
    inputs, classes = digits()

    @hvd.elastic.run
    def learn(state: Any) -> None:
        life = training.of_first(time.time())
        while state.step < options.steps:
            time.sleep(options.pause)
            row: dict[str, Any] = {"life": life, "rank": hvd.rank(), "size": hvd.size()}
            if options.rows == "laws":
                residual, momentum = (sums.of(training.unsent(p)) for p in ("residual", "momentum"))
                common = sums.of(common_momenta(training))
                row["start_digest"] = hash(parameters_of(training))
                row["before"], row["momentum"] = residual.tolist(), momentum.tolist()
                row["common"] = (MOMENTUM * common).tolist()
            batch = samples(seed, state.step, hvd.rank(), hvd.size(), len(classes))
            gradients, averages = training.step(inputs[batch], classes[batch])
            row["time"] = time.time()
            state.step += 1
            row["step"] = state.step
            if options.rows == "laws":
                row["given"] = (sums.of(gradients) + MOMENTUM * (momentum - common)).tolist()
                row["applied"] = sums.of(averages).tolist()
                row["after"] = sums.of(training.unsent("residual")).tolist()
                row["momentum_after"] = sums.of(training.unsent("momentum")).tolist()
            if options.rows != "nothing":
                log_row(options.folder, parameters_of(training), marks=marks.times, **row)
                marks.times.clear()
            if state.step % EVERY == 0:
                state.commit()

    learn(training.state)
    logits, held_out = training.logits(inputs[:HELD_OUT]), classes[:HELD_OUT]
    shifted = logits - logits.max(1, keepdims=True)
    own_logits = np.take_along_axis(shifted, held_out[:, None], 1)[:, 0]
    loss = float(np.mean(np.log(np.exp(shifted).sum(1)) - own_logits))
    return {
        "accuracy": float((logits.argmax(1) == held_out).mean()),
        "loss": loss,
    }


def main() -> None:
    """Make all trainings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--framework", choices=["torch", "tensorflow"])
    parser.add_argument("--spec", action="append", default=[])
    parser.add_argument("--seed", type=int, action="append", default=[])
    parser.add_argument("--steps", type=int)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--rows", choices=["laws", "steps", "nothing"])
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    os.environ.setdefault("HOROVOD_CYCLE_TIME", "1")
    hvd = importlib.import_module(f"horovod.{options.framework}")
    hvd.init()
    for number, spec in enumerate(options.spec):
        for seed in options.seed:
            found = train(spec, seed, options)
            if hvd.rank() == 0:
                results(options.folder.parent, number, seed).write_text(json.dumps(found))
    hvd.shutdown()


if __name__ == "__main__":
    main()
