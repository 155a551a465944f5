"""A whole run of one rank: configuration, training, summary, exit code."""

from __future__ import annotations

import json
import platform
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

import gradcomp
from gradcomp.config.compose import compose
from gradcomp.config.schema import Config
from gradcomp.errors import ConfigError
from training.checkpoint import Checkpoints, Resumed
from training.cluster import (
    EXIT_CONFIG,
    EXIT_FAILED,
    AbortError,
    checked_digests,
    threads_per_rank,
    together,
)
from training.display import Display
from training.engines.current import choose, engine
from training.metrics import MetricsLog, write_json
from training.settings.gossip import GossipSettings
from training.settings.outer import OuterSettings
from training.settings.train import TrainSettings
from training.trainer import Trainer

__all__ = ["Arguments", "run"]


@dataclass(frozen=True)
class Arguments:
    """The command line."""

    configs: Sequence[Path]
    overrides: Sequence[str]
    output: Path | None
    resume: bool
    engine: str
    framework: str


@dataclass(frozen=True)
class RunPlan:
    """The configuration: all of it, and its sections validated."""

    mapping: dict[str, Any]
    settings: TrainSettings
    compress: Config | None
    gossip: GossipSettings | None
    outer: OuterSettings | None

    @property
    def method(self) -> str:
        """The compression or gossip of the run, for messages."""
        if self.gossip is not None:
            return f"gossip: {self.gossip.algorithm}"
        spec = self.compress.compress.default.canonical if self.compress else "none"
        local = f"outer steps: {self.outer.every}, " if self.outer else ""
        return f"{local}compression: {spec}"


def run(arguments: Arguments) -> int:
    """Train as one rank of a job (the only one without a launcher); returns the exit code."""
    terminated = False

    def terminate(signum: int, frame: FrameType | None) -> None:
        nonlocal terminated
        terminated = True

    signal.signal(signal.SIGTERM, terminate)
    choose(arguments.engine, arguments.framework)
    try:
        engine().init()
    except ConfigError as error:
        print(f"train.py: error: {error}", file=sys.stderr)
        return EXIT_CONFIG
    engine().use_threads(threads_per_rank())
    try:
        _train(arguments, lambda: terminated)
    except AbortError as error:
        if engine().rank() == 0:
            print(f"train.py: error: {error}", file=sys.stderr, flush=True)
        # The launcher ends all ranks as soon as one has failed: let rank 0 print first.
        engine().barrier()
        return error.exit_code
    except engine().lost_rank as error:
        print(
            f"train.py: error: rank {engine().rank()} lost another rank ({error}); the launcher "
            "names the one that ended; once that is fixed, continue with --resume",
            file=sys.stderr,
            flush=True,
        )
        return EXIT_FAILED
    return 0


def _train(arguments: Arguments, stop: Callable[[], bool]) -> None:
    plan = together(lambda: _plan(arguments), exit_code=EXIT_CONFIG)
    _check_same_plan(plan)
    output = arguments.output or _default_output(plan.settings)
    checkpoints = Checkpoints(output, plan.settings.keep_checkpoints)
    together(lambda: _prepare(output, arguments.resume), exit_code=EXIT_CONFIG)
    resume = checkpoints.newest() if arguments.resume else None
    trainer = Trainer(plan.settings, plan.compress, plan.gossip, plan.outer, checkpoints, resume)
    settings, master = plan.settings, engine().rank() == 0
    facts = _facts(plan, trainer)
    log = together(lambda: _log(output, facts, trainer, resume) if master else None)
    display = Display(
        epochs=settings.epochs,
        total_steps=facts["total_steps"],
        metric=trainer.metric,
        silent=not master,
    )
    with display:
        display.say(_introduction(plan, trainer, output, resume))
        finished = trainer.run(log, display, stop)
    if log is not None:
        log.close()
    if not finished:
        display.say(
            f"stopped by SIGTERM after step {trainer.progress.step}; continue with "
            f"--output {output} --resume"
        )
        return
    summary = _summary(trainer)
    if master:
        write_json(output / "summary.json", {**summary, **facts})
    assert trainer.progress.score is not None, "the end of a run is tested"
    display.say(f"{trainer.metric.show(trainer.progress.score)}; results are in {output}")


