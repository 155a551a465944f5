"""Compression states in checkpoints of PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gradcomp.adapter_api import STATE_KINDS, Controls

__all__ = ["TensorControls", "with_arrays"]


def with_arrays(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """A state with numpy arrays in place of its tensors, which may be on any device."""
    arrays = {
        kind: {name: torch.as_tensor(value).cpu().numpy() for name, value in state[kind].items()}
        for kind in STATE_KINDS
        if isinstance(state.get(kind), Mapping)  # otherwise the pipeline raises StateError
    }
    return {**state, **arrays}


class TensorControls(Controls):
    """Controls with states of CPU tensors, which ``torch.load`` reads with ``weights_only``."""

    def state_dict(self) -> dict[str, Any]:
        """This rank's state, for its checkpoint: plain numbers, strings and CPU tensors.

        Every rank has its own and must save its own; `Pipeline.state_dict` names the keys.
        """
        state = self.pipeline.state_dict()
        for kind in STATE_KINDS:
            state[kind] = {name: torch.from_numpy(value) for name, value in state[kind].items()}
        return state

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continue from a saved state: this rank's own, or the list of all ranks' states.

        See `Pipeline.load_state_dict`.

        Raises:
            StateError: the state does not fit.
        """
        if isinstance(state, Mapping):
            self.pipeline.load_state_dict(with_arrays(state))
        else:
            self.pipeline.load_state_dict([with_arrays(one) for one in state])
