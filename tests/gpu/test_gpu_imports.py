"""Triton is imported with the first kernel, not with torch_compressors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gradcomp_torch.compat import kernels_refusal


def test_torch_compressors_works_without_triton() -> None:
    code = (
        "import sys; sys.modules['triton'] = None; import torch_compressors, torch_compressors.ddp"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


@pytest.mark.parametrize(
    ("triton", "torch", "refused"),
    [
        ("3.6.0", "2.11.0+cu130", ""),
        ("3.9.0+git1", "2.13.0", ""),
        ("3.5.1", "2.9.1", "Triton 3.5.1 is too old for kernels, which need 3.6 or later"),
        ("3.6.0", "2.6.0", "PyTorch 2.6.0 is too old for kernels, which need 2.7 or later"),
    ],
)
def test_versions_of_kernels(triton: str, torch: str, refused: str) -> None:
    assert kernels_refusal(triton, torch) == refused


def test_an_old_triton_leaves_gradients_to_the_host_with_a_warning(tmp_path: Path) -> None:
    """A module of that name and version, as kernels are not reached."""
    (tmp_path / "triton.py").write_text("__version__ = '3.5.1'\n")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import torch; "
        "from gradcomp_torch.gpu.device_lookup import device_for; "
        "assert device_for(torch.device('cuda:0')) is None"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        check=True,
        timeout=300,
        text=True,
        capture_output=True,
    )
    assert "Triton 3.5.1 is too old for kernels" in done.stderr
    assert "gradients on 'cuda:0' are compressed on the CPU" in done.stderr
