"""Train the digits CNN by gossip, on several ranks of this machine, beside all-reduce SGD.

.venv/bin/python scripts/gossip_results.py --output docs/results
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from gradcomp.figures import new_figure
from torch_compressors import GossipDataParallel
from training.data import Images, load_digits_images
from training.models import digits_cnn

# Options of GossipDataParallel; None is all-reduce SGD.
RUNS: dict[str, dict[str, Any] | None] = {
    "all-reduce SGD": None,
    "D-PSGD, ring": {"algorithm": "dpsgd", "topology": "ring"},
    "SGP, npdde": {"algorithm": "sgp"},
    "OSGP, npdde": {"algorithm": "osgp"},
    "PowerGossip rank 2": {"algorithm": "powergossip", "compression_rank": 2},
    "Choco sign": {"algorithm": "choco", "codec": "sign", "gamma": 0.3},
    "Choco top-k 10%": {"algorithm": "choco", "codec": "topk(ratio=0.1)", "gamma": 0.2},
    "DeepSqueeze sign": {"algorithm": "deepsqueeze", "codec": "sign", "gamma": 0.02},
    "Moniqua 4 bits": {"algorithm": "moniqua", "bits": 4, "theta": 0.25},
}
BATCH = 16
POINTS = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Run everything, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="folder for CSV and PNG")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    asked.output.mkdir(parents=True, exist_ok=True)
    # What optimizers import at their first step takes seconds, once for all ranks.
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
    rows = []
    for name, options in RUNS.items():
        found = [{"run": name, **row} for row in train(options, images, asked.steps, asked.seed)]
        rows += found
        if rank == 0:
            last = found[-1]
            cells = (name, f"{last['accuracy']:.4f}", f"{last['bits'] / asked.steps / 1e3:.1f}")
            print(f"| {' | '.join(cells)} | {last['distance']:.2g} |", flush=True)
    if rank == 0:
        with (asked.output / "gossip-digits-cnn.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        plot(rows, asked.output / "gossip-digits-cnn.png")
    dist.barrier()


def train(
    options: dict[str, Any] | None, images: Images, steps: int, seed: int
) -> list[dict[str, float]]:
    """Train one model; at some steps: bits that this rank has sent, accuracy of the averaged model,
    and the ranks' distance to it."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(seed)
    model = digits_cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    wrapped = None if options is None else GossipDataParallel(model, seed=seed, **options)
    if wrapped is None:
        optimizer.register_step_pre_hook(lambda *_: average_gradients(model))
    else:
        wrapped.attach(optimizer)
    rng = np.random.default_rng([seed, rank])
    mine = np.arange(images.train_samples)[rank::ranks]
    rows = []
    for step in range(1, steps + 1):
        batch = images.train_batch(rng.choice(mine, BATCH, replace=False), rng)
        optimizer.zero_grad()
        torch.autograd.backward(functional.cross_entropy(model(batch.inputs), batch.classes))
        optimizer.step()
        if step % max(1, steps // POINTS) and step < steps:
            continue
        if wrapped is None:
            bits = 32.0 * step * sum(one.numel() for one in model.parameters())
            rows.append(point(step, bits, accuracy(model, images), 0.0))
        else:
            distance = wrapped.consensus_distance()
            with wrapped.averaged() as average:
                found = accuracy(average, images)
            rows.append(point(step, wrapped.traffic.bits, found, distance))
    return rows


def point(step: int, bits: float, found: float, distance: float) -> dict[str, float]:
    """One row of the results."""
    return {"step": step, "bits": bits, "accuracy": found, "distance": distance}


def average_gradients(model: nn.Module) -> None:
    """What data-parallel training does."""
    for one in model.parameters():
        assert one.grad is not None
        dist.all_reduce(one.grad)
        one.grad /= dist.get_world_size()


@torch.no_grad()
def accuracy(model: nn.Module, images: Images) -> float:
    """Of the test samples, all on this rank."""
    batches = images.test_batches(0, 1)
    right = sum(int((model(one.inputs).argmax(1) == one.classes).sum()) for one in batches)
    return right / len(images.test_classes)


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Accuracy and consensus distance against bits."""
    figure = new_figure(11, 4.5)
    left, right = figure.subplots(1, 2)
    for index, name in enumerate(RUNS):
        of_run = [row for row in rows if row["run"] == name]
        bits = [row["bits"] for row in of_run]
        style = {"color": f"C{index}", "marker": "o", "markersize": 3}
        left.plot(bits, [row["accuracy"] for row in of_run], label=name, **style)
        if RUNS[name] is not None:
            right.plot(bits, [row["distance"] for row in of_run], **style)
    left.set(xlabel="bits sent by rank 0", ylabel="test accuracy of the averaged model")
    right.set(xlabel="bits sent by rank 0", ylabel="consensus distance", yscale="log")
    for axes in (left, right):
        axes.set_xscale("log")
        axes.grid(True, color="#dddddd", linewidth=0.6)
    left.legend(fontsize=8)
    figure.savefig(path, dpi=110, format="png")


if __name__ == "__main__":
    sys.exit(main())
