"""Payloads of `adaptive`, decoded with interpreted kernels: python adaptive_parts.py

The second decoder (tests/golden/decoder.py) reads headers; its runs of rANS and its products are kernels. Prints the
number of payloads, of levels and of factors' products that had the core's bits.
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"

import decoder
import numpy as np
import torch

import gpu.quick_interpreter  # noqa: F401
from gpu.adaptive_kernels import levels_kernel, product_kernel
from gradcomp import get_codec
from gradcomp_torch.gpu.bucket import EXACT

counts = {"levels": 0, "products": 0}
lanes = set()


class KernelStream(decoder.AdaptiveStream):
    """A run of rANS whose matrices a kernel decodes."""

    def matrix(self, rows: int, cols: int, points: np.ndarray | None = None) -> np.ndarray:
        begin = self.end % 2  # bytes of excesses are before the words
        words = torch.from_numpy(np.frombuffer(self.data, "<u2", self.end // 2, begin).copy())
        starts = np.zeros((16, 16), np.int32)
        starts[:, 1:] = np.cumsum(self.frequencies, axis=1)
        states = torch.tensor(self.states, dtype=torch.int32)
        left = torch.tensor([self.end // 2], dtype=torch.int32)
        levels = torch.zeros((rows, cols), dtype=torch.int8)
        means = torch.full((cols,), 410, dtype=torch.int32)
        levels_kernel[(1,)](
            *(words, states, left, torch.from_numpy(starts), levels, means, rows, cols),
            LANES=len(self.states),
            num_warps=1,
            **EXACT,
        )
        self.states, self.end = states.tolist(), 2 * int(left) + begin
        counts["levels"] += levels.numel()
        lanes.add(len(self.states))
        return levels.numpy().astype(np.int64)


def product(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """See `decoder.rank_by_rank`."""
    p, q = np.ascontiguousarray(p), np.ascontiguousarray(q)
    (rank, rows), (_, cols) = p.shape, q.shape
    out = torch.zeros((rows, cols))
    product_kernel[(-(-rows // 16), -(-cols // 64))](
        *(torch.from_numpy(p), torch.from_numpy(q), out, rank, rows, cols), R=16, C=64, **EXACT
    )
    counts["products"] += 1
    return out.numpy()


def main() -> None:
    """Compare payloads of matrices with and without a low-rank part, of few and of many states."""
    decoder.AdaptiveStream = KernelStream
    decoder.rank_by_rank = product
    rng = np.random.default_rng(5)
    payloads = 0
    for shape, rank, params in (
        ((20, 70), 0, "rate=0.5,rank=0"),
        ((50, 33), 2, "rate=1,rank=2"),
        ((40, 64), 3, "rate=2,rank=auto"),
        ((33, 400), 0, "rate=4,rank=0"),
        ((7, 90), 1, "rate=2,rank=1"),
    ):
        x = rng.standard_normal(shape) * np.exp(rng.standard_normal((shape[0], 1)))
        for _ in range(rank):
            x += 3 * np.outer(rng.standard_normal(shape[0]), rng.standard_normal(shape[1]))
        grad = x.astype(np.float32)
        codec = get_codec(f"adaptive({params})")
        frame = codec.encode(grad, seed=1, step=2, tensor_id=3)
        decoded = decoder.decode(bytes(frame), codec.spec)
        wanted = codec.decode(frame)
        if decoded.tobytes() != wanted.tobytes():
            raise AssertionError(f"{shape}, {params}: elements differ")
        payloads += 1
    print(f"{payloads} payloads, {counts['levels']} levels, {counts['products']} products")
    print(f"{sorted(lanes)} states")


if __name__ == "__main__":
    main()
