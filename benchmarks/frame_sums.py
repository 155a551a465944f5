"""Time to add the frames of several ranks: frame by frame, and piece by piece as `decode_batch_add` does.

  python benchmarks/frame_sums.py --elements 1e8 --ranks 4

One thread. Several sums take turns, so that no cache holds them. Times are in nanoseconds for each element
of the sum, medians of the repetitions, beside a copy of the sum in the same run.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from gradcomp import Codec, DecodeItem, _core, decode_batch_add, get_codec

SPECS = ("sign", "int8", "terngrad", "fp16", "topk(ratio=0.01)", "topk(ratio=0.001)")
BYTES = 400e6
"""Of all sums together."""


def one_by_one(codec: Codec, frames: Sequence[np.ndarray], out: np.ndarray) -> None:
    """Zeros, to which each frame is added."""
    _core.zero(out)
    for frame in frames:
        codec.decode_add(frame, out, 1.0 / len(frames))


def together(codec: Codec, frames: Sequence[np.ndarray], out: np.ndarray) -> None:
    """All frames in one call."""
    decode_batch_add([DecodeItem("sum", codec, frames, out, replaces=True)], 1.0 / len(frames))


def copied(x: np.ndarray, out: np.ndarray) -> None:
    """A copy of the size of a sum."""
    np.copyto(out, x)


def nanoseconds(
    add: Callable[[np.ndarray], object], sums: Sequence[np.ndarray], times: int
) -> float:
    """The median time of an element."""
    samples = []
    for _ in range(1 + times):
        began = time.perf_counter()
        for out in sums:
            add(out)
        samples.append(time.perf_counter() - began)
    return 1e9 * statistics.median(samples[1:]) / sum(out.size for out in sums)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--elements", type=float, default=1e8, help="default: %(default)g")
    parser.add_argument("--ranks", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--repetitions", type=int, default=7, help="default: %(default)s")
    options = parser.parse_args()
    _core.set_thread_count(1)
    n = int(options.elements)
    x = np.random.default_rng(0).standard_normal(n, np.float32)
    sums = [np.zeros(n, np.float32) for _ in range(max(1, round(BYTES / (4 * n))))]
    copy = nanoseconds(partial(copied, x), sums, options.repetitions)
    print(f"a copy: {copy:.3f} ns an element\n")
    print("| spec | frame by frame, ns | piece by piece, ns | of a copy |\n|---|---:|---:|---:|")
    for spec in SPECS:
        codec = get_codec(spec)
        frames = [codec.encode(np.roll(x, rank)).copy() for rank in range(options.ranks)]
        ways = [
            nanoseconds(partial(way, codec, frames), sums, options.repetitions)
            for way in (one_by_one, together)
        ]
        cells = [f"`{spec}`", *(f"{way:.3f}" for way in ways), f"{ways[1] / copy:.2f}"]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
