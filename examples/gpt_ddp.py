"""A GPT on a text, byte by byte: torchrun --nproc_per_node=2 examples/gpt_ddp.py."""

import argparse
import itertools
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from torch_compressors import ddp_hook


class GPT(nn.Module):
    """A decoder-only transformer over bytes: scores of the next byte at each place."""

    def __init__(self, context: int, width: int, layers: int) -> None:
        """For at most ``context`` bytes; ``width`` is a multiple of the 4 heads."""
        super().__init__()
        self.byte, self.place = nn.Embedding(256, width), nn.Embedding(context, width)
        block = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(
            block, layers, nn.LayerNorm(width), enable_nested_tensor=False
        )
        self.scores = nn.Linear(width, 256)

    def forward(self, x: Tensor) -> Tensor:
        """``x``: bytes, [batch, places]; returns [batch, 256, places]."""
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        x = self.byte(x) + self.place.weight[: x.shape[1]]
        return self.scores(self.blocks(x, mask, is_causal=True)).transpose(1, 2)


def read_text(path: Path | None) -> bytes:
    """The file's bytes; without a path the King James Bible, a verse a line."""
    if path:
        return path.read_bytes() if path.is_file() else sys.exit(f"--text {path}: no such file")
    if not shutil.which("bible"):
        sys.exit("no King James Bible: apt-get install bible-kjv, or give a text with --text FILE")
    verses = subprocess.check_output(["bible", "-f", "Gen1:1-Rev22:21"], stdin=subprocess.DEVNULL)
    return re.sub(rb"(?m)^\S+ ", b"", verses)  # without references such as Ge1:1


def pieces_of(text: bytes, context: int) -> TensorDataset:
    """Pieces of ``context`` bytes, and the same pieces one byte later, the targets."""
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    end = (len(data) - 1) // context * context
    return TensorDataset(data[:end].view(-1, context), data[1 : end + 1].view(-1, context))


def batches(
    data: TensorDataset, size: int, rank: int, ranks: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """This rank's batches without end, in another order in each epoch."""
    sampler = DistributedSampler(data, ranks, rank)
    loader = DataLoader(data, size, sampler=sampler)
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        yield from loader


@torch.inference_mode()
def evaluate(model: nn.Module, data: TensorDataset, rank: int, ranks: int) -> Tensor:
    """This rank's sums over its share of the test data: losses, and number of targets."""
    model.eval()
    sums = torch.zeros(2, dtype=torch.float64)
    for inputs, targets in DataLoader(Subset(data, range(rank, len(data), ranks)), 100):
        scores = model(inputs)
        loss = functional.cross_entropy(scores, targets, reduction="sum")
        sums += torch.tensor([loss, targets.numel()], dtype=torch.float64)
    return sums


def main() -> None:
    """Train and test."""
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument(
        "--compression", default="auto", metavar="SPEC", help="auto (the preset), none, or a spec"
    )
    parser.add_argument("--text", type=Path, metavar="FILE", help="instead of the King James Bible")
    parser.add_argument("--context", type=int, default=128, help="bytes of a piece")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=16, help="pieces of a rank in a step")
    parser.add_argument("--lr", type=float, default=0.002, help="largest learning rate")
    args = parser.parse_args()
    spec = "identity" if args.compression == "none" else args.compression
    text = read_text(args.text)
    if len(text) < 100 * args.context:
        sys.exit(f"the text has {len(text)} bytes; expected {100 * args.context} or more")
    cut = len(text) // 50 * 49
    train, test = pieces_of(text[:cut], args.context), pieces_of(text[cut:], args.context)

    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(GPT(args.context, args.width, args.layers))
    optimizer = torch.optim.AdamW(model.parameters(), args.lr)
    # The two lines that compress:
    state, hook = ddp_hook(spec, model)
    model.register_comm_hook(state, hook)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, args.steps)

    began = time.monotonic()
    steps = itertools.islice(batches(train, args.batch, rank, ranks), args.steps)
    for step, (inputs, targets) in enumerate(steps, start=1):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        schedule.step()
        if rank == 0 and step % max(1, args.steps // 5) == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    seconds = time.monotonic() - began

    sums = evaluate(model.module, test, rank, ranks)
    dist.all_reduce(sums)
    if rank == 0:
        loss, targets = sums.tolist()
        print(f"test loss {loss / targets:.3f} nats per byte")
        sent, ratio = state.stats.total_bytes, state.stats.ratio
        print(f"{sent / 1e6:.1f} MB sent, {ratio:.1f} times fewer, in {seconds:.0f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