def _plan(arguments: Arguments) -> RunPlan:
    composed = compose(arguments.configs, arguments.overrides)
    settings = TrainSettings.from_mapping(composed.mapping, composed.origin)
    settings.check_framework(engine().framework)
    compress = None
    if "compress" in composed.mapping or "stats" in composed.mapping:
        compress = Config.from_mapping(composed.mapping)
    gossip = None
    if "gossip" in composed.mapping:
        gossip = GossipSettings.of(composed.mapping["gossip"], composed.origin)
    if compress is not None and gossip is not None:
        other = "compress" if "compress" in composed.mapping else "stats"
        raise ConfigError(
            f"{other} and gossip: there are both sections; with gossip ranks send parameters and "
            "no gradients: remove one of the two"
        )
    outer = None
    if "outer" in composed.mapping:
        outer = OuterSettings.of(composed.mapping["outer"], composed.origin)
    if outer is not None and gossip is not None:
        raise ConfigError("outer and gossip: there are both sections; remove one of the two")
    return RunPlan(composed.mapping, settings, compress, gossip, outer)


def _check_same_plan(plan: RunPlan) -> None:
    text = json.dumps(plan.mapping, sort_keys=True, default=str)
    plans = engine().allgather_object(text, name="train.plan")
    differing = [str(rank) for rank, other in enumerate(plans) if other != plans[0]]
    if differing:
        raise AbortError(
            f"the configuration of rank {', '.join(differing)} differs from that of rank 0; give "
            "every host the same files and arguments",
            EXIT_CONFIG,
        )


def _default_output(settings: TrainSettings) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    name: str = engine().broadcast_object(f"{settings.task}-{stamp}", name="train.output")
    return Path("runs") / name


def _prepare(output: Path, resume: bool) -> None:
    if engine().rank() != 0:
        return
    if not resume and (output / "run.json").exists():
        raise ConfigError(
            f"{output} holds a run already; continue it with --resume, or give another --output"
        )
    output.mkdir(parents=True, exist_ok=True)


def _log(
    output: Path, facts: dict[str, Any], trainer: Trainer, resume: Resumed | None
) -> MetricsLog:
    """Write what is known of the run, and open its files of metrics."""
    resume_step = None if resume is None else trainer.progress.step
    log = MetricsLog(output, tensorboard=trainer.settings.tensorboard, resume_step=resume_step)
    write_json(output / "run.json", facts)
    return log


def _introduction(plan: RunPlan, trainer: Trainer, output: Path, resume: Resumed | None) -> str:
    ranks = f"{engine().size()} ranks" if engine().size() > 1 else "one rank"
    lines = [f"{plan.settings.task} on {ranks}, {plan.method}, output: {output}"]
    if engine().size() == 1:
        alone = f"so {engine().title} does not call the compressor"
        lines.append(f"one rank alone sends nothing{'' if plan.gossip else f', {alone}'}")
    if resume is not None:
        lines.append(f"resuming from {resume.path}: step {trainer.progress.step}")
    return "\n".join(lines)


def _facts(plan: RunPlan, trainer: Trainer) -> dict[str, Any]:
    """Facts known before training starts, for run.json and summary.json."""
    return {
        "task": plan.settings.task,
        "metric": trainer.metric.key,
        "world_size": engine().size(),
        "framework": engine().framework,
        "parameters": trainer.learner.numel,
        "total_steps": plan.settings.epochs * trainer.steps_per_epoch,
        "config": plan.mapping,
        "versions": {
            "gradcomp": gradcomp.__version__,
            **engine().versions(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }


def _summary(trainer: Trainer) -> dict[str, Any]:
    """Results of the run. Bytes are of rank 0, tcp_bytes_per_step is the mean over ranks."""
    progress, traffic = trainer.progress, trainer.traffic
    seconds = trainer.step_seconds
    tcp = engine().allgather_object(trainer.tcp_bytes, name="train.tcp")
    known = seconds and None not in tcp
    tcp_per_step = sum(tcp) / len(tcp) / len(seconds) if known else None
    return {
        "final_accuracy": progress.accuracy,
        "best_accuracy": progress.best_accuracy,
        "final_test_bits": progress.test_bits,
        "best_test_bits": progress.best_test_bits,
        "steps": progress.step,
        "sent_bytes_per_step": traffic.sent / progress.step,
        "compression_ratio": traffic.ratio(traffic.sent, progress.step),
        "tcp_bytes_per_step": tcp_per_step,
        "median_step_seconds": statistics.median(seconds) if seconds else None,
        "parameters_sha256": checked_digests(trainer.learner.parameters()),
        **trainer.summary(),
    }
