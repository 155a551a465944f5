"""`gradcomp report`: a page on runs of scripts/train.py and on profiles."""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from typer.testing import CliRunner

from gradcomp import Loopback
from gradcomp.cli.app import app
from gradcomp.runtime.measure.profile_files import write_jsonl
from gradcomp.tools.run_folder import read_run
from gradcomp.tools.run_progress import bytes_of_step, last_step, progress, seconds_of_step
from training.metrics import EpochRow, MetricsLog, StepRow, write_json

HOSTILE = '<script>alert("x")</script>'


class Page(HTMLParser):
    """The elements and texts of a page; refuses one that is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data.strip())


def write_run(folder: Path, spec: str, epochs: int = 2, profile: Path | None = None) -> None:
    """The files of a run, as scripts/train.py writes them."""
    folder.mkdir()
    config = {"compress": {"default": spec}, "train": {"lr": 0.1, "note": HOSTILE}}
    if profile is not None:
        config["stats"] = {"profile": str(profile)}
    write_json(folder / "run.json", {"task": "digits", "world_size": 2, "config": config})
    log = MetricsLog(folder, tensorboard=False, resume_step=None)
    for epoch in range(1, epochs + 1):
        for step in range(50 * epoch - 49, 50 * epoch + 1):
            log.write(StepRow(step, epoch, 3 / step, 0.1, 1000, 1000 * step, 0.002))
        log.write(EpochRow(50 * epoch, epoch, 0.5, 0.7 + epoch / 10, 0.9, 1000.0, 2.0, 0.002))
    log.close()


def write_profile(folder: Path) -> None:
    """The profile of a loopback's first rank."""
    loop = Loopback("residual|topk(ratio=0.01)", 2)
    profile = loop.stats[0].start_profile(error=True)
    loop.stats[1].start_profile(error=True)
    for step in range(3):
        random = np.random.default_rng(step)
        shapes = {"w": (100, 100), "v": (50, 40)}
        grads = {
            name: [random.standard_normal(shape) for _ in range(2)]
            for name, shape in shapes.items()
        }
        grads["v"] = [np.ones((50, 40), np.float32)] * 2
        loop.step(grads)
    write_jsonl(profile, folder / "rank0.jsonl")


