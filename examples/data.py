"""What the GPT and the ResNet learn, and the share of a rank."""

import gzip
import itertools
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

IMAGES = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's dataset-fashion-mnist puts its files."""


def read_text(path: Path | None, context: int) -> tuple[TensorDataset, TensorDataset]:
    """Training and test data: pieces of ``context`` bytes, and the same pieces one byte later.

    Without a path, the text is the King James Bible of Debian's bible-kjv, a verse in each line.
    The last fiftieth of the text is the test data.
    """
    if path:
        text = path.read_bytes() if path.is_file() else sys.exit(f"--text {path}: no such file")
    elif shutil.which("bible"):
        command = ["bible", "-f", "Gen1:1-Rev22:21"]
        verses = subprocess.check_output(command, stdin=subprocess.DEVNULL)
        text = re.sub(rb"(?m)^\S+ ", b"", verses)  # without references such as Ge1:1
    else:
        sys.exit("no King James Bible: apt-get install bible-kjv, or give a text with --text FILE")
    if len(text) < 100 * context:
        sys.exit(f"the text has {len(text)} bytes; expected {100 * context} or more")
    cut = len(text) // 50 * 49
    return _pieces(text[:cut], context), _pieces(text[cut:], context)


def _pieces(text: bytes, context: int) -> TensorDataset:
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    end = (len(data) - 1) // context * context
    return TensorDataset(data[:end].view(-1, context), data[1 : end + 1].view(-1, context))


def read_images(folder: Path) -> tuple[TensorDataset, TensorDataset]:
    """Training and test data: images [number, 1, 28, 28] of mean 0 and deviation 1, about, and their classes."""
    parts = []
    for part in ("train", "t10k"):
        images = _read_idx(folder / f"{part}-images-idx3-ubyte.gz").unsqueeze(1)
        classes = _read_idx(folder / f"{part}-labels-idx1-ubyte.gz")
        parts.append(TensorDataset((images / 255 - 0.286) / 0.353, classes.long()))
    return parts[0], parts[1]


def _read_idx(path: Path) -> Tensor:
    """The unsigned bytes of a file in the IDX format."""
    if not path.is_file():
        sys.exit(f"no {path}: apt-get install dataset-fashion-mnist, or give a folder with --data")
    content = bytearray(gzip.decompress(path.read_bytes()))
    sizes = struct.unpack_from(f">{content[3]}I", content, 4)
    return torch.frombuffer(content, dtype=torch.uint8, offset=4 + 4 * len(sizes)).view(sizes)


def batches(data: TensorDataset, size: int, rank: int, ranks: int) -> Iterator[list[Tensor]]:
    """This rank's batches for training without end, in another order in each epoch."""
    sampler = DistributedSampler(data, ranks, rank)
    loader = DataLoader(data, size, sampler=sampler)
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        yield from loader


def share_of(data: TensorDataset, rank: int, ranks: int) -> DataLoader[list[Tensor]]:
    """This rank's batches for testing."""
    return DataLoader(Subset(data, range(rank, len(data), ranks)), batch_size=100)
