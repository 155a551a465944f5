"""Data sets of images, and the samples of each rank and step."""

from __future__ import annotations

import gzip
import pickle
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from gradcomp.errors import ConfigError

__all__ = [
    "Batch",
    "Dataset",
    "Images",
    "load_cifar10",
    "load_digits_images",
    "load_fashion_mnist",
    "steps_per_epoch",
    "train_batches",
]

# Separate streams of random numbers out of one seed.
_ORDER, _AUGMENT = 1, 2

# The split never depends on train.seed, so that accuracies of all runs can be compared.
_SPLIT_SEED = 0
_DIGITS_TEST = 360

_CIFAR_FILES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
_CIFAR_MEAN = (0.4914, 0.4822, 0.4465)
_CIFAR_STD = (0.2470, 0.2435, 0.2616)

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package dataset-fashion-mnist puts its files."""

_FASHION_FILES = {
    f"{part}-{kind}-idx{dimensions}-ubyte.gz": dimensions
    for part in ("train", "t10k")
    for kind, dimensions in (("images", 3), ("labels", 1))
}


@dataclass(frozen=True)
class Batch:
    """Inputs ready for the model, and the class of each of them.

    A sample of text has a class at each of its places.
    """

    inputs: Tensor
    classes: Tensor


class Dataset(Protocol):
    """Training samples and test samples."""

    @property
    def classes(self) -> int:
        """Number of classes."""

    @property
    def train_samples(self) -> int:
        """Number of training samples."""

    def train_batch(self, indices: np.ndarray, rng: np.random.Generator) -> Batch:
        """The training samples at ``indices``, in [0, train_samples)."""

    def test_batches(self, rank: int, workers: int) -> Iterator[Batch]:
        """This rank's share of the test samples."""


@dataclass(frozen=True)
class Images:
    """Images as stored; batches are normalised and, with ``crop_and_flip``, augmented."""

    train_images: Tensor
    train_classes: Tensor
    test_images: Tensor
    test_classes: Tensor
    mean: Tensor
    std: Tensor
    crop_and_flip: bool
    classes: int = 10

    @property
    def train_samples(self) -> int:
        """Number of training images."""
        return len(self.train_classes)

    def train_batch(self, indices: np.ndarray, rng: np.random.Generator) -> Batch:
        """The training samples at ``indices``."""
        chosen = torch.from_numpy(indices)
        images = self._normalise(self.train_images[chosen])
        if self.crop_and_flip:
            images = _crop_and_flip(images, rng)
        return Batch(images, self.train_classes[chosen])

    def test_batches(self, rank: int, workers: int, size: int = 500) -> Iterator[Batch]:
        """This rank's share of the test samples."""
        mine = slice(rank, None, workers)
        images = torch.split(self.test_images[mine], size)
        classes = torch.split(self.test_classes[mine], size)
        for some, their_classes in zip(images, classes, strict=True):
            yield Batch(self._normalise(some), their_classes)

    def _normalise(self, images: Tensor) -> Tensor:
        return (images.float() - self.mean) / self.std


def steps_per_epoch(samples: int, batch_size: int, workers: int) -> int:
    """Whole global batches in an epoch; samples left over wait for the next shuffle.

    Raises ConfigError when there is not even one.
    """
    steps = samples // (batch_size * workers)
    if steps == 0:
        raise ConfigError(
            f"train.batch_size: got {batch_size}, which on {workers} ranks is more than the "
            f"{samples} training samples; expected at most {samples // workers}"
        )
    return steps


def train_batches(
    dataset: Dataset,
    *,
    seed: int,
    epoch: int,
    start: int,
    stop: int,
    batch_size: int,
    rank: int,
    workers: int,
) -> Iterator[Batch]:
    """This rank's batches of ``epoch``, from ``start`` to ``stop`` in its shuffled order.

    All ranks shuffle alike and take neighbouring slices of each global batch. Order and
    augmentation depend on the arguments only, so a resumed epoch goes on as it would have,
    and one resumed at another world size still sees every sample at most once.
    """
    order = np.random.default_rng((_ORDER, seed, epoch)).permutation(dataset.train_samples)
    step = batch_size * workers
    for first in range(start, stop - step + 1, step):
        mine = first + rank * batch_size
        rng = np.random.default_rng((_AUGMENT, seed, epoch, mine))
        yield dataset.train_batch(order[mine : mine + batch_size], rng)


def load_digits_images() -> Images:
    """scikit-learn's 1797 digits, 8x8 pixels each; 360 of them for the test."""
    digits = load_digits()
    images = torch.from_numpy(digits.images).float().unsqueeze(1)
    classes = torch.from_numpy(digits.target).long()
    order = torch.from_numpy(np.random.default_rng(_SPLIT_SEED).permutation(len(classes)))
    test, train = order[:_DIGITS_TEST], order[_DIGITS_TEST:]
    return Images(
        train_images=images[train],
        train_classes=classes[train],
        test_images=images[test],
        test_classes=classes[test],
        mean=images[train].mean(),
        std=images[train].std(),
        crop_and_flip=False,
    )


