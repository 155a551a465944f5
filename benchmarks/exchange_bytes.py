"""Bytes that a rank receives for one average, by exchange pattern and number of ranks.

Frames are counted as the loopback delivers them, without the rank's own. Of an all-reduce of P
bytes a rank receives 2 (n - 1) / n P, as in a ring. With two_level the count covers the first rank
of a node and its traffic from other nodes: all that enters the node.
"""

from __future__ import annotations

import argparse
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from codec_figures import save
from gradcomp import Config, Pipeline
from gradcomp.codec.arrays import FloatArray
from gradcomp.exchange.rounds import AllReduce, Request
from gradcomp.runtime.loopback import run_rounds

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
    ("topk(ratio=0.01)", "sparse_allreduce"),
    ("sign", "gather"),
    ("sign", "sra"),
    ("signsgd_mv", "auto"),
    ("chunk_allreduce(ratio=0.01)", "auto"),
]
TWO_LEVEL = [
    ("fp16", "two_level(reduce)"),
    ("int8", "two_level(gather)"),
    ("int8", "two_level(sra)"),
    ("topk(ratio=0.01)", "two_level(gather)"),
    ("topk(ratio=0.01)", "two_level(sra)"),
    ("topk(ratio=0.01)", "two_level(sparse_allreduce)"),
]
RANKS_PER_NODE = (2, 4)
HALF = 0
"""In place of the ranks in a node: there are two nodes, each with half of the ranks."""

Row = tuple[str, str, int]
"""A spec, its exchange, and the ranks in a node."""


def ranks_in_node(row: Row, ranks: int) -> int:
    """The value of a row at a number of ranks."""
    return ranks // 2 if row[2] == HALF else row[2]


def received(
    inner: Generator[Request, Any, FloatArray], pipeline: Pipeline, nbytes: list[float]
) -> Generator[Request, Any, FloatArray]:
    """The round itself; adds up the bytes received from ranks of other nodes."""
    try:
        request = next(inner)
        while True:
            reply = yield request
            rank, ranks = pipeline.rank, pipeline.world_size
            if request.group == "leaders":
                rank, ranks = pipeline.node.index, pipeline.node.count
            if reply is None or request.group == "node":
                pass
            elif isinstance(request, AllReduce):
                nbytes[pipeline.rank] += 2 * (ranks - 1) / ranks * request.nbytes
            else:
                others = (part for i, part in enumerate(reply) if i != rank)
                nbytes[pipeline.rank] += sum(part.nbytes for part in others)
            request = inner.send(reply)
    except StopIteration as stop:
        average: FloatArray = stop.value
        return average


