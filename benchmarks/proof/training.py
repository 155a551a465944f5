"""One run of training: all ranks in this process, which exchange gradients as engines do."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from gradcomp import Config, Loopback, OuterLoopback
from gradcomp.exchange.waiting import CHECK_EVERY
from training.tasks.data import Dataset

__all__ = [
    "UNCOMPRESSED",
    "Result",
    "TrainingTask",
    "make_optimizer",
    "set_rate",
    "train",
    "train_local",
]

UNCOMPRESSED = "uncompressed"
"""What stands instead of a spec for runs without compression."""

_MOMENTUM = 0.9
"""Of SGD; the same as the default of ``dgc``, which applies it itself."""


class TrainingTask(NamedTuple):
    """What is learned.

    Attributes:
        data: the samples.
        model: makes the model, from PyTorch's random numbers.
        batch: samples of a rank in a step, at least 1.
        bits: whether losses are in bits, as those of text, instead of nats.
    """

    data: Dataset
    model: Callable[[], nn.Module]
    batch: int
    bits: bool


class Result(NamedTuple):
    """One run.

    Attributes:
        loss: mean over the test data, in nats or bits; None if a training loss was not finite.
        accuracy: the part of the test data whose class has the highest score, in [0, 1]; None like
            ``loss``.
        ratio: bytes of float32 gradients over those that rank 0 hands to collectives.
        waiting: `Stats.waiting` of the specs together, every 100 steps.
    """

    loss: float | None
    accuracy: float | None
    ratio: float
    waiting: list[float]


def train(
    task: TrainingTask,
    optimizer_name: str,
    *,
    lr: float,
    spec: str,
    ranks: int,
    steps: int,
    seed: int,
    loopback: Callable[[str, int], Loopback] = Loopback,
) -> Result:
    """Train from the seed's initial values, with the seed's batches, whatever the spec.

    Args:
        task: what to learn.
        optimizer_name: "sgd", with a momentum of 0.9, or "adamw".
        lr: the learning rate after warm-up over an eighth of the steps; then half a cosine to 0.
        spec: of all tensors, or `UNCOMPRESSED`.
        ranks: number of ranks, at least 1.
        steps: number of steps, at least 1.
        seed: of initial values and batches, in [0, 2^63).
        loopback: what averages, made from the spec and the number of ranks.

    Raises:
        SpecError: the spec is wrong.
        ValueError: the optimizer is unknown, or the spec applies a momentum that AdamW does not have.
    """
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    model = task.model()
    names, parameters = zip(*model.named_parameters(), strict=True)
    loop = None if spec == UNCOMPRESSED else loopback(spec, ranks)
    optimizer = make_optimizer(optimizer_name, parameters, lr, spec)
    waiting: list[float] = []
    for step in range(steps):
        set_rate(optimizer, lr, step, steps)
        of_ranks = []
        for _ in range(ranks):
            loss, grads = _gradients(model, task, rng)
            if not math.isfinite(loss):
                return Result(None, None, 1.0 if loop is None else loop.stats[0].ratio, waiting)
            of_ranks.append(grads)
        if loop is None:
            averages = [np.sum(grads, axis=0) / ranks for grads in zip(*of_ranks, strict=True)]
        else:
            sent = {name: list(grads) for name, *grads in zip(names, *of_ranks, strict=True)}
            averages = [copies[0] for copies in loop.step(sent).values()]
            if step and step % CHECK_EVERY == 0:
                waiting.append(sum(loop.stats[0].waiting.values()))
        for parameter, average in zip(parameters, averages, strict=True):
            parameter.grad = torch.from_numpy(np.array(average))
        optimizer.step()
    return _result(model, task, 1.0 if loop is None else loop.stats[0].ratio, waiting)


def train_local(
    task: TrainingTask,
    optimizer_name: str,
    *,
    lr: float,
    spec: str,
    every: int,
    ranks: int,
    steps: int,
    seed: int,
) -> Result:
    """Train as `train` does, with local steps: ranks average the changes of their parameters every ``every`` steps.

    The outer step has its default settings (`gradcomp.OuterLoopback`). Ranks keep optimizers, and buffers
    such as those of batch normalization, to themselves; the test is of rank 0's model.

    Args:
        spec: of the changes.
        every: number of local steps, at least 1 and a divisor of ``steps``.
        task, optimizer_name, lr, ranks, steps, seed: see `train`.
    """
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    model = task.model()
    models = [model, *(copy.deepcopy(model) for _ in range(ranks - 1))]
    values = {name: x.detach().numpy() for name, x in model.named_parameters()}
    outer = OuterLoopback(spec, values, ranks, every=every)
    optimizers = []
    for local, arrays in zip(models, outer.values, strict=True):
        for name, parameter in local.named_parameters():
            parameter.data = torch.from_numpy(arrays[name]).view(parameter.shape)
        optimizers.append(
            make_optimizer(optimizer_name, tuple(local.parameters()), lr, UNCOMPRESSED)
        )
    for step in range(steps):
        for local, optimizer in zip(models, optimizers, strict=True):
            set_rate(optimizer, lr, step, steps)
            loss, _ = _gradients(local, task, rng)
            if not math.isfinite(loss):
                return Result(None, None, outer.stats[0].ratio, [])
            optimizer.step()
        outer.step()
    return _result(model, task, outer.stats[0].ratio, [])


def set_rate(optimizer: torch.optim.Optimizer, lr: float, step: int, steps: int) -> None:
    """Set the learning rate of a step, counted from 0; see `train`."""
    warm = min(1.0, 8 * (step + 1) / steps)
    for group in optimizer.param_groups:
        group["lr"] = lr * warm * (1 + math.cos(math.pi * step / steps)) / 2


def _result(model: nn.Module, task: TrainingTask, ratio: float, waiting: list[float]) -> Result:
    loss, accuracy = _test(model, task.data)
    if task.bits:
        loss /= math.log(2)
    return Result(loss if math.isfinite(loss) else None, accuracy, ratio, waiting)


def make_optimizer(
    name: str, parameters: tuple[nn.Parameter, ...], lr: float, spec: str
) -> torch.optim.Optimizer:
    """The optimizer of `train`, without a momentum of its own if the spec applies one.

    Raises:
        ValueError: the optimizer is unknown, or the spec applies a momentum that AdamW does not have.
    """
    corrects = spec != UNCOMPRESSED and Config.from_spec(spec).momentum_correction is not None
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=lr, momentum=0.0 if corrects else _MOMENTUM)
    if name != "adamw":
        raise ValueError(f"optimizer: got {name!r}; expected sgd or adamw")
    if corrects:
        raise ValueError(f"{spec!r} applies a momentum, which AdamW has no place for; take sgd")
    return torch.optim.AdamW(parameters, lr=lr)


def _gradients(
    model: nn.Module, task: TrainingTask, rng: np.random.Generator
) -> tuple[float, list[npt.NDArray[np.float32]]]:
    """A rank's loss and gradients of a random batch."""
    data = task.data
    batch = data.train_batch(rng.integers(data.train_samples, size=task.batch), rng)
    model.zero_grad()
    loss = nn.functional.cross_entropy(model(batch.inputs), batch.classes)
    loss.backward()  # type: ignore[no-untyped-call]
    grads = []
    for parameter in model.parameters():
        assert parameter.grad is not None
        grads.append(parameter.grad.numpy().copy())
    return loss.item(), grads


def _test(model: nn.Module, data: Dataset) -> tuple[float, float]:
    """Loss in nats and accuracy, means over all test data."""
    model.eval()
    total, right, count = 0.0, 0, 0
    with torch.no_grad():
        for batch in data.test_batches(0, 1):
            scores = model(batch.inputs)
            total += float(nn.functional.cross_entropy(scores, batch.classes, reduction="sum"))
            right += int((scores.argmax(1) == batch.classes).sum())
            count += batch.classes.numel()
    return total / count, right / count
