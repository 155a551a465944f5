"""Records real gradients during training, for `gradcomp bench --all --data`.

Trains the digits CNN in one process and stores the gradients of a few steps, early and late, as
float16 in one .npz file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
import torch
import typer

from training.data import load_digits_images
from training.models import digits_cnn

RECORDED_STEPS = (1, 10, 50, 200)


def record(output: Path, steps: tuple[int, ...] = RECORDED_STEPS, seed: int = 0) -> None:
    """Write the gradients of ``steps`` (counted from 1) to ``output``."""
    torch.manual_seed(seed)
    order = np.random.default_rng(seed)
    data = load_digits_images()
    model = digits_cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    recorded: dict[str, npt.NDArray[np.float16]] = {}
    for step in range(1, max(steps) + 1):
        chosen = torch.from_numpy(order.choice(len(data.train_classes), 64, replace=False))
        images = (data.train_images[chosen] - data.mean) / data.std
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), data.train_classes[chosen])
        loss.backward()  # type: ignore[no-untyped-call]
        if step in steps:
            for name, parameter in model.named_parameters():
                assert parameter.grad is not None
                recorded[f"step{step}/{name}"] = parameter.grad.numpy().astype(np.float16)
        optimizer.step()
    output.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(output, allow_pickle=False, **recorded)
    print(f"{output}: {output.stat().st_size:,} bytes, {len(recorded)} gradients")


def main(
    output: Annotated[Path, typer.Argument(help="The .npz file to write.")] = Path(
        "runs/gradients/digits-cnn.npz"
    ),
    seed: Annotated[int, typer.Option(help="Of weights and sample order.")] = 0,
) -> None:
    """Record gradients of the digits CNN."""
    record(output, seed=seed)


if __name__ == "__main__":
    typer.run(main)
