"""A ResNet on Fashion-MNIST: horovodrun -np 2 python examples/resnet_horovod.py."""

import argparse
import itertools
import time
from pathlib import Path

import horovod.torch as hvd
import torch
from data import IMAGES, batches, read_images, share_of
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, relu

from horovod_compressors.torch import Compression


def convolution(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
    """A 3x3 convolution, and batch normalization."""
    layer = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
    return [layer, nn.BatchNorm2d(outputs)]


class Block(nn.Module):
    """Two convolutions and a shortcut around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        """From ``inputs`` to ``outputs`` channels."""
        super().__init__()
        first, second = convolution(inputs, outputs, stride), convolution(outputs, outputs, 1)
        self.body = nn.Sequential(*first, nn.ReLU(), *second)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``x``: [batch, inputs, height, width]."""
        return relu(self.body(x) + self.shortcut(x))


def resnet(width: int) -> nn.Module:
    """Three blocks of ``width``, twice and four times as many channels, for 10 classes."""
    first = [*convolution(1, width, 2), nn.ReLU()]
    blocks = [Block(width, width, 1), Block(width, 2 * width, 2), Block(2 * width, 4 * width, 2)]
    last = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10)]
    return nn.Sequential(*first, *blocks, *last)


def main() -> None:
    """Train and test."""
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--compression", default="auto", help="auto (the preset), none, or a spec")
    parser.add_argument("--data", type=Path, default=IMAGES, help="folder of the four files")
    parser.add_argument("--width", type=int, default=48, help="channels of the first block")
    parser.add_argument("--steps", type=int, default=300, help="number of updates")
    parser.add_argument("--batch", type=int, default=32, help="images of a rank in a step")
    parser.add_argument("--lr", type=float, default=0.1, help="largest learning rate")
    args = parser.parse_args()
    spec = "identity" if args.compression == "none" else args.compression
    train, test = read_images(args.data)

    hvd.init()
    rank, ranks = hvd.rank(), hvd.size()
    torch.set_num_threads(max(1, torch.get_num_threads() // hvd.local_size()))
    torch.manual_seed(0)
    model = resnet(args.width)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    compression = Compression(spec, model.named_parameters())
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=5e-4)
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
    # The ranks' running means of batch normalization differ.
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    model.eval()
    sums = torch.zeros(3, dtype=torch.float64)  # losses, right answers, images
    with torch.inference_mode():
        for inputs, targets in share_of(test, rank, ranks):
            scores = model(inputs)
            loss = cross_entropy(scores, targets, reduction="sum")
            right = (scores.argmax(1) == targets).sum()
            sums += torch.tensor([loss, right, len(targets)], dtype=torch.float64)
    sums = hvd.allreduce(sums, op=hvd.Sum)
    if rank == 0:
        print(f"test loss {sums[0] / sums[2]:.3f}, accuracy {sums[1] / sums[2]:.2%}")
        sent, ratio = compression.stats.total_bytes / 1e6, compression.stats.ratio
        print(f"{sent:.1f} MB sent, {ratio:.1f} times fewer, in {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
