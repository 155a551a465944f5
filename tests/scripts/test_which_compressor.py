"""The page "Which compressor?" shows the data that it names."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest
from matplotlib.text import Text

import which_compressor
from which_compressor import ROOT, colour, draw, survey_errors, table, training_runs

PAGE = (ROOT / "docs/which-compressor.md").read_text(encoding="utf-8")


def test_the_table_of_the_page_is_that_of_the_results() -> None:
    assert f"\n\n{table()}\n\n" in PAGE


def test_errors_are_those_of_the_survey() -> None:
    errors = survey_errors()
    assert errors["topk"] == (0.401, 0.24)
    assert errors["int8"] == (8.06, 0.00012)
    assert errors["adaptive"] == (0.25, 0.12)


def test_runs_are_those_of_the_results() -> None:
    spread, runs = training_runs("char-transformer")
    first, *_, last = runs
    assert spread == 0.013
    assert (first.name, first.worse, first.kilobytes) == ("uncompressed", 0.0, 1700.0)
    assert (last.name, last.level, last.kilobytes) == ("PowerSGD rank 4", True, 90.8)
    assert last.worse == pytest.approx(0.008)
    short = {run.name: run.level for run in training_runs("Equal bits: char-transformer")[1]}
    assert short["adaptive .5"]
    assert not short["top-k .5"]


def test_labels_of_the_picture_lie_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    new_figure = which_compressor.new_figure

    def keep(width: float, height: float) -> object:
        made.append(new_figure(width, height))
        return made[-1]

    monkeypatch.setattr(which_compressor, "new_figure", keep)
    draw(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    for axes in made[0].axes:
        # Not the box of an annotation, in which its arrow lies too.
        boxes = [Text.get_window_extent(text) for text in axes.texts]
        if axes.get_legend() is not None:
            boxes.append(axes.get_legend().get_window_extent())
        assert len(boxes) > 5
        assert not [(a, b) for a, b in combinations(boxes, 2) if a.overlaps(b)]


def test_methods_without_a_family_have_no_colour() -> None:
    assert colour("top-k 1%") == colour("DGC 0.1%")
    with pytest.raises(KeyError):
        colour("natural")
