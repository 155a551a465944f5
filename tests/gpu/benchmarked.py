"""The parts of benchmarks/gpu.py for a GPU, on CPU tensors: python benchmarked.py FOLDER

Kernels are interpreted, a clock of the host stands for CUDA's events, and processes average on Gloo. Times
mean nothing. Prints the table; the picture is in the folder.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
import gpu.quick_interpreter  # noqa: F401  # before benchmarks/gpu.py hides this package

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import torch

from gpulab import speeds
from gpulab.clock import Work
from gpulab.report import draw, table
from gpulab.steps import whole_steps

NUMELS = (3000, 5000)


class HostClock:
    """Runs each work once."""

    device = torch.device("cpu")

    def launched(self, works: Sequence[Work]) -> float:
        begin = time.perf_counter()
        for work in works:
            work()
        return 1e3 * (time.perf_counter() - begin) / len(works)

    def in_graph(self, works: Sequence[Work]) -> float:
        return self.launched(works)

    def host(self, work: Work, after: Work = lambda: None) -> float:
        passed = self.launched([work])
        after()
        return passed

    def synchronize(self) -> None:
        pass


def main(folder: Path) -> None:
    clock = HostClock()
    speeds.CACHE = 14 * NUMELS[1]  # so that several works take turns
    copied = speeds.copies(clock, 2**16)
    results = {
        "machine": "CPU tensors, interpreted kernels",
        "copies": copied,
        "kernels": speeds.kernels(clock, NUMELS, copied["device"]),
        "frames": speeds.frames(clock, NUMELS, 3),
        "steps": whole_steps("cpu", quick=True),
    }
    draw(results, folder / "results.png")
    print(table(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
