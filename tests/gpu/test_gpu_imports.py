"""Triton is imported with the first kernel, not with torch_compressors."""

from __future__ import annotations

import subprocess
import sys


def test_torch_compressors_works_without_triton() -> None:
    code = (
        "import sys; sys.modules['triton'] = None; import torch_compressors, torch_compressors.ddp"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
