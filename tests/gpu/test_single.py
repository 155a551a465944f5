"""`get_codec(spec)` with single tensors of a device: the bytes of the host, and clear errors."""

from __future__ import annotations

import pytest
import torch

from gpu.processes import run
from gradcomp.errors import GradcompError
from torch_compressors import device_array


def test_codecs_take_arrays_of_a_device() -> None:
    done = run("single.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "85 frames compared\n"


def test_tensors_of_the_host_are_no_arrays_of_a_device() -> None:
    with pytest.raises(GradcompError, match=r"no kernels for tensors on 'cpu'.*tensor\.cpu\(\)"):
        device_array(torch.zeros(4))
