"""States of a worker and of its servers for checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import byteps.torch as bps
import byteps.torch.ops as ops
import numpy as np
import torch

from byteps_compressors import native
from byteps_compressors.gather import WORKER, gather_values
from gradcomp import Config
from gradcomp.adapter_api import FloatArray, Pipeline, check_equal
from gradcomp.errors import StateError
from gradcomp_torch.state import as_array, with_arrays

__all__ = ["States"]


class States:
    """Reads and writes what the plug-in keeps of a model's tensors, on this worker and on the servers.

    Args:
        config: the model's configuration.
        tensors: this worker's tensors, by parameter name.
        fed_back: types of the gradients with feedback on servers, by parameter name.
    """

    def __init__(
        self,
        config: Config,
        tensors: Mapping[str, native.Tensor],
        fed_back: Mapping[str, torch.dtype],
    ) -> None:
        self._config = config
        self._tensors = tensors
        self._fed_back = fed_back

    def save(self) -> dict[str, Any]:
        """Return the state of this worker; see `Attached.state_dict`."""
        state = self._pipeline().state_dict()
        servers: dict[str, torch.Tensor] = {}
        for name in self._fed_back:
            kept = self._tensors[name].read_servers(self._push_pull(name))
            if bps.rank() == 0 and kept.any():
                servers[name] = torch.from_numpy(kept)
        state["servers"] = servers
        for name, tensor in self._tensors.items():
            now = tensor.progress
            state["rounds"][name] = now.steps
            state["loss_scale"] = now.loss_scale
            if now.lr:
                state["residual_lr"][name] = torch.tensor(
                    [now.lr], dtype=torch.float32, device="cpu"
                )
            for kind in ("residual", "momentum"):
                array = None if now.fresh and kind == "momentum" else tensor.array(kind)
                if array is not None:
                    state[kind][name] = torch.from_numpy(array.copy())
        return state

    def load(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Restore a state; see `Attached.load_state_dict`."""
        error = None
        loaded: dict[str, Any] = {}
        try:
            loaded = self._loaded(state)
            kept = self._kept_by_servers([state] if isinstance(state, Mapping) else list(state))
        except StateError as raised:
            error = raised
        self._compare_loaded(error, loaded)
        for name, tensor in self._tensors.items():
            for kind in ("residual", "momentum"):
                array = tensor.array(kind)
                if array is not None:
                    array[:] = loaded[kind].get(name, 0)
            (rate,) = loaded["residual_lr"].get(name, [0.0])
            tensor.progress = native.Progress(
                loaded["rounds"].get(name, 0),
                loaded["loss_scale"],
                float(rate),
                name not in loaded["momentum"],
            )
        for name in self._fed_back:
            self._tensors[name].write_servers(kept.get(name), self._push_pull(name))

    def _compare_loaded(self, error: StateError | None, loaded: Mapping[str, Any]) -> None:
        """Raise on all workers if one could not load its state, or the steps or epochs differ."""
        rounds = loaded.get("rounds", {})
        values = {
            "epoch": native.load().epoch,
            "loss scale": loaded.get("loss_scale"),
            **{f"steps of '{name}'": rounds.get(name, 0) for name in self._tensors},
        }
        row = {"error": None if error is None else str(error), "values": values}
        rows = gather_values(row, "call load_state_dict between the same steps")
        if error is not None:
            raise error
        for rank, theirs in enumerate(rows):
            if theirs["error"] is not None:
                raise StateError(
                    f"another worker could not load its state: worker {rank}: {theirs['error']}"
                )
        check_equal(
            [theirs["values"] for theirs in rows],
            "the workers loaded states of different steps",
            "load states that were saved in one step, on all workers",
            WORKER,
        )

    def _kept_by_servers(self, states: Sequence[Mapping[str, Any]]) -> dict[str, FloatArray]:
        """Return the servers' new residuals by tensor name, as worker 0 sends them."""
        (first,) = [state for state in states if state["rank"] == 0] or [{}]
        scale = np.float32(bps.size() / first.get("world_size", bps.size()))
        saved = first.get("servers", {})
        if not isinstance(saved, Mapping):
            raise StateError(
                f"'servers' of a compressor state is a {type(saved).__name__}; it must be a "
                "mapping of tensors by name"
            )
        kept = {}
        for name, value in saved.items():
            tensor, array = self._tensors.get(name), as_array(value)
            right = isinstance(array, np.ndarray) and array.dtype == np.float32
            if tensor is None or not right or array.shape != (tensor.numel,):
                kind = getattr(array, "dtype", type(array).__name__)
                raise StateError(
                    f"the servers' state of '{name}' has {np.size(array)} elements of {kind}, and "
                    f"this model has {'none' if tensor is None else tensor.numel} of "
                    "float32: this is the state of another model"
                )
            if not np.isfinite(array).all():
                raise StateError(
                    f"the servers' state of '{name}' has NaN or Inf; all elements must be finite: "
                    "load a checkpoint from before the step in which training diverged"
                )
            kept[name] = array * scale
        return kept

    def _push_pull(self, name: str) -> Callable[[], None]:
        """Return a function that pushes and pulls zeros under the name of this gradient."""
        values = torch.zeros(self._tensors[name].numel, dtype=self._fed_back[name], device="cpu")

        def push_pull() -> None:
            ops.synchronize(
                ops.push_pull_async_inplace(values, average=False, name=f"Gradient.{name}")
            )

        return push_pull

    def _loaded(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """This worker's part of saved states, checked against its tensors."""
        pipeline = self._pipeline()
        pipeline.load_state_dict(with_arrays(state))
        loaded = pipeline.state_dict()
        for name, tensor in self._tensors.items():
            for kind in ("residual", "momentum"):
                array, saved = tensor.array(kind), loaded[kind].get(name)
                if array is not None and saved is not None and saved.size != array.size:
                    raise StateError(
                        f"the {kind} of '{name}' has {saved.size} elements and the parameter "
                        f"{array.size}: this is the state of another model"
                    )
        return loaded

    def _pipeline(self) -> Pipeline:
        """Make a pipeline, used only to check, read and write states."""
        return Pipeline(self._config, bps.rank(), bps.size())
