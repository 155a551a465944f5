"""What float16 loses in an engine's sum: gradients less applied averages and residuals, after 300 steps.

  python benchmarks/float16_sums.py

Normal gradients with a standard deviation of 0.1; the rows of docs/codecs/float16.md.
"""

from __future__ import annotations

import numpy as np

from gradcomp import Config, Loopback

SHAPE, STEPS = (64, 80), 300


def main() -> None:
    """Print a row for each spec, exchange and number of ranks."""
    print(f"{'spec':16}{'exchange':10}{'ranks':>6}{'rms':>10}{'largest':>10}")
    for spec, exchange in (
        ("residual|fp16", "auto"),
        ("residual|fp16", "sra"),
        ("residual|fp16", "gather"),
        ("residual|bf16", "auto"),
    ):
        compress = {"default": spec, "exchange": exchange}
        config = Config.from_mapping({"version": 1, "compress": compress})
        for ranks in (2, 4, 8):
            lost = missing(Loopback(config, ranks), ranks)
            rms, largest = np.sqrt(np.square(lost).mean()), np.abs(lost).max()
            print(f"{spec:16}{exchange:10}{ranks:6}{rms:10.1e}{largest:10.1e}")


def missing(job: Loopback, ranks: int) -> np.ndarray:
    """The sum of mean gradients less that of averages and the mean residual."""
    total = np.zeros(SHAPE)
    for step in range(STEPS):
        grads = [
            np.random.default_rng([step, rank]).standard_normal(SHAPE).astype(np.float32)
            * np.float32(0.1)
            for rank in range(ranks)
        ]
        total += np.mean(grads, axis=0, dtype=np.float64)
        total -= job.step({"w": grads})["w"][0]
    for rank in job.ranks:
        total -= rank.state_dict()["residual"]["w"].reshape(SHAPE).astype(np.float64) / ranks
    return total


if __name__ == "__main__":
    main()