def report(tmp_path: Path, *folders: Path) -> str:
    output = tmp_path / "report.html"
    arguments = ["report", *map(str, folders), "--output", str(output)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{output}\n"
    return output.read_text()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    tmp_path = tmp_path_factory.mktemp("page")
    write_profile(tmp_path / "profile")
    write_run(tmp_path / "dense", "identity")
    write_run(tmp_path / "top-k", "residual|topk(ratio=0.01)", profile=tmp_path / "profile")
    return report(tmp_path, tmp_path / "dense", tmp_path / "top-k")


def charts(page: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(one) for one in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


def words(chart: ElementTree.Element) -> list[str]:
    return [one.text or "" for one in chart.iter("{http://www.w3.org/2000/svg}text")]


def test_a_page_of_two_runs_has_all_its_parts(page: str) -> None:
    parsed = Page(page)
    headings = [
        *("Results", "Training loss", "Test accuracy", "Test loss", "Where a step's time goes"),
        *("Error of the averages", "Settings"),
    ]
    assert [text for text in parsed.texts if text in headings] == headings
    losses, accuracies, bits, times, errors, tensors = charts(page)
    for chart, quantity in (
        (losses, "training loss"),
        (accuracies, "test accuracy"),
        (bits, "cross-entropy in the test, bits"),
    ):
        for label in (quantity, "step", "seconds in steps"):
            assert label in words(chart)
        assert any("MB of gradients" in word for word in words(chart))
    assert {"encode", "decode", "error"} <= set(words(times))
    assert "vNMSE of the average" in words(errors)
    assert any(text.startswith("Error by tensor and step, ") for text in parsed.texts)
    assert {"w", "v", "step of the profile"} <= set(words(tensors))
    assert page.count("Error by tensor and step") == 1, "one run has measured errors"
    assert "0.9000" in parsed.texts, "the accuracy of the last epoch"
    assert "1.0" in parsed.texts, "kB a step"


def test_runs_are_named_by_their_specs(page: str) -> None:
    """Where these differ, without parameters that have their defaults."""
    results, settings = re.findall("<table>.*?</table>", page, re.DOTALL)
    assert re.findall("<td>([^<]*)</td><td class", results) == [
        "identity",
        "residual|topk(ratio=0.01)",
    ]
    assert settings.startswith(
        "<table><tr><th>setting</th><th>identity</th><th>residual|topk(ratio=0.01)</th></tr>"
    )
    assert "residual|topk(ratio=0.01)" in words(charts(page)[3]), "the bar of its times"


def test_bytes_are_times_fewer_than_those_of_gradients(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "fp16")
    facts = json.loads((tmp_path / "run/run.json").read_text()) | {"parameters": 500}
    write_json(tmp_path / "run/run.json", facts)
    write_profile(tmp_path / "profile")
    page = report(tmp_path, tmp_path / "run", tmp_path / "profile")
    assert "<th>times fewer</th>" in page
    first, second = re.findall("<tr><td><span.*?</tr>", page)
    assert '<td class="number">1.0</td><td class="number">2.0</td>' in first  # of 1,000 bytes
    lines = (tmp_path / "profile/rank0.jsonl").read_text().splitlines()
    rows = list(map(json.loads, lines))
    times = sum(r["dense_bytes"] for r in rows) / sum(sum(r["sent_bytes"].values()) for r in rows)
    assert f'<td class="number">{times:,.1f}</td>' in second


def test_columns_that_no_run_fills_are_left_out(tmp_path: Path) -> None:
    """So that those of a profile fit on a telephone."""
    write_profile(tmp_path / "profile")
    page = report(tmp_path, tmp_path / "profile")
    header, row = re.findall("<tr>(.*?)</tr>", page)[:2]
    names = ["run", "steps", "kB a step", "times fewer", "ms a step"]
    assert re.findall("<th>(.*?)</th>", header) == names
    assert row.count("<td") == len(names)


def test_steps_are_whole_numbers(tmp_path: Path) -> None:
    write_profile(tmp_path / "profile")  # three steps
    page = report(tmp_path, tmp_path / "profile")
    _, errors, tensors = charts(page)
    for chart in (errors, tensors):
        ticks = [word for word in words(chart)[:4] if re.fullmatch(r"[0-9.]+", word)]
        assert ticks
        assert all(tick.isdigit() for tick in ticks)


def test_settings_are_side_by_side_and_differences_marked(page: str) -> None:
    marked = re.findall(r'<tr class="differs">(.*?)</tr>', page)
    assert any("compress.default" in row and "residual|topk(ratio=0.01)" in row for row in marked)
    assert not any("train.lr" in row for row in marked)
    assert "train.lr" in page


def test_the_page_needs_nothing_else_and_follows_the_theme(page: str) -> None:
    parsed = Page(page)
    assert not {"script", "link", "img", "iframe", "image"} & set(parsed.tags)
    for name, value in parsed.attributes:
        if name in ("href", "src", "xlink:href"):
            assert value.startswith("#"), value
    assert not re.search(r"@import|url\((?!#)", page)
    assert "prefers-color-scheme: dark" in page
    assert "#010203" not in page
    for chart in charts(page):
        assert "currentColor" in ElementTree.tostring(chart, "unicode")


def test_values_are_text(page: str) -> None:
    assert HOSTILE not in page
    assert HOSTILE in Page(page).texts


def test_identifiers_of_references_are_unique(page: str) -> None:
    defined = re.findall(r'<(?:path|clipPath) id="([^"]*)"', page)
    used = set(re.findall(r'(?:xlink:href="|url\()#([^")]*)', page))
    assert used <= set(defined)
    assert all(defined.count(one) == 1 for one in used)


def test_a_profile_alone_and_a_run_that_goes_on(tmp_path: Path) -> None:
    write_profile(tmp_path / "profile")
    alone = report(tmp_path, tmp_path / "profile")
    assert len(charts(alone)) == 3
    write_run(tmp_path / "run", "fp16", epochs=1)
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "step", "st')  # being written
    page = report(tmp_path, tmp_path / "run")
    assert "No run has a profile" in page
    assert "0.8000" in Page(page).texts


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("other.txt", "", "has neither metrics.jsonl nor the rank0.jsonl of a profile"),
        ("metrics.jsonl", "{\n", "metrics.jsonl, line 1: no JSON"),
        ("metrics.jsonl", "[1]\n", "line 1: a list, not an object"),
        (
            "metrics.jsonl",
            '{"kind": "step", "step": "x"}\n',
            "line 1: 'step' is 'x'; it must be an integer >= 0",
        ),
        ("rank0.jsonl", '{"step": 1, "seconds": 1}\n', "'phases' is None; it must be an object of"),
    ],
)
def test_folders_without_a_run(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    result = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert result.exit_code == 2
    assert message in result.stderr


def step(number: int, **changed: object) -> dict[str, object]:
    row = {"kind": "step", "step": number, "epoch": 1, "loss": 1.5, "lr": 0.1, "sent_bytes": 1000}
    return {**row, "sent_bytes_total": 1000 * number, "seconds": 0.01, **changed}


def epoch(number: int, **changed: object) -> dict[str, object]:
    row = {"kind": "epoch", "step": number, "epoch": 1, "accuracy": 0.75, "test_bits": 0.9}
    return {**row, "sent_bytes_per_step": 1000.0, "median_step_seconds": 0.01, **changed}


def profiled(number: int, **changed: object) -> dict[str, object]:
    row = {
        "step": number,
        "seconds": 0.1,
        "phases": {"encode": 0.01},
        "sent_bytes": {"gather": 100},
    }
    return {**row, "vnmse": 0.1, "errors": {"w": 0.1}, **changed}


def write_rows(folder: Path, rows: Sequence[object], name: str = "metrics.jsonl") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    texts = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (folder / name).write_text("".join(f"{text}\n" for text in texts))


def try_report(tmp_path: Path, *folders: Path) -> tuple[str, str]:
    """The page and what a report says; it must not end with a traceback or warnings of Python."""
    output = tmp_path / "report.html"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = CliRunner().invoke(app, ["report", *map(str, folders), "--output", str(output)])
    assert result.exit_code == 0, result.output
    return output.read_text(), result.stderr


def test_a_run_that_is_shorter_than_log_every_has_its_tests(tmp_path: Path) -> None:
    write_rows(tmp_path / "run", [epoch(5), epoch(10, accuracy=0.8)])
    page, said = try_report(tmp_path, tmp_path / "run")
    assert not said
    assert len(charts(page)) == 2
    cells = re.findall('<td class="number">(.*?)</td>', page)
    assert cells == ["10", "0.8000", "0.9000", "1.0", "10.0"]  # it has no number of ranks


def test_rows_of_some_steps_stand_for_all(tmp_path: Path) -> None:
    write_rows(tmp_path, [step(10), step(20, seconds=0.03), epoch(22), step(30)])
    run = read_run(tmp_path)
    sent, seconds = progress(run, [10, 15, 22, 30])
    assert sent.tolist() == [10_000, 15_000, 22_000, 30_000]
    assert seconds.tolist() == pytest.approx([0.1, 0.25, 0.42, 0.5])
    assert (last_step(run), bytes_of_step(run), seconds_of_step(run)) == (30, 1000, 0.01)


NAMES = ("w$x$", r"$\frac{", "\\$", "_x", "a\nb", "\ud800", "\u4e2d", "<b>&")


def test_names_are_texts_and_no_formulas(tmp_path: Path) -> None:
    folder = tmp_path / "a$b$c_{x}^"
    write_rows(folder, [step(1), epoch(1)])
    errors = {name: place + 1.0 for place, name in enumerate(NAMES)}
    write_rows(folder, [profiled(n, errors=errors) for n in range(3)], "rank0.jsonl")
    (folder / "run.json").write_text(json.dumps({"config": {"$a$": "$b$", "\ud800": "\udfff"}}))
    page, said = try_report(tmp_path, folder)
    assert not said
    shown = {word for chart in charts(page) for word in words(chart)}
    assert {"w$x$", r"$\frac{", "_x", "a?b", "?", "\u4e2d", "<b>&", str(folder)} <= shown


ODD_ROWS = {
    "line 2: no JSON": '{"kind": "st',
    "no JSON: maximum recursion": "[" * 100_000,
    "line 2: a list": [],
    "'step' is -1; it must be an integer >= 0": step(-1),
    "'step' is True": step(True),
    "'step' is 1.5": step(1.5),  # type: ignore[arg-type]
    "'step' is 1000": step(10**400),
    "'loss' is None; it must be a number": step(3, loss=None),
    "'seconds' is nan; it must be a number >= 0": step(3, seconds=math.nan),
    "'sent_bytes_total' is '1'": step(3, sent_bytes_total="1"),
    "'accuracy' is 'x'; it must be a number or null": epoch(3, accuracy="x"),
    "'kind' is None; it must be step or epoch": {"step": 3},
}


@pytest.mark.parametrize("message", ODD_ROWS)
def test_odd_rows_are_left_out_with_a_line(tmp_path: Path, message: str) -> None:
    write_rows(tmp_path, [step(1), ODD_ROWS[message], step(2), epoch(2)])
    run = read_run(tmp_path)
    (said,) = run.warnings
    assert said.startswith(f"{tmp_path / 'metrics.jsonl'}, line 2: ")
    assert message in said
    assert (len(run.steps), len(run.epochs)) == (2, 1)
    write_rows(tmp_path, [ODD_ROWS[message]] * 2)
    result = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert "and 1 more lines" in result.stderr


@pytest.mark.parametrize(
    "changed",
    [{"phases": {"encode": "x"}}, {"phases": 3}, {"sent_bytes": {"a": None}}, {"errors": [1]}],
)
def test_odd_rows_of_a_profile(tmp_path: Path, changed: dict[str, object]) -> None:
    write_rows(tmp_path, [profiled(1, **changed), profiled(2)], "rank0.jsonl")
    (said,) = read_run(tmp_path).warnings
    assert f"rank0.jsonl, line 1: '{next(iter(changed))}' is" in said


def test_unusual_runs_have_a_page(tmp_path: Path) -> None:
    runs: list[list[object]] = [
        [step(1)],
        [step(0), epoch(0)],
        [step(n, sent_bytes=0, sent_bytes_total=0, seconds=0) for n in range(9)],
        [step(n, loss=1e308 * (-1) ** n) for n in range(30)],
        [step(3), step(3), step(1), epoch(2), epoch(2)],
        [{"kind": "epoch", "step": 3}],
    ]
    for number, rows in enumerate(runs):
        write_rows(tmp_path / "runs" / str(number), rows)
    assert not try_report(tmp_path, tmp_path / "runs")[1]
    # Alone: without any bytes, or any values.
    for number in (2, 5):
        assert not try_report(tmp_path, tmp_path / "runs" / str(number))[1]


def test_unusual_profiles_have_pages(tmp_path: Path) -> None:
    profiles: list[dict[str, object]] = [
        {"phases": {}, "sent_bytes": {}, "errors": None, "vnmse": None},
        {"phases": {"new$phase$": 1.0}},
        {"vnmse": math.nan, "errors": {"w": math.inf, "v": None}},
        {"vnmse": 0.0, "errors": {"w": 0.0}},
        {"errors": {"w": 5e-324, "v": 1e300}},
    ]
    for number, changed in enumerate(profiles):
        rows = [profiled(n, **changed) for n in (2, 2, 1)]
        write_rows(tmp_path / "runs" / str(number), rows, "rank0.jsonl")
    assert not try_report(tmp_path, tmp_path / "runs")[1]
    for number in (0, 1, 2):
        assert not try_report(tmp_path, tmp_path / "runs" / str(number))[1]


def test_losses_that_are_not_finite_are_named(tmp_path: Path) -> None:
    rows = [step(n, loss=math.nan if n > 3 else 1.0) for n in range(1, 9)]
    write_rows(tmp_path / "run", [*rows, epoch(8, test_bits=math.inf)])
    said = try_report(tmp_path, tmp_path / "run")[1]
    assert "'loss' is not finite in 5 rows, the first of step 4\n" in said
    assert "'test_bits' is not finite in 1 rows, the first of step 8\n" in said


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"config": [1, 2], "world_size": {"a": 1}}, ""),
        ({"config": {"stats": {"profile": 3}}}, ""),
        ({"config": {"stats": []}}, ""),
        (json.loads('{"config": ' + '{"a": ' * 800 + "1" + "}" * 800 + "}"), ""),
        ([1], "run.json, line 1: a list, not an object"),
        ("{", "run.json, line 1: no JSON"),
    ],
)
def test_odd_facts(tmp_path: Path, facts: Any, said: str) -> None:
    write_rows(tmp_path, [step(1)])
    write_rows(tmp_path, [facts], "run.json")
    write_rows(tmp_path, ["{"], "summary.json")
    run = read_run(tmp_path)
    assert "summary.json, line 1: no JSON" in run.warnings[0]
    assert [said in line for line in run.warnings[1:]] == ([True] if said else [])
    assert all(isinstance(value, str) for value in run.settings.values())


