"""States of compression in checkpoints of PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gradcomp.adapter_api import STATE_KINDS, Controls

__all__ = ["TensorControls", "with_arrays"]


def with_arrays(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """A state with its tensors, wherever a checkpoint was loaded to, as numpy arrays."""
    arrays = {
        kind: {name: torch.as_tensor(value).cpu().numpy() for name, value in state[kind].items()}
        for kind in STATE_KINDS
        if isinstance(state.get(kind), Mapping)  # which the pipeline demands
    }
    return {**state, **arrays}


class TensorControls(Controls):
    """With states that ``torch.save`` keeps and ``torch.load`` reads under ``weights_only``."""

    def state_dict(self) -> dict[str, Any]:
        """This rank's state, for its checkpoint: plain numbers, strings and CPU tensors.

        Every rank has its own and must save its own; `Pipeline.state_dict` names the keys.
        """
        state = self.pipeline.state_dict()
        for kind in STATE_KINDS:
            state[kind] = {name: torch.from_numpy(value) for name, value in state[kind].items()}
        return state

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Take up a saved state: this rank's own, or the list of all ranks' states.

        See `Pipeline.load_state_dict`.
        """
        if isinstance(state, Mapping):
            self.pipeline.load_state_dict(with_arrays(state))
        else:
            self.pipeline.load_state_dict([with_arrays(one) for one in state])
