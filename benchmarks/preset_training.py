r"""Training with specs next to uncompressed training: final test losses, paired by seed, and bytes.

  python benchmarks/preset_training.py --task text --optimizer adamw --seeds 2 \
      --specs 'residual|adaptive(rate=1)' 'residual|topk(ratio=0.01)'

All ranks are in one process and exchange gradients as engines do. Runs of one seed have the same
initial values and batches. Prints the lines of a Markdown table; the last column is what waits in
residuals every 100 steps with the first seed (`Stats.waiting`).
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from gradcomp import Loopback
from gradcomp.exchange.waiting import CHECK_EVERY

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from training.tasks.data import Dataset, load_digits_images
from training.tasks.models import CharTransformer, digits_cnn
from training.tasks.text import PIECE, TextPieces, load_python_topics

RATES = {"adamw": 1e-3, "sgd": 0.05}
"""Learning rates after warm-up over an eighth of the steps; then half a cosine to 0."""

UNCOMPRESSED = "uncompressed"


class Result(NamedTuple):
    """One run.

    Attributes:
        loss: of the test data; for text in bits per character.
        ratio: bytes of float32 gradients over those sent.
        waiting: `Stats.waiting` of the specs together, every 100 steps.
    """

    loss: float
    ratio: float
    waiting: list[float]


def train(options: argparse.Namespace, spec: str, seed: int) -> Result:
    """Train from the seed's initial values."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    text = options.task == "text"
    data: Dataset = TextPieces(load_python_topics()) if text else load_digits_images()
    model: nn.Module = CharTransformer(data.classes, PIECE, options.width) if text else digits_cnn()
    names, parameters = zip(*model.named_parameters(), strict=True)
    lr = RATES[options.optimizer]
    if options.optimizer == "adamw":
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(parameters, lr=lr)
    else:
        optimizer = torch.optim.SGD(parameters, lr=lr, momentum=0.9)
    loop = None if spec == UNCOMPRESSED else Loopback(spec, options.ranks)
    waiting: list[float] = []
    for step in range(options.steps):
        warm = min(1.0, 8 * (step + 1) / options.steps)
        for group in optimizer.param_groups:
            group["lr"] = lr * warm * (1 + math.cos(math.pi * step / options.steps)) / 2
        of_ranks = [gradients(model, data, rng, options.batch) for _ in range(options.ranks)]
        if loop is None:
            averages = [
                np.sum(grads, axis=0) / options.ranks for grads in zip(*of_ranks, strict=True)
            ]
        else:
            sent = {name: list(grads) for name, *grads in zip(names, *of_ranks, strict=True)}
            averages = [one[0] for one in loop.step(sent).values()]
            if step and step % CHECK_EVERY == 0:
                waiting.append(sum(loop.stats[0].waiting.values()))
        for parameter, average in zip(parameters, averages, strict=True):
            parameter.grad = torch.from_numpy(np.array(average))
        optimizer.step()
    ratio = 1.0 if loop is None else loop.stats[0].ratio
    return Result(test_loss(model, data) / (math.log(2) if text else 1), ratio, waiting)


def gradients(
    model: nn.Module, data: Dataset, rng: np.random.Generator, size: int
) -> list[npt.NDArray[np.float32]]:
    """A rank's gradients of a random batch."""
    batch = data.train_batch(rng.integers(data.train_samples, size=size), rng)
    model.zero_grad()
    nn.functional.cross_entropy(model(batch.inputs), batch.classes).backward()  # type: ignore[no-untyped-call]
    grads = []
    for parameter in model.parameters():
        assert parameter.grad is not None
        grads.append(parameter.grad.numpy().copy())
    return grads


def test_loss(model: nn.Module, data: Dataset) -> float:
    """The mean over all test data."""
    model.eval()
    total, count = 0.0, 0
    with torch.no_grad():
        for batch in data.test_batches(0, 1):
            loss = nn.functional.cross_entropy(model(batch.inputs), batch.classes, reduction="sum")
            total, count = total + float(loss), count + batch.classes.numel()
    return total / count


def main() -> None:
    """Train with all specs and print a line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", choices=["text", "digits"], default="text")
    parser.add_argument("--optimizer", choices=["adamw", "sgd"], default="adamw")
    parser.add_argument("--specs", nargs="+", default=["residual|adaptive(rate=1)"], metavar="SPEC")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=16, help="samples of a rank")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--width", type=int, default=128, help="of the transformer of text")
    options = parser.parse_args()
    torch.set_num_threads(1)
    baseline = [train(options, UNCOMPRESSED, seed).loss for seed in range(options.seeds)]
    print(
        f"{options.task}, {options.optimizer}, {options.steps} steps of {options.ranks} x "
        f"{options.batch}, {options.seeds} seeds\n\n"
        "| spec | test loss | minus uncompressed, by seed | mean | times fewer bytes | waiting |\n"
        "|---|---:|---:|---:|---:|---|"
    )
    print(f"| uncompressed | {_spread(baseline)} | | | 1 | |", flush=True)
    for spec in options.specs:
        results = [train(options, spec, seed) for seed in range(options.seeds)]
        differences = [one.loss - other for one, other in zip(results, baseline, strict=True)]
        by_seed = " ".join(f"{one:+.4f}" for one in differences)
        waits = ", ".join(f"{one:.3g}" for one in results[0].waiting)
        escaped = spec.replace("|", "\\|")
        print(
            f"| `{escaped}` | {_spread([one.loss for one in results])} | {by_seed} | "
            f"{np.mean(differences):+.4f} | {results[0].ratio:.1f} | {waits} |",
            flush=True,
        )


def _spread(losses: list[float]) -> str:
    return f"{np.mean(losses):.4f} ± {np.std(losses):.4f}"


if __name__ == "__main__":
    main()
