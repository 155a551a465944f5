"""Ranks that are a step apart, or differ in state or parameters, end with a message."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gradcomp import Config, Loopback, Pipeline, ProtocolError
from gradcomp.codec.arrays import FloatArray, as_bytes
from gradcomp.exchange.engine import Driver
from gradcomp.exchange.rounds import AllReduce
from gradcomp.runtime.agree.agreement import agreement_line, check_agreement
from gradcomp.runtime.agree.marks import Marks
from gradcomp.runtime.agree.sent_text import SentText
from gradcomp.runtime.agree.step_check import call_text, check_step, gradients_text, step_text
from gradcomp.runtime.collector import Collector
from gradcomp.runtime.state import attendance
from support.pipelines import config_of
from support.thread_engine import RANKS, Board, Engine, on_all_ranks

SHAPES = {"w": (64, 80), "b": (300,)}
SPECS = [
    "randomk(ratio=0.1)",
    "randomblock(ratio=0.1)",
    "sketch(ratio=0.1)",
    "residual|randomk(ratio=0.1)",
    "momentum_correction|identity",
    "powersgd(rank=2,start_step=0)",
    "residual|adaptive(rate=0.25)",
    "dgc(warmup_epochs=0)",
    "signsgd_mv",
    "residual|topk(ratio=0.1)",
    "ef21|randomk(ratio=0.1)",
]


def gradients(step: int) -> dict[str, list[FloatArray]]:
    return {
        name: [
            np.random.default_rng([step, rank]).standard_normal(shape, np.float32)
            for rank in range(2)
        ]
        for name, shape in SHAPES.items()
    }


@pytest.mark.parametrize("spec", SPECS)
def test_an_older_state_on_one_rank_ends_the_next_step(spec: str) -> None:
    loop = Loopback(config_of(spec), 2)
    older: dict[str, Any] = {}
    for step in range(9):
        loop.step(gradients(step))
        if step == 5:
            older = loop.ranks[1].state_dict()
    loop.ranks[1].load_state_dict(older)
    with pytest.raises(ProtocolError, match="step: 9 on rank 0; 6 on rank 1"):
        loop.step(gradients(9))


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        ("powersgd(rank=2,start_step=0)", "powersgd_q of 1 tensors"),
        ("momentum_correction|identity", "momentum of 2 tensors"),
        ("residual|adaptive(rate=0.5,preset=basis)", "basis of 1 tensors"),
        ("ef21|topk(ratio=0.1)", "estimate_mean of 2 tensors"),
    ],
)
def test_replicated_state_of_another_run_is_found(spec: str, kind: str) -> None:
    runs = []
    for first in (0, 100):
        loop = Loopback(config_of(spec), 2)
        for step in range(first, first + 4):
            loop.step(gradients(step))
        runs.append(loop)
    state = runs[1].ranks[1].state_dict()
    runs[0].ranks[0].load_state_dict(runs[0].ranks[0].state_dict())
    runs[0].ranks[1].load_state_dict(state)
    with pytest.raises(ProtocolError, match=f"differ where they must be equal:\n(.*\n)?.*{kind}"):
        runs[0].step(gradients(4))


def test_a_state_that_one_rank_alone_loads_is_found() -> None:
    loop = Loopback(config_of("residual|topk(ratio=0.1)"), 2)
    loop.step(gradients(0))
    loop.ranks[1].load_state_dict(loop.ranks[1].state_dict())
    with pytest.raises(ProtocolError, match="rank 1 begins this step with a new or loaded"):
        loop.step(gradients(1))


def test_epochs_and_steps_of_the_script_are_compared() -> None:
    loop = Loopback(config_of("residual|topk(ratio=0.1)"), 2)
    loop.step(gradients(0))
    loop.ranks[0].set_epoch(1)
    with pytest.raises(ProtocolError, match="epoch: 1 on rank 0; None on rank 1"):
        loop.step(gradients(1))
    loop.ranks[1].set_epoch(1)
    loop.step(gradients(1))
    for rank, pipeline in enumerate(loop.ranks):
        pipeline.comparison.set_step(7 + rank)
    with pytest.raises(ProtocolError, match="the script's step: 7 on rank 0; 8 on rank 1"):
        loop.step(gradients(2))
    with pytest.raises(ValueError, match="step is -1"):
        loop.ranks[0].comparison.set_step(-1)


def trained(
    config: Config,
    steps: int,
    before: Callable[[int, int, Pipeline, dict[str, FloatArray]], None],
) -> list[Engine]:
    """Train on threads; ``before(rank, step, pipeline, parameters)`` runs before each step."""
    board = Board()
    engines = [Engine(board, rank) for rank in range(RANKS)]

    def rank_main(rank: int) -> None:
        pipeline = Pipeline(config, rank, RANKS)
        parameters = {name: np.ones(shape, np.float32) for name, shape in SHAPES.items()}
        collector = Collector(
            Driver(engines[rank]), pipeline, SHAPES, parameters=lambda: parameters.items()
        )
        for step in range(steps):
            before(rank, step, pipeline, parameters)
            collector.begin_step()
            for name, shape in SHAPES.items():
                grad = np.full(shape, rank + step, np.float32)
                collector.add(collector.resolve(name, shape), grad, grad.nbytes)
            for name, shape in SHAPES.items():
                parameters[name] -= collector.finish(name).reshape(shape)

    on_all_ranks(rank_main)
    return engines


def test_a_model_that_drifts_apart_is_named() -> None:
    config = config_of("residual|topk(ratio=0.1)").model_copy(update={"check_replicas_every": 3})

    def drift(rank: int, step: int, _: Pipeline, parameters: dict[str, FloatArray]) -> None:
        if rank == 2 and step == 4:
            parameters["b"][17] += 1

    # The digests of step 6 travel with step 7.
    with pytest.raises(
        ProtocolError,
        match=r"1 of 2 parameters differ before step 6, first 'b' .* on ranks 0, 1; \w+ on rank 2",
    ):
        trained(config, 12, drift)
    trained(config, 12, lambda *_: None)


def test_a_collector_finds_a_step_that_was_skipped() -> None:
    def skip(rank: int, step: int, pipeline: Pipeline, _: Any) -> None:
        pipeline.comparison.set_step(step + (rank == 1 and step >= 3))

    with pytest.raises(ProtocolError, match="the script's step: 3 on ranks 0, 2; 4 on rank 1"):
        trained(config_of("randomk(ratio=0.1)"), 6, skip)


@pytest.mark.parametrize("spec", ["identity", "fp16"])
def test_nothing_is_compared_where_no_average_depends_on_earlier_ones(spec: str) -> None:
    engines = trained(config_of(spec), 2, lambda *_: None)
    assert not any("check" in name for engine in engines for name in engine.started)


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"\n",
        b"no json\n",
        b"[]\n",
        b"{}\n",
        b'{"progress":[],"state":null,"parameters":null}\n',
        b'{"progress":{},"state":7,"parameters":null}\n',
        b'{"progress":{},"state":null,"parameters":3}\n',
        b'{"progress":{},"state":null,"parameters":[1]}\n',
        b'{"progress":{},"state":null,"parameters":["x",[]]}\n',
        b'{"progress":{},"state":null,"parameters":[1,[[]]]}\n',
        b"\xff\xfe\n",
        b"[" * 10_000 + b"\n",
    ],
)
def test_damaged_texts_are_protocol_errors(damaged: bytes) -> None:
    good = bytes(step_text({"step": 1}))
    with pytest.raises(ProtocolError):
        check_step(as_bytes(good + damaged), 2)


def test_texts_have_equal_sizes() -> None:
    sizes = {step_text({"step": step, "epoch": None}).size for step in range(0, 10**6, 997)}
    assert sizes == {64}


def test_gradients_of_different_parameters_are_found() -> None:
    """If the engine needs the same on all ranks: missing ones are named, and all of them compared."""
    parameters = [f"layer{number}" for number in range(6)]
    missing: list[list[str]] = [[], parameters[:2], parameters[1:5], [*parameters[1:4], "layer5"]]
    texts = [
        step_text({"step": 3}, gradients=gradients_text(set(parameters) - set(names), parameters))
        for names in missing
    ]
    check_step(np.concatenate([texts[2], texts[2]]), 2)
    with pytest.raises(ProtocolError, match="different parameters in this step") as found:
        check_step(np.concatenate(texts), 4)
    message = str(found.value)
    assert "all on rank 0; all but 2, layer0, layer1, digest " in message
    assert message.count("all but 4, layer1, layer2, layer3, ..., digest ") == 2


def test_versions_are_compared_before_configurations() -> None:
    lines = [agreement_line(Config.from_spec("sign"), SHAPES, None)] * 2
    check_agreement(lines)
    newer = {**json.loads(lines[1]), "version": "gradcomp 9.0, wire format 1", "config": "x"}
    with pytest.raises(
        ProtocolError, match=r"different versions: gradcomp .* on rank 0; gradcomp 9"
    ):
        check_agreement([lines[0], json.dumps(newer)])


@pytest.mark.parametrize(
    ("line", "part"),
    [
        *((line, "sends no text of gradcomp") for line in ("", "a\tb\tc", "[]", "3", "[" * 9999)),
        *((line, "does not tell its configuration") for line in ("{}", '{"version": 1}')),
    ],
)
def test_lines_of_another_form_are_protocol_errors(line: str, part: str) -> None:
    good = agreement_line(Config.from_spec("sign"), SHAPES, None)
    with pytest.raises(ProtocolError, match=f"rank 1 {part}"):
        check_agreement([good, line])


def test_models_are_compared_with_their_dtypes() -> None:
    config = Config.from_spec("sign")
    lines = [
        agreement_line(config, SHAPES, None, kinds=dict.fromkeys(SHAPES, kind))
        for kind in ("float32", "float16")
    ]
    check_agreement([lines[0]] * 2)
    with pytest.raises(
        ProtocolError,
        match=r"dtypes, layouts or order \(\d of float32, digest \w+ on rank 0; \d of float16, .*"
        r"same dtype",
    ):
        check_agreement(lines)


def test_ranks_in_different_calls() -> None:
    texts = [call_text("save()"), step_text({"step": 3}), call_text("save()")]
    check_step(np.concatenate([texts[0], texts[2]]), 2)
    for order, message in (
        (
            (0, 1, 2),
            r"must call save\(\), .* and rank 1 does not \(save\(\) on ranks 0, 2; a step on rank 1",
        ),
        ((1, 1, 0), r"and ranks 0, 1 do not \(a step on ranks 0, 1; save\(\) on rank 2\)"),
    ):
        with pytest.raises(ProtocolError, match=message):
            check_step(np.concatenate([texts[place] for place in order]), 3)
    with pytest.raises(ProtocolError, match=r"must call save\(\), .* load\(\) on rank 1"):
        check_step(np.concatenate([call_text("save()"), call_text("load()")]), 2)
    with pytest.raises(ProtocolError, match=r"every rank must call \['x'\]"):
        check_step(np.concatenate([step_text({"call": ["x"]}), step_text({"step": 1})]), 2)


class Store(dict[str, bytes]):
    """A store of marks, in one process."""

    def set(self, key: str, value: bytes) -> None:
        self[key] = value


@pytest.mark.parametrize(
    ("called", "named"), [([], "ranks 1, 2 do"), ([2], "rank 1 does"), ([1, 2], None)]
)
def test_a_long_wait_in_a_call_is_named(
    called: list[int], named: str | None, monkeypatch: Any, caplog: Any
) -> None:
    monkeypatch.setattr(attendance, "SECONDS", 0.01)
    store = Store()
    for rank in called:
        Marks(store, "save", rank, range(3)).answer()
    with Marks(store, "save", 0, range(3)).attended("save()"):
        time.sleep(0.1)
    messages = [record.getMessage() for record in caplog.records]
    assert bool(messages) == bool(named)
    assert all(message.endswith(f"same two steps, and {named} not") for message in messages)
    caplog.clear()
    with attendance.attended("save()", lambda: "another rank does"):
        pass
    time.sleep(0.05)
    assert not caplog.records


@pytest.mark.parametrize("differs", [(), (0,), (2,), (0, 1), (0, 1, 2)])
def test_texts_travel_only_where_they_differ(differs: tuple[int, ...]) -> None:
    board = Board()
    texts_of = [step_text({"step": 5 + (rank + 1) * (rank in differs)}) for rank in range(RANKS)]

    def rank_main(rank: int) -> tuple[bytes | None, list[str]]:
        engine = Engine(board, rank)
        sent = SentText(Driver(engine), RANKS, texts_of[rank])
        texts = sent.differing()
        return None if texts is None else texts.tobytes(), engine.started

    equal = not differs
    together = b"".join(text.tobytes() for text in texts_of)
    requests = ["step.check"] if equal else ["step.check", "step.texts"]
    assert on_all_ranks(rank_main) == [(None if equal else together, requests)] * RANKS


@pytest.mark.parametrize("ranks", [2, 3, 49, 1000, 4097])
def test_any_number_of_ranks_agrees(ranks: int) -> None:
    """Sums of ones are exact in float32, and their products with 1 / ranks are not always 1."""

    class Answering:
        def __init__(self, changed: bool) -> None:
            self.changed = changed

        def start(self, request: Any) -> Any:
            return request

        def finish(self, request: Any) -> Any:
            if not isinstance(request, AllReduce):
                return request.data
            sums = request.array * np.float32(ranks)
            sums[7] -= self.changed * np.sign(sums[7] - 0.5)
            return sums * np.float32(1 / ranks)

    text = step_text({"step": 5})
    for changed in (False, True):
        texts = SentText(Driver(Answering(changed)), ranks, text).differing()
        assert (texts is not None) == changed
