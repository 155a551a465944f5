"""Compression states in checkpoints of PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gradcomp.adapter_api import Controls
from gradcomp.device_api import STATE_KINDS

__all__ = ["TensorControls", "as_array", "with_arrays"]


def with_arrays(state: Any) -> Any:
    """A state, or a list of states, with numpy arrays instead of tensors of any device.

    Everything else stays as it is: `Pipeline.load_state_dict` refuses it.
    """
    if isinstance(state, list | tuple):
        return [with_arrays(rank_state) for rank_state in state]
    if not isinstance(state, Mapping):
        return state
    arrays = {
        kind: {name: as_array(value) for name, value in state[kind].items()}
        for kind in STATE_KINDS
        if isinstance(state.get(kind), Mapping)
    }
    return {**state, **arrays}


def as_array(value: Any) -> Any:
    """The array of a float32 tensor; anything else unchanged."""
    plain = isinstance(value, torch.Tensor) and value.layout == torch.strided
    return value.detach().cpu().numpy() if plain and value.dtype == torch.float32 else value


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
        self.pipeline.load_state_dict(with_arrays(state))
