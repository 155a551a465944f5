"""Sharded models: their modules, and the state of a rank's compression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from gradcomp.adapter_api import Checkpoints, Pipeline
from gradcomp.errors import ConfigError, StateError
from gradcomp_torch.parameters import uncompiled_name
from gradcomp_torch.state import TensorControls
from torch_compressors.gloo.gather import gather_bytes
from torch_compressors.gloo.liveness import naming_the_absent

__all__ = ["ShardedControls", "sharded_modules"]


def sharded_modules(model: torch.nn.Module) -> dict[str, FSDPModule]:
    """The modules that ``fully_shard`` has wrapped, by name.

    The model itself is "model", or "whole model" if it has a sharded part of that name.

    Raises:
        ConfigError: there is none.
    """
    sharded = {
        uncompiled_name(name): module
        for name, module in model.named_modules()
        if isinstance(module, FSDPModule)
    }
    if "" in sharded:
        sharded["whole model" if "model" in sharded else "model"] = sharded.pop("")
    if not sharded:
        raise ConfigError(
            f"no part of the model, a {type(model).__name__}, is sharded: call "
            "torch.distributed.fsdp.fully_shard first"
        )
    return sharded


class ShardedControls(TensorControls):
    """Controls of a rank's compression of shards; a subclass sets ``_pipeline``."""

    _pipeline: Pipeline

    @property
    def pipeline(self) -> Pipeline:
        """See `gradcomp.runtime.controls.Controls`."""
        return self._pipeline

    @cached_property
    def _checkpoints(self) -> Checkpoints:
        # Of all ranks of the job: shards of one step belong together.
        group_size, text = self._pipeline.world_size, self._pipeline.config.digest_text()
        return Checkpoints(dist.get_rank(), dist.get_world_size(), group_size, text, gather_bytes)

    def _attended(self, call: str) -> AbstractContextManager[None]:
        assert dist.group.WORLD is not None  # there is a model with shards
        return naming_the_absent(dist.group.WORLD, call, warns=True)

    def _meet(self, call: str) -> None:
        super()._meet(call)
        # The collector compares the ranks that hold the same shard, and a checkpoint has those of all.
        self._checkpoints.together(lambda: None)

    def _take_saved(self, states: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        if not isinstance(states, Mapping):
            self._check_mesh(states)
        super()._take_saved(states)

    def _check_mesh(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Check that a checkpoint of another mesh can be loaded.

        Args:
            states: of all ranks of the job that saved it.

        Raises:
            StateError: it cannot.
        """
        raise StateError(
            "the checkpoint is of another number of ranks or machines, and shards are cut by it: "
            "continue on the same mesh, or begin with empty residuals"
        )
