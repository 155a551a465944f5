"""Train the digits CNN with each gossip algorithm and all-reduce SGD, on ranks of this machine.

.venv/bin/python scripts/results/gossip_results.py --output docs/results

Each run is a file of configs/gossip with configs/digits/cnn.yaml, for EPOCHS epochs.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from gradcomp.config.compose import compose
from gradcomp.tools.plotting import new_figure

# Run as a file, Python finds modules next to it only: the packages of scripts/ are one level up.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from training.schedule import learning_rate
from training.settings.gossip import GossipSettings
from training.settings.train import TrainSettings
from training.tasks.data import Images, load_digits_images, train_batches
from training.tasks.models import digits_cnn

CONFIGS = Path(__file__).resolve().parents[2] / "configs"

# Name in figures -> file of configs/gossip; None is all-reduce SGD.
RUNS: Mapping[str, str | None] = {
    "all-reduce SGD": None,
    "D-PSGD": "dpsgd",
    "SGP": "sgp",
    "OSGP": "osgp",
    "AD-PSGD": "adpsgd",
    "PowerGossip rank 2": "powergossip",
    "Choco sign": "choco-sign",
    "Choco top-k 10%": "choco-topk",
    "DeepSqueeze sign": "deepsqueeze",
    "Moniqua 4 bits": "moniqua",
}
BATCH = 16
EPOCHS = 24
EVERY = 4
"""Epochs between two points of a figure."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run everything, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="folder for CSV and PNG")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--run", action="append", choices=list(RUNS), help="train only this; repeatable"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override in all configurations",
    )
    asked = parser.parse_args(arguments)
    asked.output.mkdir(parents=True, exist_ok=True)
    # The first step of an optimizer imports for seconds: do it once, before the fork.
    torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1).step()
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(asked.ranks):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    run_rank(rank, asked, Path(folder) / "store")
                    status = 0
                finally:
                    os._exit(status)
            children.append(child)
        failed = [child for child in children if os.waitpid(child, 0)[1]]
    return 1 if failed else 0


