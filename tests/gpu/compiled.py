"""Runs comparisons with compiled kernels on this machine's GPU: python compiled.py SHARE NAME...

See comparisons.py. benchmarks/gpu.py runs it; no test does, as no machine of the tests has a GPU.
"""

from __future__ import annotations

import sys

import torch

from gpu.comparisons import main

if __name__ == "__main__":
    sys.exit(
        main(sys.argv[2:], float(sys.argv[1]), torch.device("cuda", torch.cuda.current_device()))
    )
