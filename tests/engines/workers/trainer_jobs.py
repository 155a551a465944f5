"""The examples of Lightning, Accelerate and Transformers: straight, resumed, and without a part of it.

``python -m workers.trainer_jobs REPORTS SHARED`` runs the cases on each rank of torchrun.
"""

from __future__ import annotations

import csv
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import accelerate_digits
import lightning_digits
import torch
import torch.distributed as dist
import transformers_gpt2
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import SingleDeviceStrategy
from transformers import GPT2Config, GPT2LMHeadModel, TrainerCallback, TrainingArguments
from transformers import Trainer as HuggingTrainer
from workers.runner import Cases, refused, report

from gradcomp import Metrics
from gradcomp.errors import ConfigError, StateError
from torch_compressors.trainers.accelerate import compress_model
from torch_compressors.trainers.lightning import CompressionCallback, MetricsCallback
from torch_compressors.trainers.transformers import compress_trainer, write_metrics

cases = Cases()
shared = Path()

OPTIONS: dict[str, Any] = {
    "accelerator": "cpu",
    "strategy": "ddp",
    "devices": 2,
    "max_epochs": 1,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
"""Of Lightning's trainer, in tests of its precision."""

OVERFLOW = 2
"""The step in which the loss of rank 1 is infinite, with a loss scale."""


def _barrier() -> None:
    if dist.is_initialized():
        dist.barrier()


def _on_first(act: Callable[[], Any]) -> None:
    """Call ``act`` on rank 0; other ranks wait."""
    if int(os.environ["RANK"]) == 0:
        act()
    _barrier()


def _check(
    train: Callable[..., torch.nn.Module],
    words: list[str],
    checkpoint: Path,
    without_compression: Callable[[], Any],
) -> None:
    """A run from ``checkpoint`` ends in the bits of the run that wrote it, thanks to all states."""
    straight = train([*words, "--output", str(shared / "straight")]).state_dict()
    resume = ["--output", str(shared / "resumed"), "--resume", str(checkpoint)]
    resumed = train([*words, *resume]).state_dict()
    _on_first(without_compression)
    without = train([*words, *resume]).state_dict()
    of_ranks: list[Any] = [torch.empty(0)] * 2
    for name, value in straight.items():
        assert torch.equal(resumed[name], value), name
        of_ranks = [torch.empty_like(value) for _ in range(dist.get_world_size())]
        dist.all_gather(of_ranks, value.contiguous())
        assert torch.equal(*of_ranks), name
    assert not all(torch.equal(without[name], value) for name, value in straight.items())
    _on_first(lambda: [shutil.rmtree(shared / one) for one in ("straight", "resumed")])


@cases
def lightning() -> None:
    """Rank 0's checkpoint has the states of both ranks."""
    checkpoint = shared / "straight/epoch=0-step=29.ckpt"

    def without_compression() -> None:
        content = torch.load(checkpoint, weights_only=True)
        states = content["callbacks"].pop("CompressionCallback")["gradcomp"]
        assert [state.dtype for state in states] == [torch.uint8] * 2
        assert not torch.equal(*states)
        torch.save(content, checkpoint)

    _check(lightning_digits.main, ["--epochs", "2"], checkpoint, without_compression)


@cases
def accelerate() -> None:
    checkpoint = shared / "straight/epoch-1"
    _check(
        accelerate_digits.main,
        ["--epochs", "2"],
        checkpoint,
        lambda: shutil.rmtree(checkpoint / "gradcomp"),
    )


@cases
def transformers() -> None:
    checkpoint = shared / "straight/checkpoint-6"
    _check(
        transformers_gpt2.main,
        ["--steps", "12", "--save-steps", "6"],
        checkpoint,
        lambda: shutil.rmtree(checkpoint / "gradcomp"),
    )


def _check_mixed(module: torch.nn.Module, state: Any, dtypes: set[torch.dtype]) -> None:
    """After training: layers computed in bfloat16 alone, and the ranks' parameters are equal."""
    assert dtypes == {torch.bfloat16}, dtypes
    assert state.stats.ratio > 5
    for name, value in module.state_dict().items():
        of_ranks = [torch.empty_like(value) for _ in range(dist.get_world_size())]
        dist.all_gather(of_ranks, value.contiguous())
        assert torch.equal(*of_ranks), name
        assert value.isfinite().all(), name


def _watched(layer: torch.nn.Module) -> set[torch.dtype]:
    """The dtypes of a layer's outputs, as they come."""
    dtypes: set[torch.dtype] = set()
    layer.register_forward_hook(lambda *values: dtypes.add(values[-1].dtype))
    return dtypes


def _unscaled(state: Any) -> dict[str, torch.Tensor]:
    """The residuals without the loss scale."""
    saved = state.state_dict()
    return {name: one / saved["loss_scale"] for name, one in saved["residual"].items()}


def _check_skipped(residuals: list[dict[str, torch.Tensor]], state: Any, scaler: Any) -> None:
    """The step that overflows on one rank has left no trace in the residuals after each step."""
    assert len(residuals) == 5
    assert state.state_dict()["loss_scale"] == scaler.get_scale() == 512.0
    for name, before in residuals[OVERFLOW - 1].items():
        assert before.any()
        assert torch.equal(residuals[OVERFLOW][name], before), name
        assert not torch.equal(residuals[OVERFLOW + 1][name], before), name


def _hugging(kind: type[HuggingTrainer], **options: Any) -> HuggingTrainer:
    """A trainer of a small model."""
    shape = {"vocab_size": 64, "n_layer": 1, "n_head": 2, "n_embd": 64, "n_positions": 32}
    return kind(
        model=GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=0, **shape)),
        args=TrainingArguments(
            str(shared / "hugging"), use_cpu=True, report_to="none", save_strategy="no", **options
        ),
        train_dataset=[{"input_ids": row, "labels": row} for row in torch.randint(64, (96, 32))],
    )


