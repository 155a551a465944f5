"""Comparisons of factors that stay on a device with numpy and the core; see comparisons.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gradcomp import _core
from gradcomp.codec.arrays import FloatArray
from gradcomp.exchange.algorithms.factor_device import (
    HOST_PRODUCTS,
    ApplyItem,
    MultiplyItem,
    ProductItem,
    SettleItem,
)
from gradcomp_torch.devices import tensor_of
from gradcomp_torch.gpu import factors
from gradcomp_torch.gpu.bucket import EXACT
from gradcomp_torch.gpu.kernels import low_rank as kernels
from gradcomp_torch.gpu.peer_device import DirectDevice

LANES = 64
EARLIER = 7.0
"""Elements of factors before a phase."""

Draw = Callable[..., FloatArray]


def draw_from(rng: np.random.Generator) -> Draw:
    """Draws numbers of many magnitudes."""

    def draw(*shape: int) -> FloatArray:
        values = rng.standard_normal(shape, np.float32)
        values *= np.float32(10.0) ** rng.integers(-30, 6, shape).astype(np.float32)
        values[rng.random(shape) < 0.1] = -0.0
        return values

    return draw


def bases(rng: np.random.Generator, count: int, device: torch.device) -> Iterator[str]:
    """Bases to the last bit of float64, in the documented order of sums; and near the core's."""
    given = [_vectors(rng) for _ in range(count)]
    vectors = [torch.tensor(one, device=device) for one in given]
    wide = [torch.zeros(one.shape, dtype=torch.float64, device=device) for one in given]
    table = np.zeros((count, kernels.FACTOR_FIELDS.value), np.int64)
    for row, one, other in zip(table, vectors, wide, strict=True):
        rank, n = one.shape
        row[:4] = one.data_ptr(), other.data_ptr(), n, rank
    there = torch.from_numpy(table).to(device)
    kernels.orthonormalize_kernel[(count,)](there, B=LANES, num_warps=factors.BASIS_WARPS, **EXACT)
    for before, one, other in zip(given, vectors, wide, strict=True):
        name = f"a basis of {before.shape}"
        expected = _gram_schmidt(before)
        if other.cpu().numpy().tobytes() != expected.tobytes():
            yield f"{name} differs before it is rounded"
        if one.cpu().numpy().tobytes() != expected.astype(np.float32).tobytes():
            yield f"{name} differs"
        core = before.reshape(-1)
        _core.orthonormalize(core, len(before), "gram_schmidt")
        if not np.allclose(one.cpu().numpy().reshape(-1), core, rtol=0, atol=1e-6):
            yield f"{name} differs from the core's"


def _vectors(rng: np.random.Generator) -> FloatArray:
    rank = int(rng.integers(1, 5))
    n = int(rng.integers(rank, 200))
    vectors: FloatArray = rng.standard_normal((rank, n), np.float32)
    match rng.integers(0, 6):
        case 0:
            vectors[rng.integers(0, rank)] = 0
        case 1:
            vectors[rng.integers(0, rank)] = 3 * vectors[0]
        case 2:
            vectors[rng.random((rank, n)) < 0.1] = rng.choice([np.nan, np.inf, -np.inf])
        case 3:
            vectors[-1] = vectors[0] + np.float32(0.1) * vectors[-1]  # most is projected out
    return vectors


def _gram_schmidt(vectors: FloatArray) -> npt.NDArray[np.float64]:
    """As csrc/linalg/orthonormalize.cpp, with LANES partial sums in place of eight."""
    v = np.where(np.isfinite(vectors), vectors, 0).astype(np.float64)

    def project_out(c: int) -> None:
        for k in range(c):
            v[c] += -_dot(v[k], v[c]) * v[k]

    for c in range(len(v)):
        before = np.sqrt(_dot(v[c], v[c]))
        project_out(c)
        left = np.sqrt(_dot(v[c], v[c]))
        further = 0
        if left <= 1e-7 * before:
            taken = np.zeros(v.shape[1])
            for k in range(c):
                taken += v[k] * v[k]
            v[c] = 0
            v[c, taken.argmin()] = 1
            further = 2
        elif left < 0.5 * before:
            further = 1
        for _ in range(further):
            project_out(c)
        v[c] *= 1 / np.sqrt(_dot(v[c], v[c]))
    return v


