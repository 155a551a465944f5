"""``gradcomp consensus``: bits until ranks agree."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gradcomp.cli.app import app


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["consensus", *arguments])


SMALL = ("--size", "16", "--steps", "30", "--ranks", "4")


def test_the_best_step_size_of_each_algorithm_is_shown() -> None:
    done = run(*SMALL, "--algorithm", "gossip", "--algorithm", "choco:sign", "--data", "sparse")
    assert done.exit_code == 0, done.output
    assert "sparse 16 x 16 matrices, ring of 4 ranks, 30 steps" in done.output
    assert [line.split()[:2] for line in done.output.splitlines() if line[:1] in "gc"][-2][0] == (
        "gossip"
    )


def test_low_rank_differences_need_fewer_bits() -> None:
    done = run(*SMALL, "--data", "lowrank", "--gamma", "1", "--json", "--ranks", "2")
    runs = {one["algorithm"]: one["points"][-1] for one in json.loads(done.stdout)["runs"]}
    assert runs["powergossip:1"]["distance"] < 1e-4
    assert runs["gossip"]["bits"] == 30 * 16 * 16 * 32
    assert runs["powergossip:1"]["bits"] == 30 * 16 * 32
    # 2 bits of each of 256 values, and nothing else.
    assert runs["moniqua:2"]["bits"] == 30 * 16 * 16 * 2


def test_all_points_go_to_a_file_and_a_picture(tmp_path: Path) -> None:
    table, picture = tmp_path / "points.csv", tmp_path / "points.png"
    chosen = ["--algorithm", "powergossip:2", "--algorithm", "moniqua:3"]
    done = run(*SMALL, *chosen, "--gamma", "0.1", "--csv", str(table), "--plot", str(picture))
    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert {row["algorithm"] for row in rows} == {"powergossip:2", "moniqua:3"}
    assert [int(row["step"]) for row in rows[:31]] == list(range(31))
    assert float(rows[30]["distance"]) < float(rows[0]["distance"]) == 1
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "faces"], "--data is 'faces'; it must be one of random, sparse, lowrank"),
        (["--algorithm", "chocolate"], "no algorithm is called 'chocolate'"),
        (["--algorithm", "choco:topq"], "topq"),
        (["--algorithm", "powergossip:two"], "whole number after the colon"),
        (["--gamma", "3"], "gamma is 3.0; it must be in (0, 2]"),
        (["--topology", "npdde", "--algorithm", "choco:sign"], "does not change"),
        (["--topology", "hypercube", "--ranks", "3"], "power of two"),
        (["--steps", "0"], "--steps is 0"),
        (["--size", "1"], "--size is 1"),
    ],
)
def test_bad_input_is_explained(arguments: list[str], message: str) -> None:
    done = run(*SMALL, *arguments)
    assert done.exit_code == 2
    assert message in done.output
