"""Bytes that a rank receives for one average, by exchange pattern and number of ranks.

Frames are counted as the loopback delivers them, those of the rank itself left out. Of an
all-reduce of P bytes a rank receives 2 (n - 1) / n P, as in a ring.
"""

from __future__ import annotations

import argparse
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
from codec_figures import save
from matplotlib.figure import Figure

from gradcomp import Config, Pipeline
from gradcomp.arrays import FloatArray
from gradcomp.loopback import run_rounds
from gradcomp.rounds import AllReduce, Request

RANKS = (2, 4, 8, 16)
SHAPE = (1024, 1024)
ROWS = [
    ("identity", "reduce"),
    ("fp16", "reduce"),
    ("fp16", "gather"),
    ("fp16", "sra"),
    ("int8", "gather"),
    ("int8", "sra"),
    ("topk(ratio=0.01)", "gather"),
    ("topk(ratio=0.01)", "sra"),
    ("sign", "gather"),
    ("sign", "sra"),
    ("signsgd_mv", "auto"),
]


def received(
    inner: Generator[Request, Any, FloatArray], pipeline: Pipeline, nbytes: list[float]
) -> Generator[Request, Any, FloatArray]:
    """The round itself; adds up what it receives from other ranks."""
    rank, ranks = pipeline.rank, pipeline.world_size
    try:
        request = next(inner)
        while True:
            reply = yield request
            if isinstance(request, AllReduce):
                nbytes[rank] += 2 * (ranks - 1) / ranks * request.nbytes
            else:
                nbytes[rank] += sum(part.nbytes for i, part in enumerate(reply) if i != rank)
            request = inner.send(reply)
    except StopIteration as stop:
        average: FloatArray = stop.value
        return average


def measure(spec: str, exchange: str, ranks: int) -> tuple[float, float]:
    """Bytes that the rank with most of them receives, and the vNMSE of the average.

    Gradients are standard normal, half of their variance shared by all ranks.
    """
    compress = {"default": spec, "exchange": exchange}
    config = Config.from_mapping({"version": 1, "compress": compress})
    rng = np.random.default_rng(0)
    shared = rng.standard_normal(SHAPE, np.float32)
    grads = [
        np.float32(0.5**0.5) * (shared + rng.standard_normal(SHAPE, np.float32))
        for _ in range(ranks)
    ]
    pipelines = [Pipeline(config, rank, ranks) for rank in range(ranks)]
    nbytes = [0.0] * ranks
    averages = run_rounds(
        [
            received(one.round("w", grad), one, nbytes)
            for one, grad in zip(pipelines, grads, strict=True)
        ]
    )
    exact = np.mean(grads, axis=0, dtype=np.float64).reshape(-1)
    error = float(np.sum((averages[0] - exact) ** 2) / np.sum(exact**2))
    return max(nbytes), error


def draw(table: dict[tuple[str, str], list[float]]) -> Figure:
    """Bytes over ranks, both by powers of two; a colour for each spec, a dash for each pattern."""
    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.subplots()
    specs = list(dict.fromkeys(spec for spec, _ in table))
    dashes = {"reduce": "-.", "gather": ":", "sra": "-", "auto": "--"}
    for (spec, exchange), values in table.items():
        label = spec if exchange == "auto" else f"{spec}, {exchange}"
        colour = f"C{specs.index(spec)}"
        axes.plot(RANKS, values, dashes[exchange], color=colour, marker=".", label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(RANKS, [str(ranks) for ranks in RANKS])
    axes.set_xlabel("ranks")
    axes.set_ylabel("bytes received per rank and element")
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def main() -> None:
    """Print the table, and draw it where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plot", type=Path, metavar="PNG")
    arguments = parser.parse_args()
    numel = SHAPE[0] * SHAPE[1]
    print(f"one tensor of {numel:,} elements; bytes per element that a rank receives")
    print("vNMSE of the average at the least and at the most ranks; a vote has no scale")
    heads = "".join(f"{f'{ranks} ranks':>10}" for ranks in RANKS)
    print(f"{'spec':18}{'exchange':10}{heads}{'vNMSE':>10}{'vNMSE':>10}")
    table = {}
    for spec, exchange in ROWS:
        results = [measure(spec, exchange, ranks) for ranks in RANKS]
        table[spec, exchange] = [nbytes / numel for nbytes, _ in results]
        values = "".join(f"{value:10.3f}" for value in table[spec, exchange])
        errors = [results[0][1], results[-1][1]] if exchange != "auto" else []
        print(f"{spec:18}{exchange:10}{values}{''.join(f'{error:10.2g}' for error in errors)}")
    if arguments.plot:
        save(draw(table), arguments.plot)


if __name__ == "__main__":
    main()
