"""Compression in the ``Trainer`` of Hugging Face Transformers.

::

    from torch_compressors.trainers.transformers import compress_trainer

    trainer = Trainer(model=model, args=arguments, train_dataset=dataset)
    compress_trainer(trainer, "residual|adaptive(rate=1)")
    trainer.train(resume_from_checkpoint=...)
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from gradcomp import Config, Metrics
from gradcomp.errors import StateError, missing_package

try:
    from transformers import Trainer, TrainerCallback
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint
except ModuleNotFoundError as error:
    raise missing_package(error) from None

from torch_compressors.ddp import DDPCompression
from torch_compressors.trainers.folders import load_from, save_to
from torch_compressors.trainers.wrapped import compressed, unwrapped

__all__ = ["TrainerCompression", "compress_trainer", "write_metrics"]

_FOLDER = "gradcomp"


def compress_trainer(
    trainer: Trainer, config: str | Config = "auto", timeout: timedelta | None = None
) -> TrainerCompression:
    """Compress the gradients of ``trainer.train``; every rank calls it, before ``train``.

    Each checkpoint of the trainer gets the compression's state, a file for each rank, in its folder
    ``gradcomp``, except those of ``save_only_model`` and of a search for hyperparameters.
    ``train(resume_from_checkpoint=...)`` reads it. Epochs, learning rates and the loss scale are the
    trainer's.

    Args:
        trainer: must train with DistributedDataParallel, so on at least two processes.
        config, timeout: as for `torch_compressors.ddp_hook`.

    Returns:
        A callback of the trainer; its ``state`` is that of `torch_compressors.ddp_hook`.

    Raises:
        ConfigError: from ``train``, if the model is not a DistributedDataParallel; for others see
            `torch_compressors.ddp_hook`.
    """
    callback = TrainerCompression(trainer, config, timeout)
    trainer.add_callback(callback)
    train = trainer.train

    # Callbacks do not learn from which checkpoint the trainer resumes.
    def resuming(resume_from_checkpoint: Any = None, *args: Any, **options: Any) -> Any:
        callback.resumed = resume_from_checkpoint
        return train(resume_from_checkpoint, *args, **options)

    trainer.train = resuming
    return callback


class TrainerCompression(TrainerCallback):  # type: ignore[misc]
    """Compression of one trainer; made by `compress_trainer`.

    Attributes:
        resumed: ``resume_from_checkpoint`` of the present call of ``train``.
    """

    def __init__(self, trainer: Trainer, config: str | Config, timeout: timedelta | None) -> None:
        self.resumed: str | bool | None = None
        self._trainer = trainer
        self._config = config
        self._timeout = timeout
        self._model: Any = None
        self._state: DDPCompression | None = None

    @property
    def state(self) -> DDPCompression:
        """The compression of the model in training, see `torch_compressors.ddp_hook`.

        Raises:
            StateError: no training has begun.
        """
        if self._state is None:
            raise StateError("the trainer has no wrapped model yet: call trainer.train() first")
        return self._state

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Register the hook with the wrapped model, and read the checkpoint to resume from."""
        trainer = self._trainer
        model = unwrapped(
            trainer.model_wrapped,
            "start at least two processes, with torchrun or accelerate launch, without FSDP or "
            "DeepSpeed",
        )
        if model is not self._model:  # a second call of train() keeps the model
            self._state = compressed(
                model, self._config, trainer.optimizer, trainer.accelerator.scaler, self._timeout
            )
            self._model = model
        folder = self.resumed
        if folder is True:
            folder = get_last_checkpoint(args.output_dir)
        if folder:
            load_from(self.state, Path(folder) / _FOLDER, model.process_group)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Tell the epoch to schedules by epochs."""
        self.state.set_epoch(int(state.epoch or 0))

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Write the compression's state to the trainer's new checkpoint."""
        if args.save_only_model or state.is_hyper_param_search:
            return
        folder = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        save_to(self.state, folder / _FOLDER)


def write_metrics(
    trainer: Trainer,
    compression: TrainerCompression,
    *writers: Any,
    every: int = 100,
    errors: bool = True,
) -> None:
    """Write `gradcomp.Metrics` of a trainer's compression; every rank calls it, before ``train``.

    Args:
        trainer: has this compression.
        compression: result of `compress_trainer`.
        writers, every, errors: as for `gradcomp.Metrics`; without writers ``trainer.log``, which writes to
            the trackers of ``report_to``.
    """
    writers = writers or (lambda values, step: trainer.log(values),)
    trainer.add_callback(_MetricsCallback(compression, writers, every, errors))


class _MetricsCallback(TrainerCallback):  # type: ignore[misc]
    def __init__(
        self, compression: TrainerCompression, writers: Sequence[Any], every: int, errors: bool
    ) -> None:
        self._compression = compression
        self._make = partial(Metrics, every=every, errors=errors)
        self._writers = writers
        self._metrics: Metrics | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Begin with the state of the compression, a callback before this one."""
        self._metrics = self._make(self._compression.state, *self._writers)

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Write a row if one is due."""
        if self._metrics is not None:
            self._metrics.step(state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Write the last row."""
        if self._metrics is not None:
            self._metrics.close(state.global_step)
