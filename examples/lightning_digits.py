"""PyTorch Lightning: torchrun --nproc_per_node=2 examples/lightning_digits.py.

A usual training, except for one line: `CompressionCallback`. Resume with --resume CHECKPOINT.
"""

import argparse
import os
from collections.abc import Sequence

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from sklearn.datasets import load_digits  # type: ignore[import-untyped]
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from torch_compressors.trainers.lightning import CompressionCallback


class Digits(LightningModule):  # type: ignore[misc]
    """A perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def training_step(self, batch: Sequence[torch.Tensor]) -> torch.Tensor:
        """The loss of a batch."""
        images, classes = batch
        loss = nn.functional.cross_entropy(self.layers(images), classes)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """SGD with momentum."""
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def main(words: Sequence[str] | None = None) -> nn.Module:
    """Train; returns the model."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--compression", default="residual|topk(ratio=0.01)", metavar="SPEC")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--output", default="checkpoints/lightning", metavar="DIR")
    parser.add_argument("--resume", metavar="CHECKPOINT")
    arguments = parser.parse_args(words)

    seed_everything(0)
    digits = load_digits()
    images = torch.tensor(digits.data / 16, dtype=torch.float32)
    data = TensorDataset(images, torch.tensor(digits.target))

    compression = CompressionCallback(arguments.compression)
    trainer = Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        max_epochs=arguments.epochs,
        callbacks=[compression, ModelCheckpoint(arguments.output, save_top_k=-1)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Digits()
    loader = DataLoader(data, batch_size=32, shuffle=True)
    trainer.fit(model, loader, ckpt_path=arguments.resume)
    if trainer.is_global_zero:
        ratio = compression.state.stats.ratio
        loss = trainer.callback_metrics["loss"]
        print(f"loss {loss:.4f}, {ratio:.1f} times fewer bytes", flush=True)
    return model


if __name__ == "__main__":
    main()
