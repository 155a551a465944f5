"""Hugging Face Accelerate: torchrun --nproc_per_node=2 examples/accelerate_digits.py.

A usual loop, except for one line: `compress_model`. Resume with --resume CHECKPOINT.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from sklearn.datasets import load_digits  # type: ignore[import-untyped]
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from torch_compressors.trainers.accelerate import compress_model


def main(words: Sequence[str] | None = None) -> nn.Module:
    """Train; returns the model."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--compression", default="residual|topk(ratio=0.01)", metavar="SPEC")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument(
        "--output", type=Path, default=Path("checkpoints/accelerate"), metavar="DIR"
    )
    parser.add_argument("--resume", type=Path, metavar="CHECKPOINT")
    arguments = parser.parse_args(words)

    # With this sampler the order of samples depends on the epoch alone, also after a resume.
    data_settings = DataLoaderConfiguration(use_seedable_sampler=True)
    accelerator = Accelerator(cpu=True, dataloader_config=data_settings)
    set_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.data / 16, dtype=torch.float32)
    data = TensorDataset(images, torch.tensor(digits.target))
    loader = DataLoader(data, batch_size=32, shuffle=True)
    module = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)

    model, optimizer, loader = accelerator.prepare(module, optimizer, loader)
    state = compress_model(accelerator, model, arguments.compression)

    first = 0
    if arguments.resume:
        accelerator.load_state(arguments.resume)
        first = int(arguments.resume.name.removeprefix("epoch-"))
    for epoch in range(first, arguments.epochs):
        state.set_epoch(epoch)
        loader.set_epoch(epoch)
        for batch, classes in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch), classes)
            accelerator.backward(loss)
            optimizer.step()
        accelerator.save_state(arguments.output / f"epoch-{epoch + 1}")
    accelerator.print(f"loss {loss.item():.4f}, {state.stats.ratio:.1f} times fewer bytes")
    return module


if __name__ == "__main__":
    main()
