"""States of compressors in checkpoints of PyTorch, which hold tensors instead of arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from gradcomp.memory import STATE_KINDS

__all__ = ["with_arrays"]


def with_arrays(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """A state with its tensors, wherever a checkpoint was loaded to, as numpy arrays."""
    arrays = {
        kind: {name: torch.as_tensor(value).cpu().numpy() for name, value in state[kind].items()}
        for kind in STATE_KINDS
        if isinstance(state.get(kind), Mapping)  # which the pipeline demands
    }
    return {**state, **arrays}
