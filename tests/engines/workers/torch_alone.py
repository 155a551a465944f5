"""The cases of `ddp` and `fsdp` that need PyTorch alone, in a job that cannot import Horovod."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.modules["horovod"] = None  # as if it were not installed

from workers import ddp, fsdp, harness

WITH_HOROVOD = (
    *("as_horovod", "policy", "policy_looks_again"),
    *("accumulation_of_horovod", "mixed_precision_of_horovod"),
    "what_is_refused",  # also without the nodes that Horovod's launcher names
)

cases = {
    name: case for name, case in {**ddp.cases, **fsdp.cases}.items() if name not in WITH_HOROVOD
}

if __name__ == "__main__":
    harness.main(sys.argv[1], sys.argv[2], sys.argv[3:])
