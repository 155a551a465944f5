"""Metrics of a job as rows in files and trackers."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradcomp import ConfigError, Loopback, Metrics

SPEC = "residual|topk(ratio=0.01)"
GROUP = "residual_topk_ratio_0.01"


def train(loop: Loopback, metrics: list[Metrics], steps: int) -> None:
    rng = np.random.default_rng(0)
    for _ in range(steps):
        loop.step({"w": [rng.standard_normal((100, 100), np.float32) for _ in loop.ranks]})
        for of_rank in metrics:
            of_rank.step()


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_rows_are_written_every_n_steps_and_at_the_end(tmp_path: Path) -> None:
    loop = Loopback(SPEC, 2)
    metrics = Metrics(loop.ranks[0], tmp_path / "new/metrics.csv", every=5)
    train(loop, [metrics], 13)
    metrics.close()
    metrics.close()
    rows = read_csv(tmp_path / "new/metrics.csv")
    assert [row["step"] for row in rows] == ["1", "6", "11", "13"]
    stats = loop.stats[0]
    last = {name: float(value) for name, value in rows[-1].items()}
    assert last["gradcomp/total_bytes"] == stats.total_bytes
    assert last["gradcomp/sent_bytes/allgather"] == stats.sent_bytes["allgather"]
    assert last["gradcomp/bytes_per_step"] == pytest.approx(stats.bytes_per_step, rel=0.02)
    assert last["gradcomp/link_ratio"] == pytest.approx(stats.link_ratio, rel=0.02)
    assert last["gradcomp/compression_seconds"] > 0
    assert last["gradcomp/faults"] == 0


def test_norms_and_errors_are_those_of_the_step(tmp_path: Path) -> None:
    """The error of a codec is that of its residual: of a rank's gradient what it has not sent."""
    loop, rows = Loopback(SPEC, 2), []
    metrics = Metrics(loop.ranks[0], lambda values, step: rows.append(values), every=3)
    rng = np.random.default_rng(0)
    for step in range(4):
        residual = np.array(loop.ranks[0].state_dict()["residual"].get("w", np.zeros(10_000)))
        grads = [rng.standard_normal((100, 100), np.float32) for _ in loop.ranks]
        loop.step({"w": grads})
        metrics.step(step)
    corrected = grads[0].reshape(-1) + residual
    left = loop.ranks[0].state_dict()["residual"]["w"]
    assert len(rows) == 2
    assert rows[1][f"gradcomp/grad_norm/{GROUP}"] == pytest.approx(np.linalg.norm(grads[0]))
    assert rows[1][f"gradcomp/residual_norm/{GROUP}"] == pytest.approx(np.linalg.norm(residual))
    error = np.sum(np.square(left, dtype=float)) / np.sum(np.square(corrected, dtype=float))
    assert rows[1][f"gradcomp/error/{GROUP}"] == pytest.approx(error, rel=1e-5)


@pytest.mark.parametrize(
    ("spec", "group", "error"),
    [("int8", "int8", 1e-4), ("fp16", "fp16", 1e-7), ("powersgd(rank=1,start_step=0)", "", None)],
)
def test_errors_of_specs_without_a_residual(spec: str, group: str, error: float | None) -> None:
    loop, rows = Loopback(spec, 2), []
    metrics = Metrics(loop.ranks[0], lambda values, step: rows.append(values), every=1)
    train(loop, [metrics], 2)
    found = [value for name, value in rows[-1].items() if "/error/" in name]
    if error is None:
        assert found == []
    else:
        assert 0 < rows[-1][f"gradcomp/error/{group}"] < error


def test_averages_do_not_depend_on_metrics() -> None:
    def last(measures: bool) -> Any:
        loop = Loopback("residual|adaptive(rate=0.5)", 2)
        metrics = [Metrics(rank, lambda values, step: None, every=2) for rank in loop.ranks]
        train(loop, metrics if measures else [], 5)
        return loop.ranks[0].state_dict()["residual"]["w"]

    np.testing.assert_array_equal(last(True), last(False))


def test_phases_of_a_profile() -> None:
    loop, rows = Loopback(SPEC, 2), []
    metrics = Metrics(loop.ranks[0], lambda values, step: rows.append(values), every=1)
    loop.stats[0].start_profile()
    train(loop, [metrics], 3)
    assert rows[-1]["gradcomp/phase_seconds/encode"] > 0