@cases
def lightning_in_float16() -> None:
    """Both ranks skip the step in which one overflows. The plug-in has a scaler for the CPU."""

    class Overflowing(lightning_digits.Digits):
        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            loss = super().training_step(batch)
            return loss * torch.inf if (number, self.global_rank) == (OVERFLOW, 1) else loss

    class Residuals(Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            residuals.append(_unscaled(compression.state))

    residuals: list[dict[str, torch.Tensor]] = []
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    compression = CompressionCallback("residual|topk(ratio=0.01)")
    plugin, callbacks = MixedPrecision("16-mixed", "cpu", scaler), [compression, Residuals()]
    trainer = Trainer(plugins=[plugin], callbacks=callbacks, **OPTIONS)
    model = Overflowing()
    dtypes = _watched(model.layers[0])
    digits = torch.rand(160, 64, generator=torch.Generator().manual_seed(1))
    data = torch.utils.data.TensorDataset(digits, torch.arange(160) % 10)
    trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=16))
    assert dtypes == {torch.float16}, dtypes
    _check_skipped(residuals, compression.state, scaler)


def _check_metrics(rows: list[Mapping[str, Any]], state: Any) -> None:
    """Rows of `gradcomp.Metrics`, the last one at the end of training."""
    rows = [row for row in rows if row.get("gradcomp/total_bytes")]
    assert len(rows) == 2, rows
    assert float(rows[-1]["gradcomp/total_bytes"]) == state.stats.total_bytes
    assert float(rows[-1]["gradcomp/waiting_seconds"]) > 0
    assert 0 < float(rows[-1]["gradcomp/error/residual_topk_ratio_0.01"]) < 1


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@cases
def lightning_in_bfloat16() -> None:
    """With metrics in a file, and by the trainer's logger."""
    compression, model = CompressionCallback("residual|topk(ratio=0.01)"), lightning_digits.Digits()
    dtypes = _watched(model.layers[0])
    data = torch.utils.data.TensorDataset(torch.rand(64, 64), torch.arange(64) % 10)
    metrics = [
        MetricsCallback(compression, shared / "lightning.csv"),
        MetricsCallback(compression, errors=False),
    ]
    options = {**OPTIONS, "logger": CSVLogger(shared, "logs", 0)}
    trainer = Trainer(precision="bf16-mixed", callbacks=[compression, *metrics], **options)
    trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=16))
    _check_mixed(model, compression.state, dtypes)
    if trainer.is_global_zero:
        _check_metrics(_rows(shared / "lightning.csv"), compression.state)
        _check_metrics(_rows(shared / "logs/version_0/metrics.csv"), compression.state)


@cases
def fits_one_after_the_other_use_the_same_groups() -> None:
    def fit() -> list[int]:
        compression = CompressionCallback("residual|topk(ratio=0.01)")
        data = torch.utils.data.TensorDataset(torch.rand(64, 64), torch.arange(64) % 10)
        trainer = Trainer(callbacks=[compression], **OPTIONS)
        trainer.fit(lightning_digits.Digits(), torch.utils.data.DataLoader(data, batch_size=16))
        trainer.save_checkpoint(shared / "fits.ckpt")
        _barrier()
        counts = [len(list(Path("/proc/self", kind).iterdir())) for kind in ("fd", "task")]
        return [len(dist.distributed_c10d._world.pg_map), *counts]

    fit()
    first = fit()
    for _ in range(4):
        last = fit()
    assert last == first, (first, last)


