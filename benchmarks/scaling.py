"""Bytes, error and processor time of a step by the number of ranks, with ``exchange: auto``.

Up to 8 ranks are measured in the loopback, more are computed: bytes by the formulas with which
`auto` chooses. Bytes are received by a rank, as exchange_bytes.py counts them. The processor time is
a rank's, for encoding, decoding and sums, without a network; of the steps the fastest.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from codec_figures import save
from exchange_bytes import SHAPE, error_of, exchange, gradients
from gradcomp import Pipeline
from gradcomp.codec.spec import parse
from gradcomp.exchange.automatic import spec_link_bytes
from gradcomp.exchange.link import link_bytes
from gradcomp.exchange.select import exchange_pattern

SPECS = (
    "identity",
    "fp16",
    "bf16",
    "lossless",
    "int8",
    "qsgd(levels=7)",
    "terngrad",
    "eden(bits=2)",
    "sign",
    "topk(ratio=0.01)",
    "globaltopk(ratio=0.01)",
    "randomk(ratio=0.01)",
    "adaq(ratio=0.01)",
    "sketch(ratio=0.1)",
    "polar_b(rate=0.25)",
    "polar_ec(rate=1)",
    "adaptive(rate=0.25)",
    "powersgd(rank=4,start_step=0)",
    "chunk_allreduce(ratio=0.01)",
)
MEASURED = (2, 4, 6, 8)
COMPUTED = (16, 64, 256, 1024)
STEPS = 3
NUMEL = SHAPE[0] * SHAPE[1]


class Step(NamedTuple):
    """A step of a rank.

    Attributes:
        received: bytes per element.
        error: vNMSE of the first step's average.
        milliseconds: of a processor.
    """

    received: float
    error: float
    milliseconds: float


def measure(spec: str, ranks: int) -> tuple[Step, Pipeline]:
    """Run some steps; also returns the first rank's pipeline."""
    grads = gradients(ranks)
    pipelines = [Pipeline(spec, rank, ranks) for rank in range(ranks)]
    seconds = []
    for step in range(STEPS):
        began = time.process_time()
        nbytes, average = exchange(pipelines, grads)
        seconds.append(time.process_time() - began)
        if step == 0:
            first = nbytes / NUMEL, error_of(average, grads)
    return Step(*first, 1e3 * min(seconds) / ranks), pipelines[0]


def compute(spec: str, ranks: int, pipeline: Pipeline) -> float:
    """Bytes per element that a rank receives.

    Args:
        pipeline: of a rank that has run `STEPS`, whose requests are those of any number of ranks if
            the pattern is "dense" or "algorithm".
    """
    parsed = parse(spec)
    pattern = exchange_pattern(parsed, "auto", ranks)
    if pattern not in ("dense", "algorithm"):
        return spec_link_bytes(parsed, pattern, ranks, NUMEL) / NUMEL
    kinds = pipeline.stats.sent_bytes
    return sum(link_bytes(kind, n, ranks) for kind, n in kinds.items()) / STEPS / NUMEL


def draw(steps: Mapping[str, Mapping[int, Step]], far: Mapping[str, Mapping[int, float]]) -> Figure:
    """Bytes, errors and times over ranks; computed values are hollow."""
    figure = Figure(figsize=(13, 5), layout="constrained")
    panels: list[Axes] = list(figure.subplots(1, 3))
    for index, (spec, values) in enumerate(steps.items()):
        style = {"color": f"C{index % 10}", "linestyle": "-" if index < 10 else "--"}
        ranks = list(values)
        panels[0].plot(
            [*ranks, *far[spec]],
            [*(step.received for step in values.values()), *far[spec].values()],
            label=spec,
            **style,
        )
        panels[1].plot(ranks, [max(step.error, 1e-9) for step in values.values()], **style)
        panels[2].plot(ranks, [step.milliseconds for step in values.values()], **style)
    titles = (
        f"bytes received per element; above {MEASURED[-1]} ranks computed",
        "vNMSE of the average",
        f"processor time, ms for {NUMEL:,} elements",
    )
    for axes, title, last in zip(panels, titles, (COMPUTED, (), ()), strict=True):
        axes.set_title(title, fontsize=9)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        shown = (2, 4, 8, *last)
        axes.set_xticks(shown, [str(count) for count in shown])
        axes.set_xlabel("ranks")
    panels[0].axvline(MEASURED[-1], color="0.8", linewidth=1)
    figure.legend(frameon=False, fontsize=7, loc="outside right upper")
    return figure


def main() -> None:
    """Print the table, and draw it on request."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plot", type=Path, metavar="PNG")
    arguments = parser.parse_args()
    print(f"one tensor of {NUMEL:,} elements; exchange: auto, with the pattern of 8 ranks;")
    print("bytes per element that a rank receives: measured, and computed from 16 ranks on")
    heads = "".join(f"{ranks:8}" for ranks in (*MEASURED, *COMPUTED))
    print(f"{'spec':30}{'pattern':17}{heads}")
    steps: dict[str, dict[int, Step]] = {}
    far: dict[str, dict[int, float]] = {}
    for spec in SPECS:
        steps[spec] = {}
        for ranks in MEASURED:
            steps[spec][ranks], pipeline = measure(spec, ranks)
        far[spec] = {ranks: compute(spec, ranks, pipeline) for ranks in COMPUTED}
        near = [step.received for step in steps[spec].values()]
        cells = "".join(f"{value:8.3f}" for value in (*near, *far[spec].values()))
        pattern = exchange_pattern(parse(spec), "auto", MEASURED[-1])
        print(f"{spec:30}{pattern:17}{cells}", flush=True)
    print("vNMSE of the average, and milliseconds of a processor, of a rank in a step")
    heads = "".join(f"{f'{ranks} ranks':>10}" for ranks in MEASURED)
    print(f"{'spec':30}{heads}{heads}")
    for spec, values in steps.items():
        errors = "".join(f"{step.error:10.2g}" for step in values.values())
        times = "".join(f"{step.milliseconds:10.1f}" for step in values.values())
        print(f"{spec:30}{errors}{times}")
    if arguments.plot:
        save(draw(steps, far), arguments.plot)


if __name__ == "__main__":
    main()
