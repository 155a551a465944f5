"""Training with Dion, Dion2 and DeMo at several rates, and with AdamW: final test losses and bytes.

  torchrun --nproc_per_node=2 benchmarks/dion_training.py --seeds 5

A 64-512-512-10 perceptron in DDP learns scikit-learn's digits; every contender has the same initial
values and batches. Bytes are all that rank 0 hands over in a step, over those of float32 gradients.
"""

import argparse
import statistics

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from powersgd_training import learn, perceptron
from torch_compressors import DeMo, Dion, ddp_hook, dion_groups


def train(spec: str | None, seed: int, options: argparse.Namespace) -> tuple[float, float]:
    """Final test loss, and bytes per step over those of float32.

    ``spec``: of Dion, Dion2 or DeMo; None: AdamW, uncompressed.
    """
    module = perceptron(seed)
    model = DistributedDataParallel(module)
    if spec is None:
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(module.parameters(), options.adam_lr)
    else:
        groups = dion_groups(module.named_parameters(), spec)
        demo = spec.startswith("demo")
        optimizer = DeMo(groups, options.demo_lr) if demo else Dion(groups, options.lr)
        state, hook = ddp_hook(spec, model, optimizer)
        model.register_comm_hook(state, hook)
    loss = learn(model, optimizer, seed, options.epochs)
    return loss, 1.0 if spec is None else 1 / state.stats.ratio


def main() -> None:
    """Train all contenders and print a line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lr", type=float, default=0.01, help="of Dion and Dion2")
    parser.add_argument("--demo-lr", type=float, default=0.001)
    parser.add_argument("--adam-lr", type=float, default=0.001)
    parser.add_argument("--fraction", type=float, nargs="+", default=[1, 0.25, 0.125, 0.0625])
    parser.add_argument("--k", type=int, nargs="+", default=[128, 32, 4], help="of DeMo")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=12)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    contenders: dict[str, str | None] = {"AdamW": None}
    for name, parameter in (("Dion", "rank_fraction"), ("Dion2", "fraction")):
        for fraction in options.fraction:
            contenders[f"{name}, fraction {fraction}"] = f"{name.lower()}({parameter}={fraction})"
    contenders.update({f"DeMo, k {k}": f"demo(k={k})" for k in options.k})
    for name, spec in contenders.items():
        results = [train(spec, seed, options) for seed in range(options.seeds)]
        losses = [loss for loss, _ in results]
        if dist.get_rank() == 0:
            deviation = statistics.stdev(losses) if len(losses) > 1 else 0.0
            spread = f"{statistics.mean(losses):.3f} +- {deviation:.3f}"
            print(f"{name:23} {spread}  bytes {100 * results[0][1]:5.1f} %", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
