"""`gradcomp report`: a page on runs of scripts/train.py and on profiles."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from typer.testing import CliRunner

from gradcomp import Loopback
from gradcomp.cli.app import app
from gradcomp.runtime.measure.profile_files import write_jsonl
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


@pytest.fixture
def page(tmp_path: Path) -> str:
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
        ("metrics.jsonl", '{"kind": "step", "step": "x"}\n', "'step' is 'x' in the row"),
        ("rank0.jsonl", '{"step": 1, "seconds": 1}\n', "'phases' is None in the row"),
    ],
)
def test_folders_without_a_run(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    result = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert result.exit_code == 2
    assert message in result.stderr


def test_an_output_that_cannot_be_written(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "fp16", epochs=1)
    missing = tmp_path / "no" / "report.html"
    result = CliRunner().invoke(app, ["report", str(tmp_path / "run"), "--output", str(missing)])
    assert result.exit_code == 2
    assert f"cannot write '{missing}': No such file or directory" in result.stderr
    assert json.loads((tmp_path / "run" / "run.json").read_text())["world_size"] == 2
