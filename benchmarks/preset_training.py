r"""Training with specs next to uncompressed training: final test losses, paired by seed, and bytes.

  python benchmarks/preset_training.py --task kjv-small --optimizer adamw --seeds 2 \
      --specs 'residual|adaptive(rate=1)' 'residual|topk(ratio=0.01)'

The tasks, learning rates and batches are those of benchmarks/proof, which keeps results. All ranks are in one process
and exchange gradients as engines do. Runs of one seed have the same initial values and batches. Prints the lines of a
Markdown table; the last column is what waits in residuals every 100 steps with the first seed (`Stats.waiting`).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from proof.cells import TASKS
from proof.training import UNCOMPRESSED, Result, train


def main() -> None:
    """Train with all specs and print a line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", choices=TASKS, default="kjv-small", help="default: %(default)s")
    parser.add_argument("--optimizer", choices=["adamw", "sgd"], default="adamw")
    parser.add_argument("--specs", nargs="+", default=["residual|adaptive(rate=1)"], metavar="SPEC")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    setup = TASKS[options.task]
    task = setup.task()

    def runs(spec: str) -> list[Result]:
        lr, ranks, steps = setup.rates[options.optimizer], options.ranks, options.steps
        return [
            train(task, options.optimizer, lr=lr, spec=spec, ranks=ranks, steps=steps, seed=seed)
            for seed in range(options.seeds)
        ]

    baseline = losses_of(runs(UNCOMPRESSED))
    print(
        f"{setup.title}, {options.optimizer}, {options.steps} steps of {options.ranks} x "
        f"{setup.batch}, {options.seeds} seeds\n\n"
        "| spec | test loss | minus uncompressed, by seed | mean | times fewer bytes | waiting |\n"
        "|---|---:|---:|---:|---:|---|"
    )
    print(f"| uncompressed | {_spread(baseline)} | | | 1 | |", flush=True)
    for spec in options.specs:
        results = runs(spec)
        losses = losses_of(results)
        differences = [loss - base for loss, base in zip(losses, baseline, strict=True)]
        by_seed = " ".join(f"{difference:+.4f}" for difference in differences)
        waits = ", ".join(f"{energy:.3g}" for energy in results[0].waiting)
        escaped = spec.replace("|", "\\|")
        print(
            f"| `{escaped}` | {_spread(losses)} | {by_seed} | "
            f"{np.mean(differences):+.4f} | {results[0].ratio:.1f} | {waits} |",
            flush=True,
        )


def losses_of(results: list[Result]) -> list[float]:
    """Test losses; not a number where training diverged."""
    return [float("nan") if result.loss is None else result.loss for result in results]


def _spread(losses: list[float]) -> str:
    return f"{np.mean(losses):.4f} ± {np.std(losses):.4f}"


if __name__ == "__main__":
    main()
