"""Compressed next to uncompressed training: runs, their file, and the report."""

from __future__ import annotations

import runpy
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.text import Text
from torch import nn

import proof.report
from error_by_noise import WEIGHTS, Weighted
from gradcomp.errors import ConfigError
from proof.cells import SPECS, TASKS, Cell, chosen, plan
from proof.report import groups_of, page, write
from proof.store import Row, append, read, seconds_left
from proof.times import ALONE, Times, read_times, write_times
from proof.training import UNCOMPRESSED, TrainingTask, train, train_local
from training.tasks.data import load_digits_images
from training.tasks.models import digits_cnn

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs/results/proof"
MAIN = runpy.run_path(str(ROOT / "benchmarks/proof/__main__.py"))


@pytest.fixture(scope="module")
def digits() -> TrainingTask:
    return TrainingTask(load_digits_images(), digits_cnn, batch=4, bits=False)


def run(task: TrainingTask, spec: str, optimizer: str = "sgd", **changed: Any) -> Any:
    arguments: dict[str, Any] = {"lr": 0.05, "ranks": 2, "steps": 6, "seed": 3, **changed}
    return train(task, optimizer, spec=spec, **arguments)


# ------------------------------------------------------------------- training


def test_without_loss_of_bits_training_is_the_same(digits: TrainingTask) -> None:
    plain, lossless = run(digits, UNCOMPRESSED), run(digits, "lossless")
    assert plain.ratio == 1
    assert lossless.ratio > 1
    assert lossless.loss == pytest.approx(plain.loss, rel=1e-4)
    assert run(digits, UNCOMPRESSED) == plain
    assert run(digits, UNCOMPRESSED, seed=4) != plain
    assert 0 <= plain.accuracy <= 1


def test_losses_of_text_are_in_bits(digits: TrainingTask) -> None:
    nats = run(digits, UNCOMPRESSED).loss
    assert run(digits._replace(bits=True), UNCOMPRESSED).loss == pytest.approx(nats / np.log(2))


def test_local_steps_average_the_parameters(digits: TrainingTask) -> None:
    settings: dict[str, Any] = {"lr": 0.05, "ranks": 2, "steps": 6, "seed": 3}
    local = train_local(digits, "sgd", spec="fp16", every=3, **settings)
    assert local.ratio == pytest.approx(6, rel=0.02)
    assert train_local(digits, "sgd", spec="fp16", every=3, **settings) == local
    # With one rank, and all of each change taken over, outer steps do nothing.
    alone = {**settings, "ranks": 1}
    same = train_local(digits, "sgd", spec="residual|identity", every=2, **alone)
    assert same.loss == pytest.approx(
        train(digits, "sgd", spec=UNCOMPRESSED, **alone).loss, rel=1e-5
    )


def test_dgc_replaces_the_momentum_of_sgd(
    digits: TrainingTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    momenta = []
    sgd = torch.optim.SGD

    def keep(*arguments: Any, momentum: float, **named: Any) -> Any:
        momenta.append(momentum)
        return sgd(*arguments, momentum=momentum, **named)

    monkeypatch.setattr(torch.optim, "SGD", keep)
    for spec in ("dgc(ratio=0.01,warmup_epochs=0)", "residual|topk(ratio=0.01)"):
        run(digits, spec, steps=1)
    assert momenta == [0.0, 0.9]
    with pytest.raises(ValueError, match="AdamW has no place for; take sgd"):
        run(digits, "dgc(ratio=0.01,warmup_epochs=0)", "adamw")
    with pytest.raises(ValueError, match="got 'adam'; expected sgd or adamw"):
        run(digits, UNCOMPRESSED, "adam")


def test_a_loss_that_is_not_finite_ends_the_run(digits: TrainingTask) -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.full((10, 64), torch.nan))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flatten(1) @ self.weight.T

    result = run(digits._replace(model=Broken), "fp16")
    assert (result.loss, result.accuracy) == (None, None)


def test_weights_by_noise_lose_nothing() -> None:
    rng = np.random.default_rng(0)
    loop = Weighted(WEIGHTS["noise^-.5"], "adaptive(rate=0.5)", 2)
    sums = dict.fromkeys("ab", 0.0)
    for step in range(4):
        scales = {"a": 1, "b": 4 * (step + 1)}  # the weight of b falls from step to step
        grads = {
            name: [rng.normal(scale=scale, size=(64, 80)).astype(np.float32) for _ in range(2)]
            for name, scale in scales.items()
        }
        averages = loop.step(grads)
        for name, of_ranks in grads.items():
            sums[name] += np.mean(of_ranks, axis=0) - averages[name][0]
    assert 9 < loop.weights["a"] / loop.weights["b"] < 12
    for name, left in sums.items():
        residuals = [rank.state_dict()["residual"][name] for rank in loop.ranks]
        waits = np.mean(residuals, axis=0).reshape(64, 80) / loop.weights[name]
        np.testing.assert_allclose(left, waits, atol=1e-4)


# ---------------------------------------------------------------------- cells


