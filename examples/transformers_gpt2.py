"""Trainer of Hugging Face: torchrun --nproc_per_node=2 examples/transformers_gpt2.py.

A usual training of a small GPT-2 from random values, except for one line: `compress_trainer`. Resume
with --resume CHECKPOINT.
"""

import argparse
from collections.abc import Sequence

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from torch_compressors.trainers.transformers import compress_trainer


def main(words: Sequence[str] | None = None) -> nn.Module:
    """Train; returns the model."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--compression", default="residual|topk(ratio=0.01)", metavar="SPEC")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--save-steps", type=int, default=20)
    parser.add_argument("--output", default="checkpoints/transformers", metavar="DIR")
    parser.add_argument("--resume", metavar="CHECKPOINT")
    arguments = parser.parse_args(words)

    set_seed(0)
    shape = {"n_layer": 2, "n_head": 2, "n_embd": 64, "n_positions": 32}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, bos_token_id=0, eos_token_id=0, **shape))
    counting = [torch.arange(begin, begin + 32) % 64 for begin in range(256)]
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=arguments.output,
            use_cpu=True,
            max_steps=arguments.steps,
            save_steps=arguments.save_steps,
            per_device_train_batch_size=8,
            learning_rate=1e-3,
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=[{"input_ids": sequence, "labels": sequence} for sequence in counting],
    )
    compression = compress_trainer(trainer, arguments.compression)

    result = trainer.train(resume_from_checkpoint=arguments.resume)
    if trainer.is_world_process_zero():
        ratio = compression.state.stats.ratio
        print(f"loss {result.training_loss:.4f}, {ratio:.1f} times fewer bytes", flush=True)
    return model


if __name__ == "__main__":
    main()
