"""The methods that adaptive_comparison.py compares: each returns bits and the decoded bucket."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

import gradcomp
from gradcomp import DecodeItem, EncodeItem, decode_batch_add, encode_batch
from gradcomp.codec.frame import split_frames

FloatArray = npt.NDArray[np.float32]
ByteArray = npt.NDArray[np.uint8]
Bucket = list[FloatArray]
# Bits, and the decoded elements.
Coder = Callable[[Bucket], tuple[float, Bucket]]

RATES = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0)


def load(path: Path) -> list[Bucket]:
    """The gradients of every step, the first step first."""
    steps: dict[int, Bucket] = {}
    with np.load(path) as arrays:
        for name in arrays.files:
            step = int(name.partition("/")[0].removeprefix("step"))
            steps.setdefault(step, []).append(arrays[name].astype(np.float32))
    return [steps[step] for step in sorted(steps)]


def numel(bucket: Bucket) -> int:
    """Number of elements of all tensors."""
    return sum(x.size for x in bucket)


def energy(bucket: Bucket) -> float:
    """The sum of squares."""
    return float(sum(np.sum(x.astype(np.float64) ** 2) for x in bucket))


def frames(spec: str) -> Coder:
    """A spec of gradcomp, all tensors in one bucket."""
    codec = gradcomp.get_codec(spec)

    def run(bucket: Bucket) -> tuple[float, Bucket]:
        data, _ = encode_batch(
            [EncodeItem(codec, x, tensor_id=number) for number, x in enumerate(bucket)]
        )
        parts = split_frames(data, len(bucket))
        decoded = [
            codec.decode(part).reshape(x.shape) for part, x in zip(parts, bucket, strict=True)
        ]
        return 8 * data.size / numel(bucket), decoded

    return run


class Learning:
    """A spec with preset=basis, with its basis from earlier buckets.

    Unless it ``resumes``, encoding begins anew in each step, like the other methods here.
    """

    def __init__(self, rate: float, coder: str = "ecsq", resumes: bool = False) -> None:
        self._resumes = resumes
        self._codec = gradcomp.get_codec(f"adaptive(rate={rate},preset=basis,coder={coder})")
        self._carried: list[FloatArray | None] = []
        self._bases: list[FloatArray | None] = []

    def begin(self, steps: Sequence[Bucket]) -> None:
        """Reset, then learn from these gradients."""
        self._carried = [
            np.zeros(self._codec.carried, np.float32) if self._resumes else None for _ in steps[0]
        ]
        sizes = [self._codec.basis_size(x.shape) for x in steps[0]]
        self._bases = [np.zeros(size, np.float32) if size else None for size in sizes]
        for bucket in steps:
            self(bucket)

    def encode(self, bucket: Bucket) -> ByteArray:
        """The frames."""
        tensors = zip(bucket, self._carried, self._bases, strict=True)
        return encode_batch(
            [
                EncodeItem(self._codec, x, carried=carried, basis=basis)
                for x, carried, basis in tensors
            ]
        )[0]

    def __call__(self, bucket: Bucket) -> tuple[float, Bucket]:
        """As a `Coder`; learns from what is decoded."""
        data = self.encode(bucket)
        decoded = self.decode(data, bucket)
        self.learn(decoded)
        return 8 * data.size / numel(bucket), decoded

    def decode(self, data: ByteArray, like: Bucket) -> Bucket:
        """The decoded elements of a bucket of these shapes."""
        decoded = [np.zeros_like(x) for x in like]
        tensors = zip(split_frames(data, len(like)), decoded, self._bases, strict=True)
        decode_batch_add([DecodeItem("", self._codec, [f], y, basis) for f, y, basis in tensors])
        return decoded

    def learn(self, averages: Bucket) -> None:
        """Update the bases."""
        for average, basis in zip(averages, self._bases, strict=True):
            if basis is not None:
                self._codec.learn(average, average.shape, basis)


def ideal_ecsq(step: float) -> Coder:
    """A uniform quantizer of one step with a dead zone, at the entropy of its levels."""

    def run(bucket: Bucket) -> tuple[float, Bucket]:
        flat = np.concatenate([x.reshape(-1) for x in bucket]).astype(np.float64)
        levels = (np.sign(flat) * np.floor(np.abs(flat) / step + 0.35)).astype(np.int64)
        which = levels - levels.min()
        counts = np.bincount(which)
        centres = np.bincount(which, flat) / np.maximum(counts, 1)
        centres[-levels.min()] = 0
        share = counts[counts > 0] / flat.size
        decoded = np.split(centres[which].astype(np.float32), np.cumsum([x.size for x in bucket]))
        return float(-np.sum(share * np.log2(share))), [
            part.reshape(x.shape) for part, x in zip(decoded, bucket, strict=False)
        ]

    return run


def low_rank(rank: int) -> Coder:
    """The best approximation of a rank, with factors of 16 bits; vectors are float16."""

    def run(bucket: Bucket) -> tuple[float, Bucket]:
        numbers, decoded = 0, []
        for x in bucket:
            matrix = x.reshape(x.shape[0], -1)
            if x.ndim < 2 or rank * sum(matrix.shape) >= matrix.size:
                numbers += x.size
                decoded.append(x.astype(np.float16).astype(np.float32))
                continue
            left, values, right = np.linalg.svd(matrix, full_matrices=False)
            numbers += rank * sum(matrix.shape)
            decoded.append(((left[:, :rank] * values[:rank]) @ right[:rank]).reshape(x.shape))
        return 16 * numbers / numel(bucket), decoded

    return run


def searched(
    make: Callable[[float], Coder], start: float, power: float
) -> Callable[[float], Coder]:
    """A method without a rate, whose parameter is searched by secants of the logarithms.

    The rate is first assumed proportional to the parameter to the ``power``. The next bucket's
    search begins at the last result.
    """

    def at_rate(rate: float) -> Coder:
        parameter, slope = start, power

        def run(bucket: Bucket) -> tuple[float, Bucket]:
            nonlocal parameter, slope
            last: tuple[float, float] | None = None
            for _ in range(10):
                bits, decoded = make(parameter)(bucket)
                if abs(bits / rate - 1) < 0.01:
                    break
                point = float(np.log(parameter)), float(np.log(bits))
                if last is not None and point[0] != last[0]:
                    found = abs((point[1] - last[1]) / (point[0] - last[0]))
                    slope = float(np.sign(power)) * min(max(found, 0.3), 6.0)
                last = point
                parameter *= min(max((rate / bits) ** (1 / slope), 0.2), 5.0)
            return bits, decoded

        return run

    return at_rate


def methods(scale: float) -> Iterator[tuple[str, float, Coder]]:
    """Names, requested rates and coders; ``scale`` is the root mean square."""
    kept = {
        f"top-k, {values}": searched(
            lambda ratio, v=values: frames(
                f"globaltopk(ratio={min(ratio, 1):.6g},values={v})|rice"
            ),
            0.01,
            1.0,
        )
        for values in ("fp16", "int8", "sign")
    }
    ecsq = searched(ideal_ecsq, scale, -1.5)
    for rate in RATES:
        yield "adaptive", rate, frames(f"adaptive(rate={rate})")
        yield "adaptive, coder=polar", rate, frames(f"adaptive(rate={rate},coder=polar)")
        yield "adaptive, preset=basis", rate, Learning(rate)
        yield "adaptive, preset=basis, coder=polar", rate, Learning(rate, "polar")
        yield "adaptive, rank=0", rate, frames(f"adaptive(rate={rate},rank=0)")
        yield "polar", rate, frames(f"polar(rate={rate})")
        yield "rotate|polar", rate, frames(f"rotate|polar(rate={rate})")
        for name, at_rate in kept.items():
            if rate <= 1:
                yield name, rate, at_rate(rate)
        yield "ECSQ, ideal", rate, ecsq(rate)
    for rank in (1, 2, 4, 8):
        yield "low rank, fp16 (PowerSGD's best)", rank, low_rank(rank)
    for levels in (1, 3):
        yield "QSGD", levels, frames(f"qsgd(levels={levels})|rans")
    for bits in (1, 2):
        yield "EDEN", bits, frames(f"eden(bits={bits},unbiased=false)")
