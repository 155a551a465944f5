"""What is PyTorch's alone, whatever averages the gradients: the engines' adapters share it."""

from __future__ import annotations

from torch_compressors.dgc_sgd import DGCSGD

__all__ = ["DGCSGD"]
