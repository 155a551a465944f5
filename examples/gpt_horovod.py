"""A GPT on a text, byte by byte: horovodrun -np 2 python examples/gpt_horovod.py."""

import argparse
import itertools
import time
from pathlib import Path

import horovod.torch as hvd
import torch
from data import batches, read_text, share_of
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from horovod_compressors.torch import Compression


class GPT(nn.Module):
    """A decoder-only transformer over bytes: scores of the next byte at each place."""

    def __init__(self, context: int, width: int, layers: int) -> None:
        """For at most ``context`` bytes; ``width`` is a multiple of the 4 heads."""
        super().__init__()
        self.byte, self.place = nn.Embedding(256, width), nn.Embedding(context, width)
        block = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        norm = nn.LayerNorm(width)
        self.blocks = nn.TransformerEncoder(block, layers, norm, enable_nested_tensor=False)
        self.scores = nn.Linear(width, 256)

    def forward(self, x: Tensor) -> Tensor:
        """``x``: bytes, [batch, places]; returns [batch, 256, places]."""
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        x = self.byte(x) + self.place.weight[: x.shape[1]]
        return self.scores(self.blocks(x, mask, is_causal=True)).transpose(1, 2)


def main() -> None:
    """Train and test."""
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--compression", default="auto", help="auto (the preset), none, or a spec")
    parser.add_argument("--text", type=Path, help="a file instead of the King James Bible")
    parser.add_argument("--context", type=int, default=128, help="bytes of a piece")
    parser.add_argument("--width", type=int, default=128, help="of each layer")
    parser.add_argument("--layers", type=int, default=4, help="number of blocks")
    parser.add_argument("--steps", type=int, default=500, help="number of updates")
    parser.add_argument("--batch", type=int, default=16, help="pieces of a rank in a step")
    parser.add_argument("--lr", type=float, default=0.002, help="largest learning rate")
    args = parser.parse_args()
    spec = "identity" if args.compression == "none" else args.compression
    train, test = read_text(args.text, args.context)

    hvd.init()
    rank, ranks = hvd.rank(), hvd.size()
    torch.set_num_threads(max(1, torch.get_num_threads() // hvd.local_size()))
    torch.manual_seed(0)
    model = GPT(args.context, args.width, args.layers)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    compression = Compression(spec, model.named_parameters())
    optimizer = torch.optim.AdamW(model.parameters(), args.lr)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=compression,  # this line compresses
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, args.steps)

    began = time.monotonic()
    steps = itertools.islice(batches(train, args.batch, rank, ranks), args.steps)
    for step, (inputs, targets) in enumerate(steps, start=1):
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        schedule.step()
        if rank == 0 and step % max(1, args.steps // 5) == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    seconds = time.monotonic() - began

    model.eval()
    sums = torch.zeros(2, dtype=torch.float64)  # losses, bytes
    with torch.inference_mode():
        for inputs, targets in share_of(test, rank, ranks):
            loss = cross_entropy(model(inputs), targets, reduction="sum")
            sums += torch.tensor([loss, targets.numel()], dtype=torch.float64)
    sums = hvd.allreduce(sums, op=hvd.Sum)
    if rank == 0:
        print(f"test loss {sums[0] / sums[1]:.3f} nats per byte")
        sent, ratio = compression.stats.total_bytes / 1e6, compression.stats.ratio
        print(f"{sent:.1f} MB sent, {ratio:.1f} times fewer, in {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
