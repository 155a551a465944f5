"""A training loop for Ray Train with two workers on CPUs: python examples/ray_train_digits.py.

Ray's `prepare_model` makes the DistributedDataParallel model, and `ddp_hook` compresses it. Written
for Ray 2.60, which ``pip install 'ray[train]'`` installs; no other part of gradcomp needs it.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from ray import train
from ray.train.torch import TorchTrainer, prepare_model
from sklearn.datasets import load_digits
from torch import nn

from torch_compressors import ddp_hook


def train_digits(settings: dict[str, Any]) -> None:
    """The loop of one worker; reports the accuracy, the compression ratio and a checkpoint."""
    context = train.get_context()
    rank, size = context.get_world_rank(), context.get_world_size()
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.data / 16, dtype=torch.float32)
    classes = torch.tensor(digits.target)
    mine, test = slice(rank, 1440, size), slice(1440, None)

    model = prepare_model(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
    state, hook = ddp_hook(settings["compression"], model)
    model.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    for epoch in range(settings["epochs"]):
        for batch, target in zip(images[mine].split(24), classes[mine].split(24), strict=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch), target).backward()
            optimizer.step()
        right = model.module(images[test]).argmax(1) == classes[test]
        metrics = {"accuracy": float(right.float().mean()), "ratio": state.stats.ratio}
        with tempfile.TemporaryDirectory() as folder:
            # Each worker has residuals of its own, so all of them save into the checkpoint.
            torch.save(state.state_dict(), Path(folder) / f"compression-{rank}.pt")
            if rank == 0:
                torch.save(model.module.state_dict(), Path(folder) / "model.pt")
            last = epoch + 1 == settings["epochs"]
            checkpoint = train.Checkpoint.from_directory(folder) if last else None
            train.report(metrics, checkpoint=checkpoint)


def main() -> None:
    """Train, and print the results of worker 0."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--compression", default="residual|topk(ratio=0.01)", metavar="SPEC")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--storage", help="folder for results; default: Ray's, ~/ray_results")
    arguments = parser.parse_args()
    trainer = TorchTrainer(
        train_digits,
        train_loop_config={"compression": arguments.compression, "epochs": arguments.epochs},
        scaling_config=train.ScalingConfig(num_workers=2, use_gpu=False),
        run_config=train.RunConfig(storage_path=arguments.storage),
    )
    result = trainer.fit()
    print(f"test accuracy {result.metrics['accuracy']:.4f}", flush=True)
    print(f"{result.metrics['ratio']:.1f} times fewer bytes; {result.checkpoint}", flush=True)


if __name__ == "__main__":
    main()
