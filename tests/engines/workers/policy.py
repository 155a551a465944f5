"""The policy auto on real Horovod: all ranks measure whether compression pays, and decide alike."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import horovod.torch as hvd
import numpy as np
import torch
from horovod.torch import optimizer as stock
from workers import harness
from workers.harness import Cases

from gradcomp import Config
from gradcomp.errors import ProtocolError
from gradcomp.exchange.rounds import Request
from gradcomp.runtime.policy import auto as policy
from gradcomp.runtime.policy.decision import Decision
from horovod_compressors.torch import Compression, compression
from horovod_compressors.torch.engine import HorovodEngine
from support.pipelines import configured

cases = Cases()

STEPS = 134
"""More steps than a decision needs."""

BANDWIDTH = 2.5e6
"""Bytes per second of the slow link."""


def config(spec: str, prior: Any = None) -> Config:
    return configured(spec, policy="auto", bucket_bytes=10**6, prior=prior)


def prior(spec: str, numel: int, **seconds: float) -> dict[str, Any]:
    """Predictions for the group of tensors of some elements."""
    return {"ranks": hvd.size(), "groups": [{"use": spec, "numel": numel, **seconds}]}


@contextlib.contextmanager
def slow_link() -> Iterator[None]:
    """A slow link: all messages take time, Horovod's own all-reduces included."""

    class Slow(HorovodEngine):
        def start(self, request: Request) -> Any:
            time.sleep(request.nbytes / BANDWIDTH)
            return super().start(request)

    send = stock.allreduce_async_

    def slow(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        time.sleep(tensor.nbytes / BANDWIDTH)
        return send(tensor, *args, **kwargs)

    with (
        mock.patch.object(compression, "HorovodEngine", Slow),
        mock.patch.object(stock, "allreduce_async_", slow),
    ):
        yield


class Training:
    """A model with gradients that come in an order of the rank's own."""

    def __init__(
        self, spec: str | Config, shapes: dict[str, tuple[int, ...]], prior: Any = None
    ) -> None:
        self.params = harness.parameters(shapes)
        written = config(spec, prior) if isinstance(spec, str) else spec
        self.compression = Compression(written, self.params.items())
        self.opt = harness.optimizer(self.params, self.compression)
        self.order = np.random.default_rng(hvd.rank())
        self.sent: dict[str, Any] = dict.fromkeys(self.params, 0)
        self.exact: dict[str, Any] = dict.fromkeys(self.params, 0)
        self.step = 0

    def train(self, steps: int) -> str:
        """Make steps and check their averages; returns the policy's lines on stderr."""
        log = io.StringIO()
        results = []
        with contextlib.redirect_stderr(log):
            for step in range(self.step, self.step + steps):
                mine = harness.gradients(self.params, step)
                names = self.order.permutation(list(self.params)).tolist()
                results.append(
                    harness.averages(self.opt, self.params, {name: mine[name] for name in names})
                )
        for averages in results:  # afterwards, as it takes time
            of_ranks = [harness.gradients(self.params, self.step, r) for r in range(hvd.size())]
            for name, average in averages.items():
                harness.check_same_on_all_ranks(average, name)
                self.sent[name] += average.double()
                self.exact[name] += sum(grads[name].double() for grads in of_ranks) / hvd.size()
            self.step += 1
        lines = log.getvalue().splitlines(keepends=True)
        return "".join(line for line in lines if "gradcomp: policy auto:" in line)

    def check_nothing_is_lost(self) -> None:
        residuals = self.compression.state_dict()["residual"]
        for name, p in self.params.items():
            late = residuals.get(name, torch.zeros(p.numel())).view(p.shape)
            mean = hvd.allreduce(late, name=f"late.{name}", op=hvd.Average)
            torch.testing.assert_close(
                self.sent[name] + mean, self.exact[name], rtol=0, atol=0.05, check_dtype=False
            )

    def choices(self) -> list[str]:
        decisions = self.compression.stats.decisions
        texts = hvd.allgather_object([str(one) for one in decisions])
        assert all(one == texts[0] for one in texts), texts
        return [one.choice for one in decisions]


def check_log(log: str, *parts: str) -> None:
    assert log.count("gradcomp: policy auto:") == (1 if hvd.rank() == 0 else 0), log
    if hvd.rank() == 0:
        for part in parts:
            assert part in log, log


def late(owner: Any, name: str) -> contextlib.AbstractContextManager[Any]:
    """Let each call of a function take longer, by several usual steps."""
    function = getattr(owner, name)

    def waits(*args: Any, **kwargs: Any) -> Any:
        time.sleep(0.03)
        return function(*args, **kwargs)

    return mock.patch.object(owner, name, waits)


def second_look(
    train: Callable[[], str],
    decisions: Callable[[], tuple[Decision, ...]],
    *longer: contextlib.AbstractContextManager[Any],
) -> str:
    """Make steps until the ranks have decided, and again until they have in longer steps.

    Decisions are the same on all ranks, so all make as many steps.
    """
    log = ""
    for _ in range(STEPS):
        log += train()
        if decisions():
            break
    kept = decisions()
    assert kept, log
    for _ in range(10):  # the first window, to which others are compared
        log += train()
    with contextlib.ExitStack() as stack:
        for one in longer:
            stack.enter_context(one)
        for _ in range(150):
            log += train()
            if decisions() and decisions() != kept:
                return log
    raise AssertionError(f"measured only once: {log}")


@cases
def a_codec_that_costs_more_than_the_link_is_left_out() -> str:
    """Singular vectors of small matrices: slow to compute, fast to send."""
    training = Training(
        "residual|atomo(rank=1,unbiased=false)", {"a": (128, 130), "b": (130, 128), "c": (50,)}
    )
    log = training.train(STEPS)
    (choice,) = training.choices()
    assert choice != "compressed", log
    check_log(log, "atomo", f"elements: {choice} (exchanges of a step: dense ")
    training.check_nothing_is_lost()
    return log


@cases
def a_slow_link_makes_compression_pay_and_a_resumed_run_remembers() -> str:
    shapes = {"a": (256, 256), "b": (250, 256), "c": (50,)}
    with slow_link():
        training = Training("residual|topk(ratio=0.01)", shapes)
        log = training.train(STEPS)
        assert training.choices() == ["compressed"], log
        check_log(log, "compressed (exchanges of a step: dense ")
        training.check_nothing_is_lost()
    (decision,) = training.compression.stats.decisions
    bytes_before = training.compression.stats.total_bytes
    assert training.train(1) == "", "it is decided once"
    assert training.compression.stats.total_bytes - bytes_before < 20_000

    # A new process: the link is fast now, but the loaded decisions are not measured again.
    resumed = Training("residual|topk(ratio=0.01)", shapes)
    state = training.compression.state_dict()
    names = dict(zip(training.params, resumed.params, strict=True))
    for kind, value in state.items():
        if isinstance(value, dict):
            state[kind] = {names[name]: one for name, one in value.items()}
    resumed.compression.load_state_dict(state)
    assert resumed.train(2) == ""
    assert resumed.compression.stats.decisions == (decision,)
    assert resumed.compression.stats.ratio > 20
    return log


@cases
def the_preset_compresses_on_a_slow_link() -> str:
    params = harness.parameters({"a": (64, 64)})
    preset = Compression(named_parameters=params.items()).config
    assert preset == Compression("auto", params.items()).config
    with slow_link():
        training = Training(preset, {"a": (256, 256), "b": (250, 256), "c": (50,)})
        log = training.train(60)  # before the ramp ends
        assert training.choices() == ["compressed"], log
        check_log(log, "residual", "adaptive", "compressed (exchanges of a step: dense ")
        training.check_nothing_is_lost()
    assert training.compression.stats.recent_ratio > 5
    return log


@cases
def a_prediction_for_a_slow_link_spares_the_slow_steps() -> str:
    spec, shapes = "residual|topk(ratio=0.01)", {"a": (256, 256), "b": (250, 256), "c": (50,)}
    with slow_link():
        training = Training(spec, shapes, prior(spec, 2**16, dense=0.3, fp16=0.15, compressed=0.01))
        log = training.train(1)
        assert training.choices() == ["compressed"], log
        check_log(log, "compressed (predicted: dense 300.000 ms", "left out: dense, fp16)")
        for _ in range(STEPS - 1):
            before = training.compression.stats.total_bytes
            assert training.train(1) == "", "it is decided once"
            assert training.compression.stats.total_bytes - before < 20_000
        training.check_nothing_is_lost()
    assert training.compression.stats.ratio > 20, "of all steps, the first one included"
    return log


@cases
def predictions_that_differ() -> None:
    params = harness.parameters({"w": harness.MATRIX})
    of_rank = prior("fp16", 5120, dense=1.0 + hvd.rank(), compressed=1.0)
    opt = harness.optimizer(params, Compression(config("fp16", of_rank), params.items()))
    harness.refused(
        lambda: harness.averages(opt, params, harness.gradients(params, 0)),
        ProtocolError,
        "the ranks run different compression",
        "with compress.prior ",
    )


@cases
def steps_of_another_length_get_a_second_look() -> str:
    with mock.patch.object(policy, "_WINDOW", 10):
        training = Training("residual|topk(ratio=0.01)", {"a": (128, 130), "c": (50,)})
        log = second_look(
            lambda: training.train(1),
            lambda: training.compression.stats.decisions,
            late(HorovodEngine, "start"),
            late(stock, "allreduce_async_"),  # dense steps may be Horovod's own
        )
    assert (log.count("gradcomp: policy auto:") >= 2) == (hvd.rank() == 0), log
    training.choices()
    training.check_nothing_is_lost()
    return log


@cases
def sums_are_sums_while_it_measures() -> None:
    params = harness.parameters({"w": harness.MATRIX})
    compression_ = Compression(config("residual|topk(k=5)"), params.items())
    opt = harness.optimizer(params, compression_, op=hvd.Sum)
    of_ranks = [harness.gradients(params, 0, rank) for rank in range(hvd.size())]
    (actual,) = harness.averages(opt, params, of_ranks[hvd.rank()]).values()  # dense at first
    torch.testing.assert_close(actual, sum(next(iter(one.values())) for one in of_ranks))


@cases
def names_are_needed() -> None:
    """Names are required even if no spec keeps state."""
    harness.refused(
        lambda: Compression(config("topk(k=5)")), ValueError, "policy 'auto'", "named_parameters"
    )
