"""The time at which a run reaches the final score of another one."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from compare import contender_of, job_of
from gradcomp.errors import ConfigError
from netlab import Lab
from results.jobs import ROOT
from time_to_accuracy import curve_of, seconds_to, table_of, train
from training.metrics import ACCURACY, BITS_PER_CHARACTER


def rows() -> list[dict[str, Any]]:
    steps = [{"kind": "step", "step": n, "seconds": 0.5} for n in (1, 2, 3, 4)]
    tests = [
        {"kind": "epoch", "step": 2, "accuracy": 0.7, "test_bits": 3.0},
        {"kind": "epoch", "step": 3, "accuracy": None, "test_bits": None},
        {"kind": "epoch", "step": 4, "accuracy": 0.9, "test_bits": 2.0},
    ]
    return [steps[0], steps[1], tests[0], steps[2], tests[1], steps[3], tests[2]]


def test_time_is_that_of_the_steps_before_a_test() -> None:
    assert curve_of(rows(), ACCURACY) == [(1.0, 0.7), (2.0, 0.9)]
    assert curve_of(rows(), BITS_PER_CHARACTER) == [(1.0, 3.0), (2.0, 2.0)]
    assert curve_of(rows(), ACCURACY, 2.0) == [(4.0, 0.7), (8.0, 0.9)]


def test_the_first_test_that_is_as_good_counts() -> None:
    accuracy, bits = curve_of(rows(), ACCURACY), curve_of(rows(), BITS_PER_CHARACTER)
    assert seconds_to(0.7, accuracy, ACCURACY) == 1.0
    assert seconds_to(0.71, accuracy, ACCURACY) == 2.0
    assert seconds_to(0.91, accuracy, ACCURACY) is None
    assert seconds_to(2.5, bits, BITS_PER_CHARACTER) == 2.0


def test_a_median_stands_only_where_all_seeds_got_there() -> None:
    contenders = [
        {"name": "dense", "final": [0.9, 0.92], "seconds": [8.0, 10.0], "sent_bytes_per_step": 9},
        {"name": "fast", "final": [0.9, 0.9], "seconds": [1.0, 2.0], "sent_bytes_per_step": 1},
        {"name": "lost", "final": [0.9, 0.8], "seconds": [1.0, None], "sent_bytes_per_step": 1},
    ]
    assert table_of(contenders, ACCURACY).splitlines()[2:] == [
        "| dense | 0.9100 ± 0.0141 | 9 | 2 of 2 | 9.0 | 1.0x |",
        "| fast | 0.9000 ± 0.0000 | 1 | 2 of 2 | 1.5 | 6.0x |",
        "| lost | 0.8500 ± 0.0707 | 1 | 1 of 2 |  |  |",
    ]


def test_only_the_same_run_is_kept(tmp_path: Path) -> None:
    arguments = Namespace(task=ROOT / "configs/digits/cnn.yaml", set=[], output=tmp_path, np=2)
    lab = Lab(2)  # not entered: nothing runs
    contender = contender_of("top-k=topk(ratio=0.01)")
    job, config = job_of(contender, 0, arguments)
    summary = {"config": config, "world_size": 2}
    (ROOT / job.folder).mkdir(parents=True)
    (ROOT / job.folder / "summary.json").write_text(json.dumps(summary), "utf-8")
    assert train(lab, contender, 0, arguments) == (job, summary)
    with pytest.raises(ConfigError, match="holds a run of another configuration"):
        train(lab, contender_of("top-k=topk(ratio=0.02)"), 0, arguments)