def test_the_plan_names_each_run_once() -> None:
    cells = list(plan())
    assert len(set(cells)) == len(cells)
    assert {cell.task for cell in cells} == set(TASKS)
    assert {cell.spec for cell in cells} == set(SPECS)
    assert not [cell for cell in cells if cell.spec == "DGC .1%" and cell.optimizer == "adamw"]
    assert {cell.ranks for cell in cells} == {2, 4, 8}


def test_patterns_choose_runs() -> None:
    assert chosen([]) == list(plan())
    some = chosen(["kjv-1m/sgd/2 ranks/400 steps/auto/*"])
    assert [cell.seed for cell in some] == [0, 1, 2, 3, 4]
    with pytest.raises(ConfigError, match=r"'mnist/\*' matches no run; .*--list prints"):
        chosen(["kjv*", "mnist/*"])


def test_titles_give_the_number_of_parameters() -> None:
    for setup in TASKS.values():
        model = setup.model(63 if setup.bits else 10)
        count = sum(parameter.numel() for parameter in model.parameters())
        assert f"{count:,} parameters" in setup.title


# ---------------------------------------------------------------------- store


def cell_of(spec: str = UNCOMPRESSED, seed: int = 0, **changed: Any) -> Cell:
    return Cell("fashion-cnn", "sgd", 2, 400, spec, seed)._replace(**changed)


def test_runs_are_kept_until_their_spec_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "folder" / "results.jsonl"
    assert read(path) == {}
    rows = [Row(cell_of(), 0.5, 0.8, 1.0, 9.0), Row(cell_of("auto"), None, None, 20.0, 10.0)]
    for row in rows:
        append(path, row)
    assert list(read(path).values()) == rows
    monkeypatch.setitem(SPECS, "auto", "residual|adaptive(rate=2)")
    assert list(read(path)) == [cell_of()]
    monkeypatch.setitem(TASKS, "fashion-cnn", TASKS["fashion-cnn"]._replace(batch=8))
    assert read(path) == {}


@pytest.mark.parametrize("line", ["{", "[]", '{"task": "fashion-cnn"}'])
def test_a_wrong_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "results.jsonl"
    append(path, Row(cell_of(), 0.5, 0.8, 1.0, 9.0))
    with path.open("a") as file:
        file.write(line)
    with pytest.raises(ConfigError, match=r"results.jsonl, line 2: not a finished run .*; remove"):
        read(path)


def test_the_time_left_follows_finished_runs() -> None:
    rows = [Row(cell_of(), 0.5, 0.8, 1.0, 8.0), Row(cell_of("auto"), 0.5, 0.8, 20.0, 16.0)]
    assert seconds_left([cell_of(seed=1), cell_of("auto", 1, steps=800)], rows) == (40.0, 0)
    assert seconds_left([cell_of("sign", ranks=4), cell_of(task="kjv-1m")], rows) == (32.0, 1)


# ------------------------------------------------------------------- commands


def test_an_interrupted_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main, make_all = MAIN["main"], MAIN["make_all"]
    made = []

    def make(cell: Cell) -> Row:
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(cell)
        return Row(cell, 0.4, 0.9, 2.0, 30.0)

    monkeypatch.setitem(make_all.__globals__, "make", make)
    arguments = ["run", "--results", str(tmp_path / "results.jsonl")]
    arguments += ["--cells", "fashion-cnn/sgd/2 ranks/400 steps/[DPps]*/seed 0"]
    with pytest.raises(KeyboardInterrupt):
        main(arguments)
    assert "2 runs left, 1 min" in capsys.readouterr().out
    first = list(made)
    made.clear()
    assert main(arguments) == 0
    assert len(first) == len(made) == 2
    assert not set(first) & set(made)
    assert "2 of 4 runs are finished" in capsys.readouterr().out
    assert main([*arguments, "--list"]) == 0
    assert capsys.readouterr().out.count(": finished\n") == 4


def test_missing_data_is_an_error_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load() -> Any:
        raise ConfigError("Fashion-MNIST: no such folder; run apt-get install it")

    setup = TASKS["fashion-cnn"]
    monkeypatch.setitem(TASKS, "fashion-cnn", setup._replace(load=load))
    threads = torch.get_num_threads()
    assert MAIN["main"](["run", "--results", str(tmp_path / "results.jsonl")]) == 2
    torch.set_num_threads(threads)
    assert "proof: Fashion-MNIST: no such folder" in capsys.readouterr().err
    assert MAIN["main"](["report", "--results", str(tmp_path / "results.jsonl")]) == 1
    assert "has no finished runs" in capsys.readouterr().err


# --------------------------------------------------------------------- report


def rows_of(spec: str, *losses: float | None, ratio: float = 20.0, **changed: Any) -> list[Row]:
    return [
        Row(cell_of(spec, seed, **changed), loss, None if loss is None else 0.9, ratio, 1.0)
        for seed, loss in enumerate(losses)
    ]


