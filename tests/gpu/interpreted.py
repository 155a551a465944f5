"""Runs comparisons in Triton's interpreter, on CPU tensors: python interpreted.py SHARE NAME...

The interpreter replaces Triton's language in the whole process, hence one of its own. See comparisons.py.
"""

from __future__ import annotations

import os
import sys

os.environ["TRITON_INTERPRET"] = "1"

import gpu.quick_interpreter  # noqa: F401
from gpu.comparisons import CPU, main

if __name__ == "__main__":
    sys.exit(main(sys.argv[2:], float(sys.argv[1]), CPU))
