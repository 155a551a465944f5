"""A ResNet on Fashion-MNIST: torchrun --nproc_per_node=2 examples/resnet_ddp.py."""

import argparse
import gzip
import itertools
import struct
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


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        """From ``inputs`` to ``outputs`` channels."""
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``x``: [batch, inputs, height, width]."""
        return functional.relu(self.body(x) + self.shortcut(x))


def resnet(width: int) -> nn.Module:
    """Three stages of ``width``, twice and four times as many channels, for 10 classes."""
    return nn.Sequential(
        nn.Conv2d(1, width, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        Block(width, width, stride=1),
        Block(width, 2 * width, stride=2),
        Block(2 * width, 4 * width, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, 10),
    )


def read_idx(path: Path) -> Tensor:
    """The unsigned bytes of a file in the IDX format."""
    if not path.is_file():
        sys.exit(f"no {path}: apt-get install dataset-fashion-mnist, or give a folder with --data")
    content = bytearray(gzip.decompress(path.read_bytes()))
    sizes = struct.unpack_from(f">{content[3]}I", content, 4)
    return torch.frombuffer(content, dtype=torch.uint8, offset=4 + 4 * len(sizes)).view(sizes)


def read_images(folder: Path, part: str) -> TensorDataset:
    """Images [number, 1, 28, 28] of mean 0 and deviation 1, about, and their classes."""
    images = read_idx(folder / f"{part}-images-idx3-ubyte.gz").unsqueeze(1)
    classes = read_idx(folder / f"{part}-labels-idx1-ubyte.gz")
    return TensorDataset((images / 255 - 0.286) / 0.353, classes.long())


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
    """This rank's sums over its share of the test data: losses, right answers, and number of targets."""
    model.eval()
    sums = torch.zeros(3, dtype=torch.float64)
    for inputs, targets in DataLoader(Subset(data, range(rank, len(data), ranks)), 100):
        scores = model(inputs)
        loss = functional.cross_entropy(scores, targets, reduction="sum")
        right = (scores.argmax(1) == targets).sum()
        sums += torch.tensor([loss, right, len(targets)], dtype=torch.float64)
    return sums


def main() -> None:
    """Train and test."""
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument(
        "--compression", default="auto", metavar="SPEC", help="auto (the preset), none, or a spec"
    )
    parser.add_argument(
        "--data", type=Path, default="/usr/share/datasets/fashion-mnist", help="folder of the files"
    )
    parser.add_argument("--width", type=int, default=48, help="channels of the first stage")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=32, help="images of a rank in a step")
    parser.add_argument("--lr", type=float, default=0.1, help="largest learning rate")
    args = parser.parse_args()
    spec = "identity" if args.compression == "none" else args.compression
    train, test = read_images(args.data, "train"), read_images(args.data, "t10k")

    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(resnet(args.width))
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=5e-4)
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
        loss, right, targets = sums.tolist()
        print(f"test loss {loss / targets:.3f}, accuracy {right / targets:.2%}")
        sent, ratio = state.stats.total_bytes, state.stats.ratio
        print(f"{sent / 1e6:.1f} MB sent, {ratio:.1f} times fewer, in {seconds:.0f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