ROWS = [
    *rows_of(UNCOMPRESSED, 0.40, 0.41, 0.42, ratio=1.0),
    *rows_of("auto", 0.41, 0.42, 0.42, ratio=21.0),
    *rows_of("top-k 1%", 0.42, 0.42, 0.44, ratio=40.0),
    *rows_of("sign", 0.40, None, ratio=30.0),
    *rows_of("fp16", 0.40, ratio=2.0),
    *rows_of(UNCOMPRESSED, 0.40, 0.41, ratio=1.0, ranks=4),
    *rows_of("auto", 0.5, 0.5, ratio=15.0, ranks=4),
]


def test_level_means_within_the_spread_of_uncompressed_seeds() -> None:
    two, four = groups_of(ROWS)
    assert two.spread == pytest.approx(0.01)
    found = {against.spec: against for against in two.compared}
    assert found["auto"].mean == pytest.approx(0.02 / 3)
    assert {name: against.level for name, against in found.items()} == {
        "fp16": None,
        "auto": True,
        "top-k 1%": False,
        "sign": False,
    }
    assert four.compared[0].level is False


def test_seeds_without_an_uncompressed_run_do_not_count() -> None:
    rows = [*rows_of(UNCOMPRESSED, 0.40, 0.41, ratio=1.0), *rows_of("auto", 0.4, 0.41, 0.9)]
    assert groups_of(rows)[0].compared[0].differences == [0.0, 0.0]
    assert groups_of(rows_of("auto", 0.4)) == []


def test_the_page_says_where_the_preset_is_not_level() -> None:
    text = page(ROWS)
    assert "`auto` is level in 1 of 2 cells, in 1 of these at 20 times fewer bytes" in text
    assert "- fashion-cnn, SGD, 4 ranks, 400 steps (+0.0950, spread 0.0071)" in text
    assert "| sign | diverged |  | +0.0000 diverged | 0.9000 | 30.0 | **not level** |" in text
    assert "| fashion-cnn, SGD, 2 ranks, 400 steps | (2.0) | 21.0 | **40.0, +0.0167** |" in text
    assert f"{len(list(plan())) - len(ROWS)} runs of the plan; {len(ROWS)} are finished." in text
    assert max(len(line) for line in text.splitlines() if not line.startswith("|")) <= 120


def test_labels_of_the_picture_lie_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    new_figure = proof.report.new_figure

    def keep(width: float, height: float) -> Any:
        made.append(new_figure(width, height))
        return made[-1]

    monkeypatch.setattr(proof.report, "new_figure", keep)
    write(ROWS, tmp_path)
    assert (tmp_path / "results.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "results.md").read_text(encoding="utf-8") == page(ROWS)
    for axes in made[0].axes:
        boxes = [Text.get_window_extent(text) for text in axes.texts]
        assert len(boxes) == 3
        assert not [(a, b) for a, b in combinations(boxes, 2) if a.overlaps(b)]


def test_the_page_is_that_of_the_file() -> None:
    rows = list(read(RESULTS / "results.jsonl").values())
    assert len(rows) == len((RESULTS / "results.jsonl").read_text().splitlines())
    assert (RESULTS / "results.md").read_text(encoding="utf-8") == page(rows)


# ---------------------------------------------------------------------- times


def times_of(spec: str, *seconds: float, rate: str = "1gbit") -> Times:
    return Times("kjv-1m", "adamw", 4, rate, 9e8, "a processor", spec, list(seconds))


def test_times_of_whole_runs_go_on_from_the_last_steps(tmp_path: Path) -> None:
    dense = times_of(UNCOMPRESSED, *[0.5] * 40)
    assert times_of("sign", *[0.5] * 39, 9.0).step == 0.5
    # Ten dense steps, then local ones, of which every tenth is long.
    mixed = times_of("local 10", *[0.5] * 10, *[0.1] * 10, *[*[0.1] * 9, 0.3] * 2)
    assert (dense.step, dense.whole) == (pytest.approx(0.5), pytest.approx(200))
    assert (mixed.step, mixed.whole) == (pytest.approx(0.12), pytest.approx(8.4 + 360 * 0.12))
    write_times([times_of("sign", *[9.0] * 40), dense, times_of(ALONE, *[0.1] * 40)], tmp_path)
    write_times([times_of("sign", *[0.25] * 40), mixed], tmp_path)
    assert len(read_times(tmp_path / "times.json")) == 4  # newer ones replace older ones
    text = (tmp_path / "times.md").read_text()
    names = "sign uncompressed 'nothing sent' 'local 10'"
    assert (
        f"times --task kjv-1m --optimizer adamw --ranks 4 --rates 1gbit --specs {names}\n" in text
    )
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert table == [
        "| | 1gbit (900 Mbit/s), ms a step | 400 steps, s | sooner |",
        "|---|---:|---:|---:|",
        "| nothing sent | 100 | 40.0 |  |",
        "| uncompressed | 500 | 200.0 | 1.0 |",
        "| sign | 250 | 100.0 | 2.0 |",
        "| local 10 | 120 | 51.6 | 3.9 |",
    ]
