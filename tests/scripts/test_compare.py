"""scripts/compare.py: command line, and results of finished runs. No job is started."""

import json
import sys
from argparse import Namespace
from pathlib import Path

import pytest

import compare
from gradcomp.errors import ConfigError
from results.jobs import ROOT, JobFailedError
from training.metrics import EpochRow, MetricsLog

TASK = ROOT / "configs" / "digits" / "cnn.yaml"


@pytest.mark.parametrize(
    ("text", "name", "config", "spec"),
    [
        ("uncompressed", "uncompressed", None, None),
        ("fp16=fp16", "fp16", None, "fp16"),
        ("top-k=topk(ratio=0.01)", "top-k", None, "topk(ratio=0.01)"),
        ("DGC 0.1%=configs/dgc/wm5.yaml", "DGC 0.1%", Path("configs/dgc/wm5.yaml"), None),
    ],
)
def test_runs_are_names_with_a_spec_or_a_file(text, name, config, spec):
    contender = compare.contender_of(text)
    assert (contender.name, contender.config, contender.spec) == (name, config, spec)


@pytest.mark.parametrize(
    "text", ["fp16", "topk(ratio=0.01)", "residual|topk(ratio=0.01)", "x=", ""]
)
def test_a_run_without_a_name_or_spec_is_refused(text):
    with pytest.raises(ConfigError, match="expected NAME=SPEC"):
        compare.contender_of(text)


def finished(job):
    """Make the files of a run that has ended as ``job`` would."""
    folder = ROOT / job.folder
    folder.mkdir(parents=True)
    log = MetricsLog(folder, tensorboard=False, resume_step=None)
    seed = int(folder.name.removeprefix("seed-"))
    for epoch, sent in ((1, 400.0), (2, 40.0)):
        log.write(EpochRow(2 * epoch, epoch, 0.5, 0.8 + 0.1 * seed, 1.0, sent, 1.0, 0.001))
    log.close()
    config = {"version": 1, "train": {"task": "digits-cnn", "epochs": 2, "seed": seed}}
    summary = {
        "task": "digits-cnn",
        "metric": "accuracy",
        "final_accuracy": 0.8 + 0.1 * seed,
        "best_accuracy": 0.85 + 0.1 * seed,
        "final_test_bits": 1.0 + 0.5 * seed,
        "best_test_bits": 1.0,
        "steps": 4,
        "sent_bytes_per_step": 220.0,
        "median_step_seconds": 0.001,
        "parameters": 100,
        "world_size": job.ranks,
        "config": config,
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    return summary


@pytest.fixture
def started(monkeypatch):
    """The jobs that would run; none does."""
    jobs = []

    def run(job, progress):
        if "fails" in job.title:
            raise JobFailedError(f"{job.title} failed")
        jobs.append(job.title)
        return finished(job)

    monkeypatch.setattr(compare, "run_job", run)
    monkeypatch.setattr(compare, "check_same", lambda job, config, summary: None)
    return jobs


def compare_runs(monkeypatch, output, *parts):
    command = ["compare.py", "--task", str(TASK), "--output", str(output), *parts]
    monkeypatch.setattr(sys, "argv", command)
    return compare.main()


def test_finished_runs_are_kept_and_all_are_in_the_table(monkeypatch, tmp_path, started):
    one = ["--run", "uncompressed"]
    assert compare_runs(monkeypatch, tmp_path, *one, "--seeds", "1") == 0
    assert started == ["uncompressed, seed 0"]
    assert compare_runs(monkeypatch, tmp_path, *one, "--run", "half=fp16", "--seeds", "2") == 0
    assert started[1:] == ["half, seed 0", "uncompressed, seed 1", "half, seed 1"]
    table = (tmp_path / "comparison.md").read_text()
    row = "| half | 2 | 0.8500 ± 0.0707 | 0.9500 | 220 bytes | 1.8x | 40 bytes | 10.0x | 1.0 ms |"
    assert row in table
    assert (tmp_path / "comparison.png").read_bytes().startswith(b"\x89PNG")


def test_the_loss_in_place_of_the_metric(monkeypatch, tmp_path, started):
    parts = ["--run", "uncompressed", "--seeds", "2", "--loss"]
    assert compare_runs(monkeypatch, tmp_path, *parts) == 0
    table = (tmp_path / "comparison.md").read_text()
    assert "| run | seeds | test bits | best |" in table
    assert "| uncompressed | 2 | 1.2500 ± 0.3536 | 1.0000 |" in table


def test_a_failed_run_does_not_stop_the_others(monkeypatch, tmp_path, started, capsys):
    runs = ["--run", "fails=fp16", "--run", "bf16=bf16"]
    assert compare_runs(monkeypatch, tmp_path, *runs, "--seeds", "1") == 1
    assert started == ["bf16, seed 0"]
    assert "fails, seed 0 failed" in capsys.readouterr().out
    table = (tmp_path / "comparison.md").read_text()
    assert "| fails | 0 of 1 | failed |" in table
    assert "| bf16 | 1 |" in table


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (["--run", "a b=fp16", "--run", "A-b=bf16"], "two names make the folder 'a-b'"),
        (["--run", "?=fp16"], "has no letter or digit"),
        (["--run", "fp16"], "expected NAME=SPEC"),
        (["--run", "uncompressed", "--task", "nowhere.yaml"], "nowhere.yaml"),
        (["--run", "uncompressed", "--set", "train.lr=0"], "train.lr: got 0"),
        (["--run", "x=nowhere.yaml"], "nowhere.yaml"),
        (["--run", "x=topq"], "topq"),
    ],
)
def test_wrong_arguments(monkeypatch, tmp_path, started, capsys, parts, message):
    assert compare_runs(monkeypatch, tmp_path, *parts) == 2
    assert message in capsys.readouterr().err
    assert not started


def test_a_finished_run_of_another_configuration_is_refused(tmp_path):
    arguments = Namespace(
        task=TASK, set=["train.epochs=2"], output=tmp_path, np=2, seeds=1, run=["half=fp16"]
    )
    job, config = compare.job_of(compare.contender_of("half=fp16"), 0, arguments)
    assert config["train"]["epochs"] == 2
    assert config["compress"] == {"default": "fp16"}
    compare.check_same(job, config, {"config": config, "world_size": 2})
    for summary in ({"config": config, "world_size": 3}, {"config": {}, "world_size": 2}):
        with pytest.raises(ConfigError, match="holds a run of another configuration"):
            compare.check_same(job, config, summary)


def test_commands_can_be_copied():
    job = compare.Job("x", 2, Path("runs/x"), ("--compression", "fp16"))
    command = job.command(Path("runs/mine"))
    assert command[1:4] == ["--gloo", "-np", "2"]
    assert command[-5:] == ["scripts/train.py", "--compression", "fp16", "--output", "runs/mine"]
