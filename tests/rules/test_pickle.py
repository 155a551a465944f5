"""The linter refuses pickle between ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "code",
    [
        "import pickle\n\nprint(pickle.loads(b''))\n",
        "import torch.distributed as dist\n\ndist.all_gather_object([None], 1)\n",
        "import torch.distributed as dist\n\ndist.broadcast_object_list([None], 0)\n",
        "import horovod.torch as hvd\n\nhvd.allgather_object(1)\n",
        "import horovod.tensorflow as hvd\n\nhvd.broadcast_object(1)\n",
        "from torch.distributed import scatter_object_list\n\nscatter_object_list([], [])\n",
    ],
)
@pytest.mark.parametrize("place", ["torch_compressors/new.py", "scripts/training/engines/new.py"])
def test_the_linter_refuses(place: str, code: str) -> None:
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--select", "TID251"]
    found = subprocess.run(
        [*command, "--stdin-filename", place, "-"],
        input=code,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 1, found.stderr
    assert "TID251" in found.stdout
