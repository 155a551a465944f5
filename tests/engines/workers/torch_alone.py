"""The cases of `ddp` and `fsdp` that need PyTorch alone, in a job that cannot import Horovod."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.modules["horovod"] = None  # as if it were not installed

from workers import ddp, fsdp, harness

cases = {**ddp.cases, **fsdp.cases}

if __name__ == "__main__":
    harness.main(sys.argv[1], sys.argv[2], sys.argv[3:])
