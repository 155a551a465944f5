r"""Training with an error by tensor that follows the noise between ranks, next to one error for all.

  python benchmarks/error_by_noise.py --optimizer adamw --specs 'adaptive(rate=0.5)'

Vectors travel as they are. Each matrix is multiplied by a weight before a bucket is coded with one step, and divided by
it after decoding, so its error has 1 / weight of the size at the same bytes. Residuals follow changes of the weights.
Weights are powers of energies an element, of running means: *noise* is that of the ranks' differences to their mean,
*signal* that of their mean without the noise that is left in it. Prints lines of a Markdown table: test losses minus
those of uncompressed training with the same seeds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from gradcomp import Config, Loopback
from preset_training import losses_of
from proof.cells import TASKS
from proof.training import UNCOMPRESSED, Result, train

_DECAY = 0.95
"""Of the running means."""

_MOST = 32.0
"""Weights are in [1 / _MOST, _MOST] times their mean."""

Weight = Callable[[float, float], float]
"""From the energies an element of signal and noise."""

WEIGHTS: dict[str, Weight] = {
    "1": lambda signal, noise: 1.0,
    "(signal / noise)^.25": lambda signal, noise: (signal / noise) ** 0.25,
    "(signal / noise)^.5": lambda signal, noise: (signal / noise) ** 0.5,
    "noise^-.25": lambda signal, noise: noise**-0.25,
    "noise^-.5": lambda signal, noise: noise**-0.5,
    "energy^-.25": lambda signal, noise: (signal + noise) ** -0.25,
}
"""With noise^-.5 each tensor's error is in proportion to its noise; the energy is that of one rank's gradient."""


class Weighted(Loopback):
    """A loopback that codes tensors times their weights.

    Args:
        weight: of a tensor.
        codec: with error feedback around it.
        ranks: number of ranks, at least 2.

    Attributes:
        weights: of the last step, by name; their geometric mean over all elements is 1.
    """

    def __init__(self, weight: Weight, codec: str, ranks: int) -> None:
        rules = [{"match": {"ndim": [0, 1]}, "use": "identity"}]
        spec = f"residual(lr=scale)|{codec}"
        super().__init__(
            Config.from_mapping({"version": 1, "compress": {"default": spec, "rules": rules}}),
            ranks,
        )
        self.weights: dict[str, np.float32] = {}
        self._weight = weight
        self._sums: dict[str, Any] = {}

    def step(self, grads: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        """As that of `Loopback`."""
        for name, of_ranks in grads.items():
            mean = np.mean(of_ranks, axis=0)
            noise = sum(float(np.sum((x - mean) ** 2)) for x in of_ranks) / (len(of_ranks) - 1)
            # The mean of the ranks still has a part of the noise.
            signal = float(np.sum(mean**2)) - noise / len(of_ranks)
            found = np.array([signal, noise]) / mean.size
            self._sums[name] = _DECAY * self._sums.get(name, 0.0) + found
        weights = self.weights = self._found({name: x[0].size for name, x in grads.items()})
        # Residuals are multiplied by the last rate over this one, which is the change of the weight.
        self.set_lr({name: 1 / float(weight) for name, weight in weights.items()})
        averages = super().step({k: [weights[k] * x for x in v] for k, v in grads.items()})
        return {k: [x / weights[k] for x in copies] for k, copies in averages.items()}

    def _found(self, sizes: Mapping[str, int]) -> dict[str, np.float32]:
        logs = {}
        for name, (signal, noise) in self._sums.items():
            noise = max(noise, 1e-30)
            logs[name] = np.log(self._weight(max(signal, 0.01 * noise), noise))
        mean = sum(sizes[name] * logs[name] for name in logs) / sum(sizes.values())
        most = np.log(_MOST)
        return {k: np.float32(np.exp(np.clip(x - mean, -most, most))) for k, x in logs.items()}


def main() -> None:
    """Train with all weights and specs, and print a line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--optimizer", choices=["adamw", "sgd"], default="adamw")
    parser.add_argument("--specs", nargs="+", default=["adaptive(rate=0.5)"], metavar="CODEC")
    parser.add_argument("--weights", nargs="+", default=list(WEIGHTS), choices=WEIGHTS)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    setup = TASKS["kjv-small"]
    task = setup.task()

    def runs(spec: str, weight: Weight = WEIGHTS["1"]) -> list[Result]:
        return [
            train(
                task,
                options.optimizer,
                lr=setup.rates[options.optimizer],
                spec=spec,
                ranks=2,
                steps=options.steps,
                seed=seed,
                loopback=lambda codec, ranks: Weighted(weight, codec, ranks),
            )
            for seed in range(options.seeds)
        ]

    baseline = losses_of(runs(UNCOMPRESSED))
    print(f"uncompressed: {np.mean(baseline):.4f} ± {np.std(baseline, ddof=1):.4f}")
    for spec in options.specs:
        for name in options.weights:
            results = runs(spec, WEIGHTS[name])
            found = np.subtract(losses_of(results), baseline)
            ratio = np.mean([result.ratio for result in results])
            by_seed = " ".join(f"{difference:+.4f}" for difference in found)
            print(
                f"| {options.optimizer} | `{spec}` | {name} | {by_seed} | {np.mean(found):+.4f} | {ratio:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