def test_a_folder_that_holds_runs(tmp_path: Path) -> None:
    home = tmp_path / "compare"
    for name in ("fp16/seed-0", "fp16/seed-1", "top-k/seed-0"):
        write_rows(home / name, [step(1), epoch(1)])
    write_rows(home / "profiles", [profiled(1)], "rank0.jsonl")
    config = {"config": {"stats": {"profile": str(home / "profiles")}}}
    write_rows(home / "fp16/seed-1", [config], "run.json")
    write_rows(home / "fp16/seed-1/inside", [step(1)])
    write_rows(home / "fp16/seed-2", [])
    (home / "comparison.md").write_text("a table")
    page, said = try_report(tmp_path, home)
    labels = [str(home / name) for name in ("fp16/seed-0", "fp16/seed-1", "top-k/seed-0")]
    assert re.findall(r'<span class="key".*?></span>(.*?)</td>', page) == labels
    assert said.startswith(
        f"gradcomp: left out: '{home / 'fp16/seed-2'}' has no rows of a run (no step"
    )
    assert len(said.splitlines()) == 1
    for name, message in (("comparison.md", "is a file"), ("nowhere", "does not exist")):
        result = CliRunner().invoke(app, ["report", str(home / name)])
        assert result.exit_code == 2
        assert result.stderr.startswith(f"gradcomp: '{home / name}' {message}: give the output")


def test_an_output_that_cannot_be_written(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "fp16", epochs=1)
    missing = tmp_path / "no" / "report.html"
    result = CliRunner().invoke(app, ["report", str(tmp_path / "run"), "--output", str(missing)])
    assert result.exit_code == 2
    assert f"cannot write '{missing}': No such file or directory" in result.stderr
    assert json.loads((tmp_path / "run" / "run.json").read_text())["world_size"] == 2