def run_rank(rank: int, asked: argparse.Namespace, store: Path) -> None:
    """One rank's part of all runs; rank 0 writes the results."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=asked.ranks
    )
    images = load_digits_images()
    rows: list[dict[str, Any]] = []
    for name in asked.run or RUNS:
        settings, gossip = settings_of(RUNS[name], asked.set)
        last = []
        for seed in range(asked.seeds):
            of_seed = train(settings, gossip, images, seed)
            rows += [{"run": name, "seed": seed, **row} for row in of_seed]
            last.append(of_seed[-1])
        if rank == 0:
            print(table_row(name, last), flush=True)
    if rank == 0:
        with (asked.output / "gossip-digits-cnn.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        plot(rows, asked.output / "gossip-digits-cnn.png")
    dist.barrier()


def settings_of(
    gossip: str | None, overrides: Sequence[str]
) -> tuple[TrainSettings, GossipSettings | None]:
    """The settings with a file of configs/gossip, or with all-reduce SGD."""
    files = [CONFIGS / "digits" / "cnn.yaml"]
    if gossip is not None:
        files.append(CONFIGS / "gossip" / f"{gossip}.yaml")
    found = compose(files, [f"train.epochs={EPOCHS}", *overrides])
    settings = TrainSettings.from_mapping(found.mapping, found.origin)
    if gossip is None:
        return settings, None
    return settings, GossipSettings.of(found.mapping["gossip"], found.origin)


def table_row(name: str, last: Sequence[Mapping[str, float]]) -> str:
    """The Markdown row of one run, over its seeds."""
    found = [row["accuracy"] for row in last]
    spread = statistics.stdev(found) if len(found) > 1 else 0.0
    bits = statistics.fmean(row["bits"] / row["step"] for row in last)
    distance = statistics.fmean(row["distance"] for row in last)
    accuracy = f"{statistics.fmean(found):.4f} ± {spread:.4f}"
    return f"| {name} | {accuracy} | {bits / 1e3:.1f} | {distance:.2g} |"


def train(
    settings: TrainSettings, gossip: GossipSettings | None, images: Images, seed: int
) -> list[dict[str, float]]:
    """Train one model, and measure it every EVERY epochs.

    Returns rows of: bits sent (mean over ranks), accuracy of the averaged model, distance of the
    ranks to it.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    steps_per_epoch = images.train_samples // (BATCH * ranks)
    torch.manual_seed(seed)
    model = digits_cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.lr, momentum=settings.momentum)
    wrapped = None
    if gossip is None:
        optimizer.register_step_pre_hook(lambda *_: average_gradients(model))
    else:
        wrapped = gossip.wrap(model, seed=seed, steps_per_epoch=steps_per_epoch)
        wrapped.attach(optimizer)
    rows = []
    step = 0
    for epoch in range(settings.epochs):
        for batch in train_batches(
            images, seed=seed, epoch=epoch, start=0, stop=images.train_samples,
            batch_size=BATCH, rank=rank, workers=ranks,
        ):  # fmt: skip
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(
                    settings, workers=ranks, steps_per_epoch=steps_per_epoch, step=step
                )
            optimizer.zero_grad()
            torch.autograd.backward(functional.cross_entropy(model(batch.inputs), batch.classes))
            optimizer.step()
            step += 1
        if (epoch + 1) % EVERY and epoch + 1 < settings.epochs:
            continue
        if wrapped is None:
            bits = 32.0 * step * sum(parameter.numel() for parameter in model.parameters())
            rows.append(point(step, bits, accuracy(model, images), 0.0))
        else:
            with wrapped.averaged() as average:
                score = accuracy(average, images)
            distance = wrapped.consensus_distance()
            sent = torch.tensor([float(wrapped.traffic.bits)])
            dist.all_reduce(sent)
            rows.append(point(step, float(sent) / ranks, score, distance))
    return rows


def point(step: int, bits: float, found: float, distance: float) -> dict[str, float]:
    """One row of the results."""
    return {"step": step, "bits": bits, "accuracy": found, "distance": distance}


def average_gradients(model: nn.Module) -> None:
    """Average the gradients over all ranks."""
    for parameter in model.parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


@torch.no_grad()
def accuracy(model: nn.Module, images: Images) -> float:
    """Accuracy on all test samples, computed on this rank."""
    batches = images.test_batches(0, 1)
    right = sum(int((model(batch.inputs).argmax(1) == batch.classes).sum()) for batch in batches)
    return right / len(images.test_classes)


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Accuracy and consensus distance against bits, as means over the seeds."""
    figure = new_figure(11, 4.5)
    left, right = figure.subplots(1, 2)
    for index, name in enumerate(dict.fromkeys(row["run"] for row in rows)):
        of_run = [row for row in rows if row["run"] == name]
        steps = sorted({row["step"] for row in of_run})

        def mean(key: str, selected: Sequence[dict[str, Any]], steps: Sequence[int]) -> list[float]:
            return [
                statistics.fmean(row[key] for row in selected if row["step"] == step)
                for step in steps
            ]

        bits = mean("bits", of_run, steps)
        style = {"color": f"C{index}", "marker": "o", "markersize": 3}
        left.plot(bits, mean("accuracy", of_run, steps), label=name, **style)
        if RUNS[name] is not None:
            right.plot(bits, mean("distance", of_run, steps), **style)
    left.set(xlabel="bits sent by a rank", ylabel="test accuracy of the averaged model")
    right.set(xlabel="bits sent by a rank", ylabel="consensus distance", yscale="log")
    for axes in (left, right):
        axes.set_xscale("log")
        axes.grid(True, color="#dddddd", linewidth=0.6)
    left.legend(fontsize=8)
    figure.savefig(path, dpi=110, format="png")


if __name__ == "__main__":
    sys.exit(main())
