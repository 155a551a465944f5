"""The examples of Lightning, Accelerate and Transformers: straight, resumed, and without a part of it.

``python -m workers.trainer_jobs REPORTS SHARED`` runs the cases on each rank of torchrun.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable
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
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import SingleDeviceStrategy
from workers.runner import Cases, refused, report

from gradcomp.errors import ConfigError, StateError
from torch_compressors.trainers.accelerate import compress_model
from torch_compressors.trainers.lightning import CompressionCallback

cases = Cases()
shared = Path()


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
        "a Linear and no DistributedDataParallel",
        "at least two processes",
    )
    callback = CompressionCallback("fp16")
    trainer = Trainer(strategy=SingleDeviceStrategy("cpu"), callbacks=callback, logger=False)
    refused(
        lambda: trainer.fit(lightning_digits.Digits(), []),
        ConfigError,
        "a Digits and no DistributedDataParallel",
        "the strategy is SingleDeviceStrategy",
    )
    assert callback.state_dict() == {}
    refused(lambda: callback.state, StateError, "call trainer.fit() first")
    for states in ({}, {"gradcomp": [torch.zeros(3)]}, {"gradcomp": [b""]}):
        refused(lambda one=states: callback.load_state_dict(one), StateError, "tensors of uint8")


if __name__ == "__main__":
    shared = Path(sys.argv[2])
    report(cases, int(os.environ["RANK"]), sys.argv[1], _barrier)
