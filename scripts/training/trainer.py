"""The training loop of one rank: steps, tests, checkpoints, for every engine and framework."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from gradcomp.config.schema import Config
from gradcomp.errors import StateError
from training import checkpoint
from training.checkpoint import Checkpoints, Resumed
from training.cluster import EXIT_CONFIG, EXIT_FAILED, AbortError, together
from training.display import Display
from training.engines.current import engine
from training.learners.base import Learner
from training.metrics import EpochRow, MetricsLog, Score, StepRow
from training.schedule import learning_rate
from training.settings.gossip import GossipSettings
from training.settings.outer import OuterSettings
from training.settings.train import TrainSettings
from training.tasks.catalog import task_of
from training.tasks.data import Batch, steps_per_epoch, train_batches
from training.traffic import TrafficMeter, tcp_bytes_sent

__all__ = ["Progress", "Trainer"]


@dataclass
class Progress:
    """The position of training and its results so far."""

    step: int = 0
    epoch: int = 0
    samples: int = 0  # of the current epoch, taken by all ranks together
    accuracy: float | None = None
    best_accuracy: float | None = None
    test_bits: float | None = None
    best_test_bits: float | None = None
    evaluated_step: int = 0
    consensus_distance: float | None = None

    @property
    def score(self) -> Score | None:
        """The result of the last test."""
        if self.accuracy is None or self.test_bits is None:
            return None
        return Score(self.accuracy, self.test_bits)


class Trainer:
    """One rank's part of a run; all ranks make one and call its methods alike."""

    def __init__(
        self,
        settings: TrainSettings,
        compress: Config | None,
        gossip: GossipSettings | None,
        outer: OuterSettings | None,
        checkpoints: Checkpoints,
        resume: Resumed | None,
    ) -> None:
        """Start from rank 0's initial state, or from the checkpoint ``resume``.

        Raises AbortError on every rank when that fails on any.
        """
        self.settings = settings
        self.rank, self.workers = engine().rank(), engine().size()
        self.progress = Progress()
        self.step_seconds: list[float] = []
        """Duration of each step of this process."""
        self.tcp_bytes: int | None = 0
        """Bytes that this process's TCP connections sent during those steps; None: unknown."""
        self._checkpoints = checkpoints
        self._saved_step: int | None = None

        task = task_of(settings)
        self._dataset = together(task.load, exit_code=EXIT_CONFIG)
        self.metric = task.metric
        self._global_batch = settings.batch_size * self.workers
        self._samples = self._dataset.train_samples
        if settings.steps_per_epoch is not None:
            self._samples = min(self._samples, settings.steps_per_epoch * self._global_batch)
        self.steps_per_epoch = together(
            lambda: steps_per_epoch(self._samples, settings.batch_size, self.workers),
            exit_code=EXIT_CONFIG,
        )
        # A run goes on only from a checkpoint with the same values.
        self._identity = {
            "task": settings.task,
            "framework": engine().framework,
            "compression": _method(compress, gossip, outer),
        }
        # Of the steps since ranks last agreed; see `_step`.
        self._losses: list[float] = []
        self._stop = False
        self.learner = together(
            lambda: self._learner(compress, gossip, outer), exit_code=EXIT_CONFIG
        )
        own_state: dict[str, Any] = {"sent_bytes": 0}
        if resume is not None:
            own_state = together(lambda: self._restore(resume), exit_code=EXIT_CONFIG)
        self.learner.broadcast()
        if resume is None:
            # Ranks start from equal parameters, but draw different random numbers.
            torch.manual_seed(settings.seed + self.rank)
        else:
            self.learner.load_own_state(own_state, same_world=own_state["same_world"])
            checkpoint.set_random_state(own_state["random"])
        self.traffic = TrafficMeter(self.learner, own_state["sent_bytes"])

    def _learner(
        self, compress: Config | None, gossip: GossipSettings | None, outer: OuterSettings | None
    ) -> Learner:
        classes = self._dataset.classes
        if outer is not None:
            return engine().outer_learner(self.settings, outer, compress, classes)
        if gossip is None:
            return engine().learner(self.settings, compress, classes)
        return engine().gossip_learner(self.settings, gossip, classes, self.steps_per_epoch)

    # ------------------------------------------------------------ checkpoints

    def _restore(self, resume: Resumed) -> dict[str, Any]:
        """Load the common part and the compressor; returns this rank's own part."""
        path, common, parts = resume
        for key, now in self._identity.items():
            before = common.get(key)
            if before != now:
                raise StateError(
                    f"{path} has {key} {before}, but this run has {now}; resume with the same "
                    "one, or start again with another --output"
                )
        self.learner.load_state_dict(common)
        self.progress = Progress(**common["progress"])
        self._saved_step = self.progress.step
        if self.progress.samples + self._global_batch > self._samples:
            # More workers or larger batches than before: the rest is less than one step.
            self.progress.epoch += 1
            self.progress.samples = 0
        states = [part["compressor"] for part in parts]
        same_world = common["world_size"] == self.workers
        self.learner.load_compressor_state(states[0] if same_world else states)
        return {**parts[self.rank % len(parts)], "same_world": same_world}

    def _save(self) -> None:
        if self._saved_step == self.progress.step:
            return
        common = {
            **self._identity,
            **self.learner.state_dict(),
            "progress": asdict(self.progress),
        }
        own_state = {
            **self.learner.own_state(),
            "compressor": self.learner.compressor_state(),
            "random": checkpoint.random_state(),
            "sent_bytes": self.traffic.sent,
        }
        self._checkpoints.save(self.progress.step, common, own_state)
        self._saved_step = self.progress.step

    # --------------------------------------------------------------- training

    def run(self, log: MetricsLog | None, display: Display, stop: Callable[[], bool]) -> bool:
        """Train to the last epoch; False when ``stop`` returned True on any rank before.

        Either way the last step is then in a checkpoint. Only rank 0 has a ``log``. Raises
        AbortError on every rank when the loss of any is not finite.
        """
        while self.progress.epoch < self.settings.epochs:
            if not self._epoch(log, display, stop):
                self._save()
                return False
        if self.progress.evaluated_step != self.progress.step:
            self._evaluate()
        self._save()
        return True

    def _epoch(self, log: MetricsLog | None, display: Display, stop: Callable[[], bool]) -> bool:
        """The rest of the current epoch; False when asked to stop before its end."""
        progress, settings = self.progress, self.settings
        losses: list[float] = []
        sent_before, tcp_before = self.traffic.sent, tcp_bytes_sent()
        if self.learner.compression is not None:
            self.learner.compression.set_epoch(progress.epoch)
        batches = train_batches(
            self._dataset,
            seed=settings.seed,
            epoch=progress.epoch,
            start=progress.samples,
            stop=self._samples,
            batch_size=settings.batch_size,
            rank=self.rank,
            workers=self.workers,
        )
        stopping = False
        while not stopping:
            began = time.perf_counter()
            batch = next(batches, None)
            if batch is None:
                break
            lr = self._learning_rate()
            loss, stopping = self._step(batch, lr, stop())
            seconds = time.perf_counter() - began
            sent = self.traffic.end_step()
            progress.step += 1
            progress.samples += self._global_batch
            losses.append(loss)
            self.step_seconds.append(seconds)
            if log is not None and progress.step % settings.log_every == 0:
                total = self.traffic.sent
                row = StepRow(progress.step, progress.epoch + 1, loss, lr, sent, total, seconds)
                log.write(row)
            display.step(progress.step, loss)
        self._add_tcp(tcp_before)
        if stopping and progress.samples + self._global_batch <= self._samples:
            return False
        self._end_epoch(losses, self.traffic.sent - sent_before, log, display)
        return not stopping

    def _learning_rate(self) -> float:
        done = self.progress.samples // self._global_batch
        return learning_rate(
            self.settings,
            workers=self.workers,
            steps_per_epoch=self.steps_per_epoch,
            step=self.progress.epoch * self.steps_per_epoch + done,
        )

    def _step(self, batch: Batch, lr: float, stop: bool) -> tuple[float, bool]:
        """One optimizer step; returns the mean loss, and whether any rank is to stop.

        Where the ranks do not agree in each step, losses between are this rank's own.
        """
        loss, stopping = self.learner.forward(batch), False
        self._losses.append(loss)
        self._stop |= stop
        if self.learner.agrees:
            # Before backward: a loss that is not finite must reach neither the other ranks'
            # parameters nor the state of the compressor.
            loss, stopping = self._agree(statistics.fmean(self._losses), self._stop)
            self._losses.clear()
        self.learner.step(lr)
        return loss, stopping

    def _agree(self, loss: float, stop: bool) -> tuple[float, bool]:
        """The mean loss, and whether any rank is to stop, by one small all-reduce."""
        status = torch.zeros(self.workers + 1, dtype=torch.float64)
        status[self.rank] = loss
        status[-1] = stop
        *losses, stops = engine().sum(status, "train.status").tolist()
        bad = [f"rank {i}: {x}" for i, x in enumerate(losses) if not math.isfinite(x)]
        if bad:
            saved = "none" if self._saved_step is None else f"step {self._saved_step}"
            raise AbortError(
                f"the loss is not finite at step {self.progress.step + 1}, epoch "
                f"{self.progress.epoch + 1} ({', '.join(bad)}); lower train.lr (now "
                f"{self.settings.lr:g}) or raise train.warmup_epochs (now "
                f"{self.settings.warmup_epochs:g}); newest checkpoint: {saved}",
                EXIT_FAILED,
            )
        return sum(losses) / self.workers, stops > 0

    def _end_epoch(
        self, losses: list[float], sent: int, log: MetricsLog | None, display: Display
    ) -> None:
        progress, settings = self.progress, self.settings
        progress.epoch += 1
        progress.samples = 0
        score = None
        if progress.epoch % settings.eval_every == 0 or progress.epoch == settings.epochs:
            score = self._evaluate()
        row = EpochRow(
            step=progress.step,
            epoch=progress.epoch,
            train_loss=statistics.fmean(losses),
            accuracy=score.accuracy if score else None,
            test_bits=score.test_bits if score else None,
            sent_bytes_per_step=sent / len(losses),
            compression_ratio=self.traffic.ratio(sent, len(losses)),
            median_step_seconds=statistics.median(self.step_seconds[-len(losses) :]),
            consensus_distance=progress.consensus_distance if score else None,
        )
        if log is not None:
            log.write(row)
        display.epoch(row, score)
        if settings.checkpoint_every and progress.epoch % settings.checkpoint_every == 0:
            self._save()

    def _evaluate(self) -> Score:
        """Test the model; each rank takes its share of the test samples."""
        self.progress.consensus_distance = self.learner.consensus_distance()
        sums = self.learner.test(self._dataset.test_batches(self.rank, self.workers))
        total = engine().sum(torch.tensor(sums, dtype=torch.float64), "train.test")
        right, nats, predictions = total.tolist()
        score = Score(right / predictions, nats / predictions / math.log(2))
        progress = self.progress
        progress.accuracy, progress.test_bits = score.accuracy, score.test_bits
        progress.best_accuracy = max(score.accuracy, progress.best_accuracy or 0.0)
        progress.best_test_bits = min(score.test_bits, progress.best_test_bits or math.inf)
        progress.evaluated_step = progress.step
        return score

    def summary(self) -> dict[str, Any]:
        """Figures that only this kind of learner has."""
        return self.learner.summary(len(self.step_seconds))

    def _add_tcp(self, before: int | None) -> None:
        now = tcp_bytes_sent()
        if before is None or now is None or self.tcp_bytes is None:
            self.tcp_bytes = None
        else:
            self.tcp_bytes += now - before


def _method(
    compress: Config | None, gossip: GossipSettings | None, outer: OuterSettings | None
) -> str:
    """The identity of the compression or gossip, on which the saved states of ranks depend."""
    if gossip is not None:
        return f"gossip by {gossip.algorithm}"
    if outer is not None:
        return f"{_method(compress, None, None)}, outer steps {outer.arguments()}"
    return compress.digest_text() if compress else "none"
