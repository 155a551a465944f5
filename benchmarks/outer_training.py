"""Training with outer steps: final test losses and bytes, by spec, outer momentum and learning rate.

  torchrun --nproc_per_node=4 benchmarks/outer_training.py --seeds 3

A 64-512-512-10 perceptron learns scikit-learn's digits with AdamW inside; every contender has the
same initial values and batches. Ratios are those of float32 gradients in every step over all bytes
that rank 0 hands over.
"""

import argparse
import statistics

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from powersgd_training import learn, perceptron
from torch_compressors import OuterStep

# Spec, outer learning rate, outer momentum; a spec of None averages gradients in every step.
CONTENDERS = [
    (None, 0.0, 0.0),
    ("identity", 1.0, 0.0),
    ("identity", 0.7, 0.9),
    ("int8", 0.7, 0.9),
    ("int4", 0.7, 0.9),
    ("residual|int4", 0.7, 0.9),
    ("topk(ratio=0.05)", 0.7, 0.9),
    ("residual|topk(ratio=0.05)", 0.7, 0.9),
    ("residual|topk(ratio=0.05)", 1.0, 0.0),
    ("residual|sign", 0.7, 0.9),
    ("residual|sign", 1.0, 0.0),
]


def train(
    contender: tuple[str | None, float, float], seed: int, options: argparse.Namespace
) -> tuple[float, float]:
    """Final test loss, and the compression ratio."""
    spec, lr, momentum = contender
    model = perceptron(seed)
    optimizer = torch.optim.AdamW(model.parameters(), options.inner_lr)
    if spec is None:
        return learn(DistributedDataParallel(model), optimizer, seed, options.epochs), 1.0
    outer = OuterStep(spec, model, every=options.every, lr=lr, momentum=momentum)
    loss = learn(model, optimizer, seed, options.epochs, outer.step)
    return loss, outer.stats.ratio


def main() -> None:
    """Train all contenders and print a line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--every", type=int, default=10, help="inner steps per outer step")
    parser.add_argument("--inner-lr", type=float, default=0.001)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=40)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for contender in CONTENDERS:
        results = [train(contender, seed, options) for seed in range(options.seeds)]
        losses = [loss for loss, _ in results]
        if dist.get_rank() == 0:
            spec, lr, momentum = contender
            name = spec or "every step, uncompressed"
            setting = f"lr {lr} momentum {momentum}" if spec else ""
            deviation = statistics.stdev(losses) if len(losses) > 1 else 0.0
            loss = f"{statistics.mean(losses):.3f} +- {deviation:.3f}"
            print(f"{name:26} {setting:20} {loss}  {results[0][1]:6.0f}x", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
