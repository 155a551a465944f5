"""Training with torch's powerSGD_hook and with ours, at several learning rates: final test losses.

  torchrun --nproc_per_node=2 benchmarks/powersgd_training.py --lr 0.05 0.1 --seeds 3

A 64-512-512-10 perceptron in DDP learns scikit-learn's digits, with SGD of momentum 0.9; every
contender has the same initial values and batches. A line has the test losses of all seeds.
"""

import argparse
from collections.abc import Callable

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as torch_powersgd
from torch.nn.parallel import DistributedDataParallel

from torch_compressors import ddp_hook

HELD_OUT = 360
TORCH = "torch powerSGD_hook"


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs in [0, 1] and classes, in an order of their own."""
    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    inputs = torch.tensor(data.data, dtype=torch.float32)[order] / 16
    return inputs, torch.tensor(data.target)[order]


def train(contender: str, rank: int, lr: float, seed: int, options: argparse.Namespace) -> float:
    """The final test loss."""
    # torch's hook works with a single bucket only: on Gloo it aborts with several.
    model = DistributedDataParallel(perceptron(seed), bucket_cap_mb=10**4)
    if contender == TORCH:
        state = torch_powersgd.PowerSGDState(
            process_group=None,
            matrix_approximation_rank=rank,
            start_powerSGD_iter=options.start,
            min_compression_rate=2,
        )
        model.register_comm_hook(state, torch_powersgd.powerSGD_hook)
    elif contender != "uncompressed":
        spec = f"powersgd(rank={rank},start_step={options.start},variant={contender})"
        model.register_comm_hook(*ddp_hook(spec, model))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    return learn(model, optimizer, seed, options.epochs)


def perceptron(seed: int) -> nn.Module:
    """The model, with initial values that belong to the seed."""
    torch.manual_seed(seed)
    layers = nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    return nn.Sequential(*layers)


def learn(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    seed: int,
    epochs: int,
    after_step: Callable[[], object] = lambda: None,
) -> float:
    """Train on the digits; returns the final test loss."""
    inputs, classes = digits()
    shuffle = torch.Generator().manual_seed(seed)
    world, rank = dist.get_world_size(), dist.get_rank()
    for _ in range(epochs):
        batches = torch.randperm(len(classes) - HELD_OUT, generator=shuffle).split(32 * world)
        for batch in batches[:-1]:
            mine = HELD_OUT + batch[rank::world]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[mine]), classes[mine]).backward()
            optimizer.step()
            after_step()
    with torch.no_grad():
        found = nn.functional.cross_entropy(model(inputs[:HELD_OUT]), classes[:HELD_OUT])
    return float(found)


def main() -> None:
    """Train all contenders and print a line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lr", type=float, nargs="+", default=[0.05, 0.1])
    parser.add_argument("--rank", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--start", type=int, default=10, help="first steps, uncompressed")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for lr in options.lr:
        for rank in options.rank:
            for contender in ("uncompressed", TORCH, "paper", "library"):
                losses = [
                    train(contender, rank, lr, seed, options) for seed in range(options.seeds)
                ]
                if dist.get_rank() == 0:
                    text = " ".join(f"{loss:6.3f}" for loss in losses)
                    print(f"lr {lr:<5} rank {rank}  {contender:20} {text}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
