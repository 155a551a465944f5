"""Encode time of BytePS' own compressors beside ours at equal settings, in one process.

  OMP_NUM_THREADS=1 python benchmarks/byteps_encode.py

Both come from BytePS' registry and compress the same partition of a million normal floats, in
turns. No cluster is started.
"""

from __future__ import annotations

import ctypes
import os
import statistics
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

_DITHERING = {"compressor_k": 4, "seed": 7, "dithering_normalize": 0}
PAIRS: tuple[tuple[str, dict[str, object], str], ...] = (
    ("onebit", {"compressor_onebit_scaling": "true"}, "sign"),
    ("topk", {"compressor_k": 10000}, "topk(k=10000)"),
    ("randomk", {"compressor_k": 10000, "seed": 7}, "randomk(k=10000)"),
    ("dithering", {**_DITHERING, "dithering_partition": 0}, "dither(levels=4)"),
    ("dithering", {**_DITHERING, "dithering_partition": 1}, "dither(levels=4,partition=natural)"),
)
NUMEL = 1_000_000
TURNS, CALLS = 9, 3


def main() -> None:
    """Measure, and print a table."""
    # The plug-in requires a worker's variables; nothing is sent.
    os.environ.update(DMLC_ROLE="worker", DMLC_NUM_WORKER="1", DMLC_WORKER_ID="0")
    import byteps.torch  # noqa: F401  its library has the registry

    from byteps_compressors import native
    from byteps_compressors.build import library

    native.load()
    function = ctypes.CDLL(
        str(library("byteps_encode", [Path(__file__).with_suffix(".cpp")]))
    ).byteps_encode
    function.restype = ctypes.c_size_t
    x = np.random.default_rng(0).standard_normal(NUMEL, np.float32)

    def run(arguments: Mapping[str, object]) -> tuple[list[float], int]:
        seconds = (ctypes.c_double * (CALLS + 1))()
        text = f"{len(arguments)} " + " ".join(f"{key} {value}" for key, value in arguments.items())
        pointer = x.ctypes.data_as(ctypes.c_void_p)
        size = function(text.encode(), pointer, NUMEL, seconds, CALLS + 1)
        return list(seconds)[1:], size  # the first call allocates

    table = Table(box=SIMPLE_HEAD)
    for heading in ("BytePS", "ms", "bytes", "gradcomp", "ms", "bytes", "times faster"):
        table.add_column(heading, justify="left" if heading in ("BytePS", "gradcomp") else "right")
    for name, settings, spec in PAIRS:
        theirs = {"compressor_type": name, **settings}
        ours = {"compressor_type": "gradcomp", "gradcomp_spec": spec}
        times: tuple[list[float], list[float]] = ([], [])
        sizes = [0, 0]
        for _ in range(TURNS):
            for i, arguments in enumerate((theirs, ours)):
                seconds, sizes[i] = run(arguments)
                times[i].extend(seconds)
        a, b = map(statistics.median, times)
        shown = ", ".join(f"{key.removeprefix('compressor_')}={v}" for key, v in settings.items())
        figures = (f"{1e3 * a:.3f}", str(sizes[0]), spec, f"{1e3 * b:.3f}", str(sizes[1]))
        table.add_row(f"{name}: {shown}", *figures, f"{a / b:.1f}")
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