def gradients(ranks: int, *, uneven: bool = False) -> list[FloatArray]:
    """Standard normal, half of their variance shared by all ranks; uneven ones are 50 times as large
    in the first of 64 parts."""
    rng = np.random.default_rng(0)
    shared = rng.standard_normal(SHAPE, np.float32)
    scale = np.full((SHAPE[0], 1), 0.5**0.5, np.float32)
    if uneven:
        scale[: SHAPE[0] // 64] *= 50
    return [scale * (shared + rng.standard_normal(SHAPE, np.float32)) for _ in range(ranks)]


def exchange(
    pipelines: Sequence[Pipeline], grads: Sequence[FloatArray], ranks_per_node: int = 1
) -> tuple[float, FloatArray]:
    """Average a tensor: the largest number of bytes received by a rank, and the average."""
    nbytes = [0.0] * len(grads)
    rounds = [
        received(pipeline.round("w", grad), pipeline, nbytes)
        for pipeline, grad in zip(pipelines, grads, strict=True)
    ]
    averages = run_rounds(rounds, ranks_per_node)
    return max(nbytes), averages[0]


def error_of(average: FloatArray, grads: Sequence[FloatArray]) -> float:
    """The vNMSE of an average."""
    exact = np.mean(grads, axis=0, dtype=np.float64).reshape(-1)
    return float(np.sum((average - exact) ** 2) / np.sum(exact**2))


def measure(row: Row, ranks: int, *, uneven: bool = False) -> tuple[float, float]:
    """The largest number of bytes received by a rank, and the vNMSE of the average."""
    spec, pattern, _ = row
    ranks_per_node = ranks_in_node(row, ranks)
    compress = {"default": spec, "exchange": pattern, "ranks_per_node": ranks_per_node}
    config = Config.from_mapping({"version": 1, "compress": compress})
    grads = gradients(ranks, uneven=uneven)
    pipelines = [Pipeline(config, rank, ranks) for rank in range(ranks)]
    nbytes, average = exchange(pipelines, grads, ranks_per_node)
    return nbytes, error_of(average, grads)


def draw(table: dict[Row, dict[int, float]]) -> Figure:
    """Bytes over ranks, both by powers of two; a colour for each spec, a dash for each pattern."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    specs = list(dict.fromkeys(spec for spec, *_ in table))
    dashes = {"reduce": "-.", "gather": ":", "sra": "-", "auto": "--", "sparse_allreduce": "--"}
    for (spec, exchange, ranks_per_node), values in table.items():
        between = exchange.removeprefix("two_level(").removesuffix(")")
        label = spec if exchange == "auto" else f"{spec}, {between}"
        if ranks_per_node != 1:
            label += ", 2 nodes" if ranks_per_node == HALF else f", {ranks_per_node} ranks a node"
        (left if ranks_per_node == 1 else right).plot(
            list(values),
            list(values.values()),
            dashes[between],
            color=f"C{specs.index(spec)}",
            marker={HALF: "x", 4: "s"}.get(ranks_per_node, "."),
            label=label,
        )
    left.set_ylabel("bytes received per element")
    for axes, title in ((left, "by a rank"), (right, "two_level: by a node")):
        axes.set_title(title)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(RANKS, [str(ranks) for ranks in RANKS])
        axes.set_xlabel("ranks")
        axes.legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def main() -> None:
    """Print the table, and draw it on request."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plot", type=Path, metavar="PNG")
    arguments = parser.parse_args()
    numel = SHAPE[0] * SHAPE[1]
    print(f"one tensor of {numel:,} elements; bytes per element that a rank receives, with")
    print(
        "two_level a node of so many ranks, or of half of them; vNMSE of the average at the least"
    )
    print("and at the most ranks, and there of uneven gradients; a vote has no scale")
    heads = "".join(f"{f'{ranks} ranks':>10}" for ranks in RANKS)
    print(f"{'spec':28}{'exchange':28}{'node':4}{heads}{'vNMSE':>10}{'vNMSE':>10}{'uneven':>10}")
    rows: list[Row] = [(spec, exchange, 1) for spec, exchange in ROWS]
    sizes = (*RANKS_PER_NODE, HALF)
    rows += [(spec, exchange, size) for size in sizes for spec, exchange in TWO_LEVEL]
    table = {}
    for row in rows:
        spec, exchange, size = row
        results = {ranks: measure(row, ranks) for ranks in RANKS if ranks >= size}
        table[row] = {
            ranks: nbytes / numel
            for ranks, (nbytes, _) in results.items()
            if ranks > ranks_in_node(row, ranks)
        }
        values = "".join(
            f"{table[row][ranks]:10.3f}" if ranks in table[row] else f"{'-':>10}" for ranks in RANKS
        )
        errors = ""
        if spec != "signsgd_mv":
            found = [error for _, error in results.values()]
            uneven = measure(row, RANKS[-1], uneven=True)[1]
            errors = "".join(f"{error:10.2g}" for error in (found[0], found[-1], uneven))
        node = "half" if size == HALF else str(size)
        print(f"{spec:28}{exchange:28}{node:>4}{values}{errors}", flush=True)
    if arguments.plot:
        save(draw(table), arguments.plot)


if __name__ == "__main__":
    main()