def test_a_csv_file_is_continued_with_further_columns(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    for spec in (SPEC, "int8"):
        loop = Loopback(spec, 2)
        train(loop, [Metrics(loop.ranks[0], str(path), every=1)], 2)
    rows = read_csv(path)
    assert [row["step"] for row in rows] == ["1", "2", "1", "2"]
    assert [bool(row["gradcomp/error/int8"]) for row in rows] == [False, False, True, True]
    assert [bool(row[f"gradcomp/error/{GROUP}"]) for row in rows] == [True, True, False, False]


SAMPLE = re.compile(r'([a-z_:][a-z0-9_:]*)\{((?:[a-z_]+="[^"\\\n]*",?)*)\} (\S+)')
"""A line of Prometheus' text format, version 0.0.4."""


def read_prometheus(path: Path) -> dict[str, float]:
    kinds: dict[str, str] = {}
    found = {}
    for line in path.read_text().splitlines():
        if line.startswith("# TYPE "):
            name, kind = line.split()[2:]
            assert name not in kinds
            kinds[name] = kind
            continue
        match = SAMPLE.fullmatch(line)
        assert match is not None, line
        assert list(kinds)[-1] == match[1], "the samples of a name follow its type"
        found[f"{match[1]}{{{match[2]}}}"] = float(match[3])
    assert {kind for name, kind in kinds.items() if name.endswith("_total")} == {"counter"}
    return found


def test_every_rank_replaces_its_file_of_prometheus(tmp_path: Path) -> None:
    loop = Loopback(SPEC, 2)
    path = str(tmp_path / "gradcomp-{rank}.prom")
    train(loop, [Metrics(rank, path, every=1) for rank in loop.ranks], 3)
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "gradcomp-0.prom",
        "gradcomp-1.prom",
    ]
    for rank, stats in enumerate(loop.stats):
        found = read_prometheus(tmp_path / f"gradcomp-{rank}.prom")
        sent = found[f'gradcomp_sent_bytes_total{{rank="{rank}",kind="allgather"}}']
        assert sent == stats.sent_bytes["allgather"]
        assert found[f'gradcomp_steps_total{{rank="{rank}"}}'] == 3
        assert 0 < found[f'gradcomp_error{{rank="{rank}",spec="{GROUP}"}}'] < 1


def test_other_ranks_write_to_nothing_else(tmp_path: Path) -> None:
    loop, called = Loopback(SPEC, 2), []
    path = tmp_path / "metrics.csv"
    metrics = Metrics(loop.ranks[1], path, lambda values, step: called.append(step), every=1)
    train(loop, [metrics], 2)
    assert not path.exists()
    assert called == []


def test_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    loop = Loopback(SPEC, 2)
    with SummaryWriter(str(tmp_path)) as writer:
        train(loop, [Metrics(loop.ranks[0], writer, every=2)], 5)
    events = EventAccumulator(str(tmp_path)).Reload()
    found = events.Scalars("gradcomp/link_ratio")
    assert [one.step for one in found] == [1, 3, 5]
    assert found[-1].value == pytest.approx(loop.stats[0].link_ratio, rel=0.02)
    assert f"gradcomp/error/{GROUP}" in events.Tags()["scalars"]


def wandb_log(data: dict[str, Any], step: int | None = None, commit: bool | None = None) -> None:
    """As ``wandb.log``, which takes numbers that JSON has."""
    calls.append((json.loads(json.dumps(data, allow_nan=False)), step))


MLFLOW_NAME = re.compile(r"[\w\-. /]+")


def log_metrics(
    metrics: dict[str, float],
    step: int | None = None,
    synchronous: bool | None = None,
    run_id: str | None = None,
) -> None:
    """As ``mlflow.log_metrics``, which refuses names with other characters."""
    assert all(MLFLOW_NAME.fullmatch(name) for name in metrics)
    calls.append((metrics, step))


calls: list[tuple[Mapping[str, float], int | None]] = []


@pytest.mark.parametrize("write", [wandb_log, log_metrics])
def test_functions_with_the_signatures_of_trackers(write: Any) -> None:
    calls.clear()
    loop = Loopback("residual|topk(ratio=ramp(from=0.25,to=0.01,steps=100))", 2)
    metrics = Metrics(loop.ranks[0], write, every=1)
    train(loop, [metrics], 2)
    assert [step for _, step in calls] == [1, 2]
    assert {type(value) for value in calls[0][0].values()} <= {int, float}


@pytest.mark.parametrize("writer", ["metrics.txt", 3, None])
def test_other_writers_are_refused(writer: Any) -> None:
    with pytest.raises(ConfigError, match=r"cannot write metrics; give a path that ends in \.csv"):
        Metrics(Loopback(SPEC, 2).ranks[0], writer)


def test_a_wrong_period_and_a_foreign_file_are_refused(tmp_path: Path) -> None:
    rank = Loopback(SPEC, 2).ranks[0]
    with pytest.raises(ConfigError, match="every is 0; it must be at least 1"):
        Metrics(rank, every=0)
    path = tmp_path / "results.csv"
    path.write_text("loss,accuracy\n")
    with pytest.raises(ConfigError, match="first column is 'loss' and must be 'step'"):
        Metrics(rank, path)
    assert path.read_text() == "loss,accuracy\n"


def test_the_page_lists_every_name() -> None:
    text = (Path(__file__).parents[2] / "docs/metrics.md").read_text()
    table = text.split("## Names")[1].split("## Costs")[0]
    listed = set(re.findall(r"`([a-z_]+)(?:/[A-Z]+)?`", table))
    loop, rows = Loopback(SPEC, 2), []
    metrics = Metrics(loop.ranks[0], lambda values, step: rows.append(values), every=1)
    loop.stats[0].start_profile()
    train(loop, [metrics], 2)
    written = {name.split("/")[1] for name in rows[-1]}
    assert written <= listed
    assert {"link_ratio", "error", "phase_seconds"} <= written
