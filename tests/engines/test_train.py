"""scripts/train.py as users start it: real jobs of horovodrun on this machine, over Gloo."""

import io
import json
import math
import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import launch
import psutil
import pytest
import torch

from gradcomp.runtime.state.state_file import unpack_state
from support.forks import TENSORFLOW, TORCH
from support.scope import FULL, by_scope

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "scripts/train.py"
CNN = ["--config", "configs/digits/cnn.yaml"]
TOPK = ["--compression", "residual|topk(ratio=0.01)"]
EPOCHS = by_scope(2, 4)
STEPS = 22 * EPOCHS
# Milestones, unlike the cosine, make the rate independent of how many epochs are planned.
MILESTONE = ["train.schedule=step", f"train.milestones=[{EPOCHS - 1}]"]
PLANNED = [f"train.epochs={EPOCHS}", *MILESTONE]
SHORT = ["train.epochs=1", "train.steps_per_epoch=5"]
LIMIT = 120


def arguments(*parts, output, settings=()):
    sets = [part for setting in settings for part in ("--set", setting)]
    return [*CNN, *parts, *sets, "--output", str(output)]


def start(ranks, args, program=(SCRIPT,), launcher="gloo", imported=TORCH):
    command = [*program, *args]
    return launch.start(command, ranks, launcher if ranks else None, cwd=ROOT, imported=imported)


def finish(job):
    """Exit status and output of a job, which is not left running in any case."""
    finished = launch.finish(job, LIMIT)
    return finished.status, finished.output


def train(ranks, args, imported=TORCH):
    status, output = finish(start(ranks, args, imported=imported))
    assert status == 0, output
    return output


def summary(output):
    return json.loads((output / "summary.json").read_text())


def steps_logged(output):
    log = output / "metrics.jsonl"
    return log.read_text().count('"kind": "step"') if log.exists() else 0


def wait_for_steps(job, output, steps):
    deadline = time.monotonic() + LIMIT
    while steps_logged(output) < steps:
        assert job.poll() is None, finish(job)
        assert time.monotonic() < deadline
        time.sleep(0.02)


def process_of_rank(job, rank):
    for process in psutil.Process(job.pid).children(recursive=True):
        # The shells that horovodrun starts around a rank have other first words.
        words, environment = process.cmdline(), process.environ()
        python = words[0] == sys.executable and SCRIPT in words
        if python and environment["HOROVOD_RANK"] == str(rank):
            return process
    raise AssertionError(f"rank {rank} is not running")


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """All epochs at once, compressed."""
    output = tmp_path_factory.mktemp("runs") / "straight"
    train(2, arguments(*TOPK, output=output, settings=PLANNED))
    return output


# ------------------------------------------------------------------- training


def test_uncompressed(tmp_path):
    output, epochs = tmp_path / "run", by_scope(2, 5)
    settings = [f"train.epochs={epochs}", "train.tensorboard=true"]
    train(2, arguments(output=output, settings=settings))
    result = summary(output)
    assert result["final_accuracy"] > (0.94 if FULL else 0.8)
    assert result["sent_bytes_per_step"] == 4 * 151_306
    assert result["compression_ratio"] == 1
    # TCP carries the gradients once (a ring of two) and little else.
    assert 1 < result["tcp_bytes_per_step"] / result["sent_bytes_per_step"] < 1.1
    assert len(set(result["parameters_sha256"])) == 1
    assert result["steps"] == result["total_steps"] == steps_logged(output) == 22 * epochs
    assert list((output / "tensorboard").glob("events*"))
    assert len((output / "steps.csv").read_text().splitlines()) == 22 * epochs + 1


