"""PowerSGD's products by torch beside the core's, as a process: python low_rank.py

Prints the number of matrices that were compared, and of steps of ranks with and without a device.
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch

import gpu.quick_interpreter  # noqa: F401
from gpu.factor_comparisons import Draw, draw_from
from gradcomp.codec.devices import HOST
from gradcomp.exchange.algorithms.factor_device import HOST_PRODUCTS, ApplyItem, MultiplyItem
from gradcomp_torch.gpu.device import TorchDevice
from support.mixed_ranks import RANKS, average, gradients, ranks_of
from support.pipelines import config_of

SHAPES = [(1, 1), (3, 70), (64, 5), (40, 129), (257, 33)]
SPECS = [
    "powersgd(rank=2,start_step=1)",
    "powersgd(rank=2,start_step=0,variant=paper,values=fp16)",
    "powersgd(rank=3,start_step=0,iters_per_step=2)",
]


def main() -> None:
    """Compare products, sums and steps."""
    device = TorchDevice(torch.device("cpu"))
    rng = np.random.default_rng(9)

    draw = draw_from(rng)
    print(f"{compare_products(device, rng)} products, {compare_sums(device, draw)} sums", end=", ")
    print(f"{compare_ranks(device)} steps")


def compare_products(device: TorchDevice, rng: np.random.Generator) -> int:
    """All products of a call: matrices take up gradients to the bit; factors are near."""
    here, there, matrices = [], [], []
    for number, (rows, cols) in enumerate([*SHAPES, *SHAPES]):
        transposed, rank = number % 2 == 1, 1 + number % 3
        m, grad = (rng.standard_normal((rows, cols), np.float32) for _ in "mg")
        factor = rng.standard_normal(rank * (rows if transposed else cols), np.float32)
        outs = [np.empty(rank * (cols if transposed else rows), np.float32) for _ in "ab"]
        tensors = [torch.from_numpy(one.copy()) for one in (m, grad)]
        arrays = [device.array(one) for one in tensors]
        used = [None, None] if number % 4 == 3 else [grad, arrays[1]]
        beta = 1.0 if number % 2 else 0.9
        here.append(MultiplyItem(m, used[0], beta, factor, transposed, outs[0]))
        there.append(MultiplyItem(arrays[0], used[1], beta, factor, transposed, outs[1]))
        matrices.append((m, tensors[0]))
    HOST_PRODUCTS.multiply(here)()
    device.multiply(there)()
    for one, other in zip(here, there, strict=True):
        np.testing.assert_allclose(other.out, one.out, rtol=1e-4, atol=1e-4)
    for m, tensor in matrices:
        assert tensor.numpy().tobytes() == m.tobytes(), "beta * M + gradient"
    return len(here)


def compare_sums(device: TorchDevice, draw: Draw) -> int:
    """Averages and what matrices keep, of any values, to the bit."""
    here, there, results = [], [], []
    for number, (rows, cols) in enumerate([*SHAPES, *SHAPES]):
        rank = 1 + number % 5
        m, mean = draw(rows, cols), draw(rows, cols)
        tensors = [torch.from_numpy(one.copy()) for one in (m, mean)]
        arrays = [device.array(one) for one in tensors]
        p, q, own_q = draw(rank * rows), draw(rank * cols), draw(rank * cols)
        own_q = q if number % 3 == 0 else own_q
        rest = (number % 2 == 1, p, q, p, own_q, number % 5 != 4)
        here.append(ApplyItem(m, mean, *rest))
        there.append(ApplyItem(arrays[0], arrays[1], *rest))
        results.append(((m, mean), tensors))
    with np.errstate(all="ignore"):
        HOST_PRODUCTS.apply(here)
    device.apply(there)
    for expected, found in results:
        for one, tensor in zip(expected, found, strict=True):
            assert tensor.numpy().tobytes() == one.tobytes(), f"a matrix of {one.shape}"
    return len(here)


def compare_ranks(device: TorchDevice) -> int:
    """Ranks with and without a device have the same averages, near those of ranks without one."""
    compared = 0
    for spec in SPECS:
        config = config_of(spec, device="auto")
        mixed, alone = ranks_of(config), ranks_of(config)
        for step in range(4):
            grads = gradients(step)
            found = average(mixed, [device, HOST, device], grads)
            expected = average(alone, [HOST] * RANKS, grads)
            assert all(one == found[0] for one in found), f"{spec}: averages differ by rank"
            for name, data in found[0].items():
                wanted = np.frombuffer(expected[0][name], np.float32)
                # With factors of 16 bits a last bit may be another one.
                limit = 1e-2 if "fp16" in spec else 1e-4
                np.testing.assert_allclose(np.frombuffer(data, np.float32), wanted, atol=limit)
            compared += 1
        there = mixed[0].on_device(mixed[0].resolve("fc", (40, 25)), device)
        assert there, f"{spec} stays on the host"
    return compared


if __name__ == "__main__":
    main()