def _dot(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> Any:
    products = np.zeros(-(-x.size // LANES) * LANES)
    products[: x.size] = x * y
    sums = np.zeros(LANES)
    for one in products.reshape(-1, LANES):
        sums += one
    while sums.size > 1:
        sums = sums[: sums.size // 2] + sums[sums.size // 2 :]
    return sums[0]


@dataclass
class _Phase:
    """A phase of a bucket on the device, and beside it on the host.

    Attributes:
        here: of the host, whose factors are bases already.
        means: averages of any values.
        results: averages of gradients, before the phase.
    """

    device: DirectDevice
    products: list[ProductItem]
    here: list[MultiplyItem]
    means: list[FloatArray]
    results: list[FloatArray]
    settled: list[SettleItem]


def matrices(
    rng: np.random.Generator, count: int, seed: int, device: torch.device
) -> Iterator[str]:
    """Products are near the core's, and all that follows from averages has its bits.

    On a GPU the phase comes three times: launches are then recorded, and replayed.
    """
    factors.BLOCK, factors.ROWS, factors.COLUMNS = 64, 4, 8
    phase = _phase(rng, count, seed, DirectDevice(device))
    given = [
        (tensor, tensor.clone())
        for item, settle in zip(phase.products, phase.settled, strict=True)
        for tensor in map(tensor_of, (item.m, item.factor, settle.average or settle.kept))
    ]
    before = [
        (work.m.copy(), result.copy())
        for work, result in zip(phase.here, phase.results, strict=True)
    ]
    for _ in range(1 if device.type == "cpu" else 3):
        for tensor, contents in given:
            tensor.copy_(contents)
        for work, result, (m, average) in zip(phase.here, phase.results, before, strict=True):
            work.m[:], result[:] = m, average
        yield from _differences(phase, seed)


def _phase(rng: np.random.Generator, count: int, seed: int, device: DirectDevice) -> _Phase:
    draw = draw_from(np.random.default_rng(seed))
    applies, begun = seed % 5 != 4, seed % 3 == 2
    phase = _Phase(device, [], [], [], [], [])
    for number in range(count):
        rows, cols = (int(one) for one in rng.integers(1, 30, 2))
        rank, left = int(rng.integers(1, 1 + min(rows, cols, 4))), bool(rng.integers(0, 2))
        m, grad = (rng.standard_normal((rows, cols), np.float32) for _ in "mg")
        factor = rng.standard_normal(rank * (rows if left else cols), np.float32)
        there = [device.from_host(one) for one in (m, grad, factor)]
        beta = 1.0 if seed % 4 else 0.9
        with_grad = number % 4 != 3
        item = ProductItem(there[0], there[1] if with_grad else None, beta, there[2], rank, left)
        _core.orthonormalize(factor, rank, "gram_schmidt")
        out = np.empty(rank * (cols if left else rows), np.float32)
        mean, result = draw(out.size), draw(rows, cols)
        if number % (1 + seed % 7) == 0:
            mean[:: 5 + seed % 3] = np.inf if seed % 2 else np.nan
        if number % 3 == 1:
            mean[-(mean.size // rank) :] = np.nan if seed % 2 else 0
        average = device.from_host(result) if applies else None
        kept = device.from_host(np.full(out.size, EARLIER, np.float32))
        phase.products.append(item)
        phase.here.append(MultiplyItem(m, grad if with_grad else None, beta, factor, left, out))
        phase.means.append(mean)
        phase.results.append(result)
        phase.settled.append(SettleItem(item.m, item.factor, left, kept, average, begun))
    return phase


def _differences(phase: _Phase, seed: int) -> Iterator[str]:
    device, to_host = phase.device, phase.device.to_host
    HOST_PRODUCTS.multiply(phase.here)()
    sending = device.begin_products("", phase.products, half=False)
    found = np.split(
        sending.exchange.products.cpu().numpy(),
        np.cumsum([one.out.size for one in phase.here])[:-1],
    )
    products = []
    for work, item, product in zip(phase.here, phase.products, found, strict=True):
        products.append(product.copy())
        if not np.allclose(product, work.out, rtol=1e-4, atol=1e-4):
            yield f"a matrix of {work.m.shape}: its product differs"
        if to_host(item.m).tobytes() != work.m.tobytes():
            yield f"a matrix of {work.m.shape}: beta * M + gradient differs"
    if seed % 6 == 0:
        for own in products[::2]:
            own[-1] = 2.0**60 if seed % 4 else -np.inf
        sending.exchange.products.copy_(torch.from_numpy(np.concatenate(products)))
    sending.data.copy_(torch.from_numpy(np.concatenate(phase.means)))
    applied, of_average = [], seed % 2 == 1
    for work, item, settle, own, mean, result in zip(
        phase.here, phase.products, phase.settled, products, phase.means, phase.results, strict=True
    ):
        factor = to_host(item.factor)
        sent = mean if of_average else own
        four = (factor, mean, factor, sent) if work.transposed else (mean, factor, sent, factor)
        safe = bool(max(sent.max(), -sent.min()) < 2.0**60)
        applied.append(ApplyItem(work.m, result, settle.begun, *four, safe))
    device.settle(sending, sending, phase.settled, of_average=of_average)
    if phase.settled[0].average is not None:
        HOST_PRODUCTS.apply(applied)
    for item, host, settle, mean in zip(
        phase.products, applied, phase.settled, phase.means, strict=True
    ):
        name = f"a matrix of {host.m.shape}"
        expected = mean.copy()
        _core.zero_nonfinite(expected)
        vectors = expected.reshape(item.rank, -1)
        vectors[~vectors.any(axis=1)] = EARLIER
        if to_host(settle.kept).tobytes() != expected.tobytes():
            yield f"{name}: the kept factor differs"
        if to_host(settle.m).tobytes() != host.m.tobytes():
            yield f"{name}: what is unsent differs"
        if settle.average is not None and not _same(to_host(settle.average), host.average):
            yield f"{name}: the average differs"


def _same(found: FloatArray, expected: FloatArray) -> bool:
    """To the bit, but for the bits of a NaN."""
    nan = np.isnan(expected)
    return (
        bool((np.isnan(found) == nan).all()) and found[~nan].tobytes() == expected[~nan].tobytes()
    )
