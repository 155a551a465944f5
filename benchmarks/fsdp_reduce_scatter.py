"""Training with FSDP2's own reduce-scatter and with ours: final test losses and bytes.

  torchrun --nproc_per_node=2 benchmarks/fsdp_reduce_scatter.py --seeds 5

A transformer of characters learns the texts of Python's own help(), with AdamW; each layer is a unit
of ``fully_shard``. All contenders of a seed have the same initial values and batches. Bytes are
those of rank 0 in a step: of the reduce-scatters with frame headers and comparisons of the ranks,
and of all its TCP connections, with the all-gathers of parameters too.
"""

import argparse
import statistics
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from torch_compressors import init_process_group
from torch_compressors.fsdp import fsdp_reduce_scatter

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from training.tasks.models import CharTransformer
from training.tasks.text import PIECE, TextPieces, load_python_topics
from training.traffic import tcp_bytes_sent

STOCK = "uncompressed"
BATCH = 8


def train(spec: str, text: TextPieces, seed: int, steps: int) -> tuple[float, float, float]:
    """The final test loss, and bytes in a step: of the reduce-scatters, and of all connections."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(seed)
    model = CharTransformer(text.classes, PIECE)
    for layer in model.layers.layers:
        fully_shard(layer)
    fully_shard(model)
    numel = sum(parameter.numel() for parameter in model.parameters())
    others = numel - sum(parameter.to_local().numel() for parameter in model.parameters())
    state = None if spec == STOCK else fsdp_reduce_scatter(spec, model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, steps)
    rng = np.random.default_rng([seed, rank])
    before = tcp_bytes_sent() or 0
    for _ in range(steps):
        batch = text.train_batch(rng.integers(text.train_samples, size=BATCH), rng)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch.inputs), batch.classes).backward()
        optimizer.step()
        schedule.step()
    dist.barrier()
    tcp = (tcp_bytes_sent() or 0) - before
    total = torch.zeros(2)
    with torch.no_grad():
        for batch in text.test_batches(rank, ranks):
            loss = nn.functional.cross_entropy(model(batch.inputs), batch.classes)
            total += torch.tensor([float(loss), 1.0]) * len(batch.inputs)
    dist.all_reduce(total)
    sent = 4 * others if state is None else state.stats.total_bytes / steps
    return float(total[0] / total[1]), sent, tcp / steps


def main() -> None:
    """Train all contenders and print a line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--spec",
        nargs="+",
        default=[
            "int8",
            "int4",
            "residual|int4",
            "residual(average=0.8)|int4",
            "residual|topk(ratio=0.01)",
        ],
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")
    init_process_group()
    text = TextPieces(load_python_topics())
    dense = 0.0
    for spec in (STOCK, *options.spec):
        runs = [train(spec, text, seed, options.steps) for seed in range(options.seeds)]
        losses = [loss for loss, *_ in runs]
        _, sent, tcp = runs[0]
        dense = dense or sent
        if dist.get_rank() == 0:
            spread = statistics.stdev(losses) if len(losses) > 1 else 0.0
            listed = " ".join(f"{loss:.3f}" for loss in losses)
            print(
                f"{spec:26} {statistics.mean(losses):6.3f} ± {spread:.3f}  {sent / 1e3:7.1f} kB "
                f"{dense / sent:5.2f}x {tcp / 1e3:8.1f} kB  {listed}",
                flush=True,
            )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
