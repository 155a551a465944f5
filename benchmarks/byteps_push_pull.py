"""Time of a push_pull of BytePS, uncompressed and with specs.

  python -m byteps_compressors.launch --workers 2 --servers 1 -- \
      python benchmarks/byteps_push_pull.py 'topk(ratio=0.001)' 'residual|sign'

All tensors take turns in one job, so that other load affects all of them alike. The times are
worker 0's. A spec may be one of BytePS' own compressors, as comma-separated KEY=VALUE arguments,
such as compressor_type=onebit,compressor_onebit_scaling=true.
"""

from __future__ import annotations

import argparse
import statistics
import time

import byteps.torch as bps
import torch
from byteps.torch import ops

from byteps_compressors.torch import attach, declare
from gradcomp import Config


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("specs", nargs="+", metavar="SPEC")
    parser.add_argument("--numel", type=int, default=25_000_000, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=7, help="default: %(default)s")
    arguments = parser.parse_args()

    bps.init()
    specs = ["uncompressed", *arguments.specs]
    attached = {}
    for i, spec in enumerate(specs):
        if "compressor_type=" in spec:
            declare(f"Gradient.t{i}", **dict(word.split("=") for word in spec.split(",")))
        elif i > 0:
            # A rule for all sizes: small tensors would travel uncompressed.
            rule = {"match": {}, "use": spec}
            config = {"version": 1, "compress": {"default": spec, "rules": [rule]}}
            tensor = torch.empty(arguments.numel)
            attached[spec] = attach([(f"t{i}", tensor)], Config.from_mapping(config))
    torch.manual_seed(bps.rank())
    gradient = torch.randn(arguments.numel)
    seconds: dict[str, list[float]] = {spec: [] for spec in specs}
    for _ in range(arguments.rounds + 1):
        for i, spec in enumerate(specs):
            tensor = gradient.clone()
            began = time.perf_counter()
            ops.synchronize(ops.push_pull_async_inplace(tensor, name=f"Gradient.t{i}"))
            seconds[spec].append(time.perf_counter() - began)
    if bps.rank() != 0:
        return
    first = statistics.median(seconds["uncompressed"][1:])
    print(f"push_pull of {arguments.numel} float32, {bps.size()} workers, median of")
    print(f"{arguments.rounds} rounds after the first; least; times as fast as uncompressed")
    for spec, times in seconds.items():
        median = statistics.median(times[1:])
        row = f"{1e3 * median:9.1f} ms {1e3 * min(times[1:]):9.1f} ms {first / median:6.2f}"
        print(f"{spec:45s} {row}", flush=True)


if __name__ == "__main__":
    main()