@cases
def accelerate_in_bfloat16() -> None:
    AcceleratorState._reset_state()
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    module = torch.nn.Sequential(torch.nn.Linear(64, 128))
    dtypes = _watched(module[0])
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    model, optimizer = accelerator.prepare(module, optimizer)
    state = compress_model(accelerator, model, "residual|topk(ratio=0.01)")
    rows: list[Mapping[str, Any]] = []
    metrics = Metrics(state, lambda values, step: rows.append(values))
    for _ in range(3):
        optimizer.zero_grad()
        accelerator.backward(model(torch.rand(8, 64)).square().mean())
        optimizer.step()
        metrics.step()
    metrics.close()
    _check_mixed(module, state, dtypes)
    if accelerator.is_main_process:
        _check_metrics(rows, state)
    AcceleratorState._reset_state()


@cases
def transformers_in_bfloat16() -> None:
    hugging = _hugging(HuggingTrainer, max_steps=3, bf16=True)
    dtypes = _watched(hugging.model.transformer.h[0].mlp.c_fc)
    compression = compress_trainer(hugging, "residual|topk(ratio=0.01)")
    write_metrics(hugging, compression)
    hugging.train()
    _check_mixed(hugging.model, compression.state, dtypes)
    if hugging.is_world_process_zero():
        _check_metrics(hugging.state.log_history, compression.state)
    AcceleratorState._reset_state()


@cases
def accelerate_with_a_loss_scale() -> None:
    """Accelerate makes a scaler on GPUs alone; here it gets one."""
    accelerator = Accelerator(cpu=True)
    scaler = accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    module = torch.nn.Linear(64, 128)
    model, optimizer = accelerator.prepare(module, torch.optim.SGD(module.parameters(), lr=0.05))
    state = compress_model(accelerator, model, "residual|topk(ratio=0.01)")
    residuals = []
    for step in range(5):
        optimizer.zero_grad()
        loss = model(torch.rand(8, 64)).square().mean()
        overflows = (step, accelerator.process_index) == (OVERFLOW, 1)
        accelerator.backward(loss * torch.inf if overflows else loss)
        optimizer.step()
        residuals.append(_unscaled(state))
    _check_skipped(residuals, state, scaler)


@cases
def transformers_with_a_loss_scale() -> None:
    """The scaler of Accelerate, see above."""

    class Overflowing(HuggingTrainer):
        def compute_loss(self, *args: Any, **options: Any) -> Any:
            loss = super().compute_loss(*args, **options)
            overflows = (self.state.global_step, self.args.process_index) == (OVERFLOW, 1)
            return loss * torch.inf if overflows else loss

    class Residuals(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            residuals.append(_unscaled(compression.state))

    residuals: list[dict[str, torch.Tensor]] = []
    hugging = _hugging(Overflowing, max_steps=5, max_grad_norm=0.0)
    scaler = hugging.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    compression = compress_trainer(hugging, "residual|topk(ratio=0.01)")
    hugging.add_callback(Residuals())
    hugging.train()
    _check_skipped(residuals, compression.state, scaler)


@cases
def page() -> None:
    """The examples of docs/trainers.md."""
    text = (Path(__file__).parents[3] / "docs/trainers.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(examples) == 3
    for example in examples:
        printed = StringIO()
        with chdir(shared), redirect_stdout(printed):
            exec(compile(example, "docs/trainers.md", "exec"), {"__name__": "example"})
        if int(os.environ["RANK"]) == 0:
            assert re.search(r"[1-9]\d*\.\d times fewer bytes", printed.getvalue()), example


@cases
def refusals() -> None:
    """Models that no trainer has wrapped, and a state of something else."""
    model = torch.nn.Linear(2, 2)
    refused(
        lambda: compress_model(Accelerator(cpu=True), model, "fp16"),
        ConfigError,
        "a Linear and not a DistributedDataParallel",
        "at least two processes",
    )
    callback = CompressionCallback("fp16")
    trainer = Trainer(strategy=SingleDeviceStrategy("cpu"), callbacks=callback, logger=False)
    refused(
        lambda: trainer.fit(lightning_digits.Digits(), []),
        ConfigError,
        "a Digits and not a DistributedDataParallel",
        "the strategy is SingleDeviceStrategy",
    )
    assert callback.state_dict() == {}
    refused(lambda: callback.state, StateError, "call trainer.fit() first")
    for states in ({}, {"gradcomp": [torch.zeros(3)]}, {"gradcomp": [b""]}):
        refused(lambda one=states: callback.load_state_dict(one), StateError, "tensors of uint8")


if __name__ == "__main__":
    shared = Path(sys.argv[2])
    report(cases, int(os.environ["RANK"]), sys.argv[1], _barrier)
