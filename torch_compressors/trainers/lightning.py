"""Compression in PyTorch Lightning.

::

    from torch_compressors.trainers.lightning import CompressionCallback

    trainer = Trainer(strategy="ddp", callbacks=[CompressionCallback("residual|adaptive(rate=1)")])
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from gradcomp import Config, Metrics
from gradcomp.adapter_api import pack_state, unpack_state
from gradcomp.errors import StateError, missing_package

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ModuleNotFoundError as error:
    raise missing_package(error) from None

from gradcomp_torch.state import with_arrays
from torch_compressors.ddp import DDPCompression
from torch_compressors.gloo.gather import bytes_on_first
from torch_compressors.gloo.groups import lend
from torch_compressors.gloo.liveness import naming_the_absent
from torch_compressors.trainers.wrapped import compressed, unwrapped

__all__ = ["CompressionCallback", "MetricsCallback"]

_STATES = "gradcomp"


class CompressionCallback(Callback):  # type: ignore[misc]
    """Compresses the gradients of ``trainer.fit`` with the strategy ``ddp``.

    Lightning's checkpoint holds the states of all ranks, as bytes: rank 0, which writes it, has them
    in memory for the time of a save. ``fit(ckpt_path=...)`` continues from them, on the same or
    another number of ranks, see `gradcomp.runtime.pipeline.Pipeline.load_state_dict`. Epochs, the
    loss scale and, with one optimizer, learning rates are the trainer's.

    Args:
        config, timeout: as for `torch_compressors.ddp_hook`.

    Raises:
        ConfigError: from ``fit``, if the model is not a DistributedDataParallel; for others see
            `torch_compressors.ddp_hook`.
    """

    def __init__(self, config: str | Config = "auto", timeout: timedelta | None = None) -> None:
        self._config = config
        self._timeout = timeout
        self._state: DDPCompression | None = None
        self._loaded: list[torch.Tensor] = []

    @property
    def state(self) -> DDPCompression:
        """The compression of the model in training, see `torch_compressors.ddp_hook`.

        Raises:
            StateError: no training has begun.
        """
        if self._state is None:
            raise StateError("the trainer has no wrapped model yet: call trainer.fit() first")
        return self._state

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Register the hook with the wrapped model, and continue from the loaded checkpoint."""
        model = unwrapped(
            trainer.strategy.model,
            f"the strategy is {type(trainer.strategy).__name__}; pass strategy='ddp' and at least two "
            "devices to Trainer",
        )
        optimizer = trainer.optimizers[0] if len(trainer.optimizers) == 1 else None
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self._state = compressed(model, self._config, optimizer, scaler, self._timeout)
        if self._loaded:
            self._take()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Give the process groups to the next model; the state can still be read and saved."""
        self.state.close()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell the epoch to schedules by epochs."""
        self.state.set_epoch(trainer.current_epoch)

    def state_dict(self) -> dict[str, Any]:
        """The states of all ranks on rank 0, nothing on others; Lightning calls it on all ranks."""
        if self._state is None:
            return {_STATES: self._loaded} if self._loaded else {}
        data = pack_state(with_arrays(self._state.state_dict()))
        world = dist.group.WORLD
        assert world is not None  # the state has process groups
        with naming_the_absent(world, "CompressionCallback.state_dict"):
            # One group for all callbacks of the job: each has it for the time of a save.
            lent = lend(world, ("states",), lambda: {"all": dist.new_group(backend="gloo")})
            lent.begin()
            states = bytes_on_first(data, lent.groups["all"])
            lent.end()
        lent.give_back()
        return {_STATES: states} if states else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the states until there is a wrapped model; Lightning calls it with its checkpoint.

        Raises:
            StateError: they are not a result of `state_dict`.
        """
        states = state_dict.get(_STATES)
        if not isinstance(states, list) or not all(_is_bytes(tensor) for tensor in states):
            raise StateError(
                f"the callback's part of the checkpoint must be {{'{_STATES}': a list of tensors of "
                "uint8}: give fit() a checkpoint that Lightning has saved with CompressionCallback"
            )
        self._loaded = states

    def _take(self) -> None:
        packed, self._loaded = [tensor.numpy().tobytes() for tensor in self._loaded], []
        pipeline = self.state.pipeline
        if len(packed) == pipeline.world_size:
            own_state = unpack_state(packed[pipeline.rank])
            if own_state.get("ranks_per_node") == pipeline.ranks_per_node:
                self.state.load_state_dict(own_state)
                return
        self.state.load_state_dict([unpack_state(data) for data in packed])


class MetricsCallback(Callback):  # type: ignore[misc]
    """Writes `gradcomp.Metrics` of a compression in training.

    Args:
        compression: a callback of the same trainer.
        writers, every, errors: as for `gradcomp.Metrics`; without writers the loggers of the trainer.
    """

    def __init__(
        self,
        compression: CompressionCallback,
        *writers: Any,
        every: int = 100,
        errors: bool = True,
    ) -> None:
        self._compression = compression
        self._writers = writers
        self._options: dict[str, Any] = {"every": every, "errors": errors}
        self._metrics: Metrics | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin with the state of the compression."""
        writers = self._writers or [logger.log_metrics for logger in trainer.loggers]
        self._metrics = Metrics(self._compression.state, *writers, **self._options)

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Write a row if one is due."""
        if self._metrics is not None:
            self._metrics.step(trainer.global_step)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the last row."""
        if self._metrics is not None:
            self._metrics.close(trainer.global_step)


def _is_bytes(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.uint8 and value.dim() == 1