def test_compressed(straight):
    result = summary(straight)
    assert result["final_accuracy"] > (0.9 if FULL else 0.6)
    assert result["compression_ratio"] > 20
    assert result["sent_bytes_per_step"] < result["tcp_bytes_per_step"] < 4 * 151_306 / 10
    assert len(set(result["parameters_sha256"])) == 1
    rows = [json.loads(line) for line in (straight / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if row["kind"] == "step"]
    assert sum(row["sent_bytes"] for row in steps) == steps[-1]["sent_bytes_total"]
    assert all(row["sent_bytes"] > 0 for row in steps)
    assert [row["epoch"] for row in rows if row["kind"] == "epoch"] == [*range(1, EPOCHS + 1)]


def test_a_text_is_learned_and_resumed(tmp_path):
    text, ranks = tmp_path / "text", by_scope(0, 2)
    text.write_text("the quick brown fox jumps over the lazy dog. " * 300)
    output = tmp_path / "run"
    args = ["--config", "configs/text/char-transformer.yaml", *TOPK, "--output", str(output)]
    settings = [f"train.text_file={text}", "train.epochs=2", "train.steps_per_epoch=5"]
    args += [part for setting in settings for part in ("--set", setting)]
    shown = train(ranks, args)
    result = summary(output)
    assert result["metric"] == "test_bits"
    assert result["steps"] == result["total_steps"] == 10
    assert 0 < result["best_test_bits"] <= result["final_test_bits"] < math.log2(28)
    assert f"test {result['final_test_bits']:.4f} bits per character" in shown
    train(ranks, [*args, "--resume", "--set", "train.epochs=3"])
    assert summary(output)["steps"] == 15


def copy_checkpoint(step, source, target):
    """Let a job resume from a checkpoint in the middle of another one."""
    name = f"checkpoints/step-{step:012d}"
    shutil.copytree(source / name, target / name)


def test_ddp(tmp_path):
    """A run, and one that goes on from its first checkpoint, of a compressor that keeps momenta and
    residuals."""
    args = ["--engine", "torch", "--compression", "dgc(ratio=0.05,warmup_epochs=0)"]
    settings = ["train.schedule=constant", "train.epochs=2"]
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    for output, more in ((straight, []), (resumed, ["--resume"])):
        if more:
            copy_checkpoint(22, straight, resumed)
        job = arguments(*args, *more, output=output, settings=settings)
        status, text = finish(start(2, job, launcher="torchrun"))
        assert status == 0, text
        assert "FutureWarning" not in text, text
    result = summary(straight)
    assert result["final_accuracy"] > 0.5
    assert result["compression_ratio"] > 5
    assert len(set(result["parameters_sha256"])) == 1
    assert summary(resumed)["parameters_sha256"] == result["parameters_sha256"]


def test_gossip(tmp_path):
    """Resumed with what a rank knows of its peers, in scripts/test full under another launcher; then
    one rank goes on with the average."""
    output = tmp_path / "run"
    args = ["--engine", "torch", "--config", "configs/gossip/choco-sign.yaml", "--topology", "full"]
    results = []
    for ranks, launcher in (*([(2, "gloo")] if FULL else ()), (2, "torchrun"), (0, None)):
        resume = ["--resume"] if results else []
        settings = ["train.schedule=constant", f"train.epochs={len(results) + 1}"]
        job = arguments(*args, *resume, output=output, settings=settings)
        status, text = finish(start(ranks, job, launcher=launcher))
        assert status == 0, text
        assert "gossip: choco" in text
        results.append(summary(output))
    assert [result["steps"] for result in results] == ([22, 44, 88] if FULL else [22, 66])
    for result in results:
        # The average of all ranks is one model.
        assert len(set(result["parameters_sha256"])) == 1
        assert (result["gossip"]["consensus_distance"] > 0) == (result["world_size"] > 1)
    assert results[-2]["final_accuracy"] > (0.8 if FULL else 0.5)
    assert results[-1]["final_accuracy"] > (0.9 if FULL else 0.8)
    first, *_, last = (result["gossip"] for result in results)
    assert first["messages_per_step"] == 1
    assert first["bits_per_step"] == 8 * results[0]["sent_bytes_per_step"] < 32 * 151_306 / 20
    assert first["node_bits_per_step"] == 0
    assert last["messages_per_step"] == 0
    rows = (output / "epochs.csv").read_text().splitlines()
    assert rows[0].endswith(",consensus_distance")
    *apart, alone = [float(row.rpartition(",")[2]) > 0 for row in rows[1:]]
    assert all(apart)
    assert not alone


OUTER = ["--config", "configs/outer/streaming.yaml"]


def outer_settings(epochs):
    # 22 steps an epoch: the second one begins inside a round, while an average is under way.
    every = ["outer.every=9", "outer.overlap=2"]
    return [*every, "train.schedule=constant", f"train.epochs={epochs}"]


@pytest.fixture(scope="module")
def outer(tmp_path_factory):
    """Two epochs with outer steps."""
    output = tmp_path_factory.mktemp("runs") / "outer"
    train(2, arguments(*OUTER, output=output, settings=outer_settings(2)))
    return output


def test_outer_steps(outer):
    result = summary(outer)
    assert result["steps"] == 44
    assert result["final_accuracy"] > 0.7
    assert result["compression_ratio"] > 50
    assert len(set(result["parameters_sha256"])) == 1


@pytest.mark.full  # the cases of workers.outer have checkpoints inside a round, too
def test_outer_steps_resume_bit_for_bit(outer, tmp_path):
    copy_checkpoint(22, outer, tmp_path)
    train(2, arguments(*OUTER, "--resume", output=tmp_path, settings=outer_settings(2)))
    assert summary(tmp_path)["parameters_sha256"] == summary(outer)["parameters_sha256"]


@pytest.mark.full
def test_outer_steps_at_another_world_size(outer, tmp_path):
    copy_checkpoint(44, outer, tmp_path)
    train(3, arguments(*OUTER, "--resume", output=tmp_path, settings=outer_settings(3)))
    assert len(set(summary(tmp_path)["parameters_sha256"])) == 1


@pytest.mark.full  # test_gossip goes on with this engine and without a launcher
def test_ddp_without_a_launcher(tmp_path):
    train(0, arguments("--engine", "torch", *TOPK, output=tmp_path, settings=SHORT))
    assert summary(tmp_path)["sent_bytes_per_step"] == 0


def check_bytes_of_resumed(resumed, straight):
    """A resumed job sends as much, and compares the whole state of the ranks in its first step."""
    sent, expected = (summary(one)["sent_bytes_per_step"] for one in (resumed, straight))
    assert expected < sent < expected + 2048 / 22, (sent, expected)


def test_tensorflow(tmp_path):
    """A run at once, and one that goes on from a checkpoint of it, by default on one rank."""
    args = ["--framework", "tensorflow", "--compression", "dgc(ratio=0.05,warmup_epochs=0)"]
    settings = ["train.schedule=constant", "train.epochs=2", "train.weight_decay=0.0001"]
    straight, twice = tmp_path / "straight", tmp_path / "twice"
    both = (*TORCH, *TENSORFLOW)
    train(2, arguments(*args, output=straight, settings=settings), both)
    copy_checkpoint(22, straight, twice)
    resume = arguments(*args, "--resume", output=twice, settings=settings)
    text = train(by_scope(0, 2), resume, both)
    assert "step-000000000022: step 22" in text
    assert summary(twice)["final_accuracy"] > 0.5
    result = summary(straight)
    assert result["framework"] == "tensorflow"
    assert result["parameters"] == 151_306
    assert result["final_accuracy"] > 0.5
    assert result["compression_ratio"] > 5
    assert len(set(result["parameters_sha256"])) == 1
    if FULL:
        assert summary(twice)["parameters_sha256"] == result["parameters_sha256"]
        check_bytes_of_resumed(twice, straight)


def test_one_process_without_a_launcher(tmp_path):
    output = tmp_path / "run"
    text = train(0, arguments(*TOPK, output=output, settings=SHORT))
    assert "one rank alone sends nothing" in text
    result = summary(output)
    assert result["world_size"] == 1
    assert result["sent_bytes_per_step"] == 0
    assert result["compression_ratio"] is None


# --------------------------------------------------------------------- resume


@pytest.mark.full  # resuming inside an epoch shows more
def test_resume_after_an_epoch_is_bit_exact(straight, tmp_path):
    output = tmp_path / "run"
    train(2, arguments(*TOPK, output=output, settings=[*PLANNED, "train.epochs=2"]))
    assert summary(output)["steps"] == 44
    text = train(2, arguments(*TOPK, "--resume", output=output, settings=PLANNED))
    assert "step-000000000044: step 44" in text
    assert summary(output)["parameters_sha256"] == summary(straight)["parameters_sha256"]
    check_bytes_of_resumed(output, straight)
    assert summary(output)["final_accuracy"] == summary(straight)["final_accuracy"]


def test_sigterm_checkpoints_and_resume_is_bit_exact(straight, tmp_path):
    output = tmp_path / "run"
    job = start(2, arguments(*TOPK, output=output, settings=PLANNED))
    wait_for_steps(job, output, 1)
    rank = process_of_rank(job, 1)
    wait_for_steps(job, output, by_scope(2, 25))
    rank.terminate()
    status, text = finish(job)
    assert status == 0, text
    stopped = int(re.search(r"stopped by SIGTERM after step (\d+)", text)[1])
    assert stopped == steps_logged(output) < STEPS
    assert not (output / "summary.json").exists()
    newest = max((output / "checkpoints").iterdir())
    assert newest.name == f"step-{stopped:012d}"
    (file,) = newest.glob("rank-00001-*.state")
    packed = unpack_state(file.read_bytes())["torch"].tobytes()
    state = torch.load(io.BytesIO(packed), weights_only=True)
    assert state["of_rank"]["compressor"] is not None
    train(2, arguments(*TOPK, "--resume", output=output, settings=PLANNED))
    assert summary(output)["parameters_sha256"] == summary(straight)["parameters_sha256"]
    assert steps_logged(output) == STEPS


def test_resume_at_another_world_size(straight, tmp_path):
    """With a damaged newer checkpoint, which is skipped."""
    output = tmp_path / "run"
    shutil.copytree(straight / "checkpoints", output / "checkpoints")
    newest = output / "checkpoints" / f"step-{STEPS:012d}"
    later = newest.with_name(f"step-{STEPS + 5:012d}")
    shutil.copytree(newest, later)
    (file,) = newest.glob("rank-00001-*")
    flip(later / file.name, 5000)
    ranks, steps = (3, 14) if FULL else (1, 44)
    settings = [f"train.epochs={EPOCHS + 1}"]
    text = train(
        ranks if FULL else 0, arguments(*TOPK, "--resume", output=output, settings=settings)
    )
    assert f"skips a checkpoint: {later}" in text
    assert f"resuming from {newest}: step {STEPS}" in text
    assert not later.exists()
    result = summary(output)
    assert result["world_size"] == ranks
    assert result["steps"] == STEPS + steps
    assert len(set(result["parameters_sha256"])) == 1
    assert result["final_accuracy"] > (0.9 if FULL else 0.7)


# ------------------------------------------------------------------- failures


@pytest.mark.full  # test_horovod_failures kills ranks, too
def test_a_killed_rank_ends_the_job_and_is_named(tmp_path):
    output = tmp_path / "run"
    job = start(2, arguments(*TOPK, output=output, settings=["train.epochs=1000"]))
    wait_for_steps(job, output, 30)
    began = time.monotonic()
    os.kill(process_of_rank(job, 1).pid, signal.SIGKILL)
    status, text = finish(job)
    assert time.monotonic() - began < 60
    assert status != 0
    assert re.search(r"Process name: 1\s+Exit code: 137", text), text
    assert (output / "checkpoints" / "step-000000000022" / "manifest.json").exists()


def test_a_loss_that_is_not_finite_stops_all_ranks(tmp_path):
    settings = ["train.lr=1e30", "train.warmup_epochs=0"]
    status, text = finish(start(2, arguments(*TOPK, output=tmp_path / "run", settings=settings)))
    assert status != 0
    assert re.search(
        r"the loss is not finite at step \d+, epoch 1 \(.*rank [01]: (nan|inf)", text
    ), text
    assert "lower train.lr (now 1e+30)" in text
    assert "Traceback" not in text.split("train.py: error")[1].split("Traceback (most recent")[0]


@pytest.mark.full  # a loss that is not finite ends the ranks in the same way
def test_bad_config_under_horovodrun(tmp_path):
    args = arguments(output=tmp_path / "run", settings=["train.epoch=3"])
    status, text = finish(start(2, args))
    assert status != 0
    assert text.count("train.epoch: unknown key, did you mean 'epochs'?") == 1


# Runs scripts/train.py with each of some lists of arguments, in one process.
TRAIN_EACH = """
import io, json, runpy, sys
from contextlib import redirect_stderr, redirect_stdout

sys.path.insert(0, "scripts")
ends = []
for words in json.loads(sys.argv[1]):
    sys.argv = ["scripts/train.py", *words]
    text = io.StringIO()
    with redirect_stdout(text), redirect_stderr(text):
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as end:
            ends.append([end.code, text.getvalue()])
print(json.dumps(ends))
"""


def refusals_of(*lists):
    """What scripts/train.py prints with each list of arguments, after a check that it ends with 2."""
    words = json.dumps([list(map(str, words)) for words in lists])
    status, shown = finish(start(0, ["-c", TRAIN_EACH, words], program=()))
    assert status == 0, shown
    ends = json.loads(shown.splitlines()[-1])
    assert [status for status, _ in ends] == [2] * len(lists), shown
    return [text for _, text in ends]


REFUSED = {
    "topq": ["--compression", "topq(ratio=0.01)"],
    "--config: got 2 specs, 'fp16', 'bf16'": ["--config", "fp16", "--config", "bf16"],
    "has no data_batch_1, .*, test_batch; expected the folder": (
        ["--set", "train.task=cifar10-resnet20", "--set", "train.data_dir=."]
    ),
    "at most 1437": ["--set", "train.batch_size=2000"],
    r"gossip: Horovod averages .*; add --engine torch": ["--algorithm", "sgp"],
    "compress and gossip: there are both sections": [*TOPK, "--algorithm", "sgp"],
    "has no complete checkpoint to resume from": ["--resume"],
    "unrecognized arguments: --nonsense": ["--resume", "--nonsense"],
    "trains with --engine horovod, not byteps": ["--framework", "tensorflow", "--engine", "byteps"],
}


def test_bad_config_exits_with_2(tmp_path):
    lists = [
        arguments(*extra, output=tmp_path / str(at)) for at, extra in enumerate(REFUSED.values())
    ]
    for message, text in zip(REFUSED, refusals_of(*lists), strict=True):
        assert re.search(message, text), text
        assert "Traceback" not in text


def test_a_finished_run_is_neither_overwritten_nor_mixed_with_another(straight, tmp_path):
    """Nor is a checkpoint loaded that is damaged, if there is no other."""
    damaged = tmp_path / "damaged"
    copy_checkpoint(STEPS, straight, damaged)
    for file in (damaged / f"checkpoints/step-{STEPS:012d}").glob("rank-*"):
        flip(file, 1000)
    again, other, refused = refusals_of(
        arguments(output=straight),
        arguments("--resume", output=straight),
        arguments("--resume", output=damaged),
    )
    assert "holds a run already; continue it with --resume" in again
    assert re.search(r"has compression .*topk.*, but this run has none", other)
    assert re.search(r"skips a checkpoint: .*state is damaged", refused), refused
    assert "has no complete checkpoint for all ranks" in refused


def flip(file, at):
    """Change a bit of a file."""
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


RANKS_THAT_FAIL = """
import sys
sys.path.insert(0, "scripts")
import horovod.torch as hvd
import torch
from training.cluster import AbortError, checked_digests, together

hvd.init()
model = torch.nn.Linear(3, 3)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
parameters = {name: p.detach().numpy() for name, p in model.named_parameters()}
assert len(set(checked_digests(parameters))) == 1
if hvd.rank() == 1:
    model.bias.data[0] += 1e-7

def work():
    if hvd.rank() == 1:
        raise OSError("the disk is full")

for action in (lambda: together(work), lambda: checked_digests(parameters)):
    try:
        action()
    except AbortError as error:
        print(f"rank {hvd.rank()} says: {error}", flush=True)
"""


def test_what_fails_on_one_rank_ends_all():
    status, text = finish(start(2, ["-c", RANKS_THAT_FAIL], program=()))
    assert status == 0, text
    for rank in range(2):
        assert f"rank {rank} says: rank 1: the disk is full" in text
        assert f"rank {rank} says: the parameters of rank 1 differ from those of rank 0" in text


# ---------------------------------------------------------------- comparisons


def test_a_comparison_of_two_runs_goes_on_where_it_was_left(tmp_path):
    command = ["--task", "configs/digits/cnn.yaml", "--set", "train.epochs=1", "--seeds", "1"]
    command += ["--set", "train.steps_per_epoch=5"]
    command += ["--run", "uncompressed", "--output", str(tmp_path)]
    program = ["scripts/compare.py"]
    status, text = finish(start(0, command, program))
    assert status == 0, text
    assert "1 runs to train, 0 are finished" in text
    more = ["--run", "half=fp16"] if FULL else []
    status, text = finish(start(0, [*command, *more], program))
    assert status == 0, text
    assert f"{by_scope(0, 1)} runs to train, 1 are finished" in text
    table = (tmp_path / "comparison.md").read_text()
    assert re.search(
        r"\| uncompressed \| 1 \| 0\.\d{4} \| 0\.\d{4} \| 605\.2 kB \| 1\.0x \|", table
    )
    assert bool(re.search(r"\| half \| 1 \| .* \| 2\.0x \| .* ms \|", table)) is FULL
    status, text = finish(start(0, [*command, "--set", "train.lr=0.1"], program))
    assert status == 2
    assert "holds a run of another configuration" in text