def load_cifar10(folder: Path) -> Images:
    """CIFAR-10 from its python batches, in ``folder`` or ``folder``/cifar-10-batches-py.

    Raises ConfigError naming the files that are missing or cannot be read.
    """
    nested = folder / "cifar-10-batches-py"
    home = nested if nested.is_dir() else folder
    missing = [name for name in _CIFAR_FILES if not (home / name).is_file()]
    if missing:
        raise ConfigError(
            f"train.data_dir: {home} has no {', '.join(missing)}; expected the folder that "
            "unpacking cifar-10-python.tar.gz (https://www.cs.toronto.edu/~kriz/cifar.html) makes, "
            f"with the files {', '.join(_CIFAR_FILES)}"
        )
    batches = [_read_cifar_batch(home / name) for name in _CIFAR_FILES]
    return Images(
        train_images=torch.cat([images for images, _ in batches[:-1]]),
        train_classes=torch.cat([classes for _, classes in batches[:-1]]),
        test_images=batches[-1][0],
        test_classes=batches[-1][1],
        mean=torch.tensor(_CIFAR_MEAN).view(3, 1, 1) * 255,
        std=torch.tensor(_CIFAR_STD).view(3, 1, 1) * 255,
        crop_and_flip=True,
    )


def load_fashion_mnist(folder: Path = FASHION_MNIST) -> Images:
    """Fashion-MNIST (Xiao et al., 2017): 28x28 pixels, 60,000 images to train on, 10,000 for the test.

    Batches are normalised with the mean and standard deviation of the training pixels. Raises
    ConfigError naming the files that are missing or damaged.
    """
    remedy = "apt-get install dataset-fashion-mnist"
    missing = [name for name in _FASHION_FILES if not (folder / name).is_file()]
    if missing:
        raise ConfigError(f"Fashion-MNIST: {folder} has no {', '.join(missing)}; run {remedy}")
    arrays = []
    for name, dimensions in _FASHION_FILES.items():
        try:
            arrays.append(_read_idx(folder / name, dimensions))
        except (OSError, EOFError, zlib.error, ValueError) as error:
            raise ConfigError(
                f"Fashion-MNIST: {folder / name} is damaged ({error}); run {remedy} --reinstall"
            ) from None
    train_images, train_classes, test_images, test_classes = arrays
    for images, classes in ((train_images, train_classes), (test_images, test_classes)):
        if len(images) != len(classes) or classes.max(initial=0) > 9:
            raise ConfigError(
                f"Fashion-MNIST: {folder} has {len(images)} images with {len(classes)} labels of "
                f"at most {classes.max(initial=0)}; expected a label in [0, 9] for each image: run "
                f"{remedy} --reinstall"
            )
    pixels = train_images.astype(np.float32)
    return Images(
        train_images=torch.from_numpy(train_images).unsqueeze(1),
        train_classes=torch.from_numpy(train_classes).long(),
        test_images=torch.from_numpy(test_images).unsqueeze(1),
        test_classes=torch.from_numpy(test_classes).long(),
        mean=torch.tensor(pixels.mean()),
        std=torch.tensor(pixels.std()),
        crop_and_flip=False,
    )


def _read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Unsigned bytes in the IDX format: a magic number, each dimension's size, the bytes."""
    with gzip.open(path) as file:
        content = file.read()
    head = 4 * (1 + dimensions)
    magic, *shape = np.frombuffer(content[: len(content[:head]) // 4 * 4], ">u4").tolist()
    if magic != 0x0800 + dimensions or len(shape) != dimensions:
        raise ValueError(f"it does not begin as unsigned bytes of {dimensions} dimensions")
    # A copy, as PyTorch warns about memory that cannot be written to.
    return np.frombuffer(content, np.uint8, offset=head).reshape(shape).copy()


class _ArrayUnpickler(pickle.Unpickler):
    """Reads plain containers and numpy arrays only, as a pickle can run any code."""

    _allowed = frozenset(
        {
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("_codecs", "encode"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._allowed:
            raise pickle.UnpicklingError(f"it holds {module}.{name}, which is no array")
        # The files were written by numpy 1.
        return super().find_class(module.replace("numpy.core.", "numpy._core."), name)


def _read_cifar_batch(path: Path) -> tuple[Tensor, Tensor]:
    try:
        with path.open("rb") as file:
            content = _ArrayUnpickler(file, encoding="bytes").load()
        pixels = np.asarray(content[b"data"], dtype=np.uint8).reshape(-1, 3, 32, 32)
        classes = np.asarray(content[b"labels"], dtype=np.int64)
        if len(pixels) != len(classes) or not np.isin(classes, np.arange(10)).all():
            raise ValueError(f"{len(pixels)} images, {len(classes)} labels")
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"train.data_dir: {path} is not a CIFAR-10 python batch ({error}); unpack "
            "cifar-10-python.tar.gz again"
        ) from None
    return torch.from_numpy(pixels), torch.from_numpy(classes)


def _crop_and_flip(images: Tensor, rng: np.random.Generator) -> Tensor:
    """The augmentation of He et al.: 4 pixels of padding, a random crop, a random flip."""
    count, _, height, width = images.shape
    padded = torch.nn.functional.pad(images, (4, 4, 4, 4))
    tops, lefts = rng.integers(0, 9, (2, count))
    flips = rng.random(count) < 0.5
    out = torch.empty_like(images)
    for i, (top, left, flip) in enumerate(zip(tops, lefts, flips, strict=True)):
        crop = padded[i, :, top : top + height, left : left + width]
        out[i] = crop.flip(2) if flip else crop
    return out
