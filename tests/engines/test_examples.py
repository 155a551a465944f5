"""The examples to start from, on two ranks, with small data in the files' real formats."""

from __future__ import annotations

import gzip
import re
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from launch import ROOT, finish, start

from support.scope import FULL, by_scope

EXAMPLES = ROOT / "examples"
SPEC = "residual|topk(ratio=0.05)"
STEPS = by_scope(10, 60)
LAUNCHERS = {"ddp": "torchrun", "horovod": "gloo"}
USUAL = {"gpt": "ddp", "resnet": "horovod"}


def write_idx(path: Path, values: np.ndarray) -> None:
    sizes = struct.pack(f">{values.ndim}I", *values.shape)
    path.write_bytes(gzip.compress(bytes([0, 0, 8, values.ndim]) + sizes + values.tobytes(), 1))


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Of each model, its options: data that can be learned in a few steps, and small sizes."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    (folder / "text").write_bytes(b"And the evening and the morning were the first day.\n" * 200)
    for part, number in (("train", 320), ("t10k", 40)):
        classes = rng.integers(10, size=number, dtype=np.uint8)
        images = rng.integers(60, size=(number, 28, 28), dtype=np.uint8)
        # The class is the place of a bright bar.
        for image, place in zip(images, classes, strict=True):
            image[2 * place : 2 * place + 3] += 180
        write_idx(folder / f"{part}-images-idx3-ubyte.gz", images)
        write_idx(folder / f"{part}-labels-idx1-ubyte.gz", classes)
    gpt = ["--text", str(folder / "text"), "--context", "32", "--width", "64", "--layers", "1"]
    return {"gpt": gpt, "resnet": ["--data", str(folder), "--width", "16"]}


@dataclass(frozen=True)
class Printed:
    """What an example has printed."""

    losses: list[float]
    test_loss: float
    megabytes: float
    ratio: float


def run(model: str, options: list[str], spec: str) -> list[Printed]:
    """Run the examples of a model: one by default, in scripts/test full that of DDP and that of Horovod."""
    command = ["--compression", spec, "--steps", str(STEPS), *options]
    every = []
    for engine in LAUNCHERS if FULL else [USUAL[model]]:
        launcher = LAUNCHERS[engine]
        script = ["-W", "error", EXAMPLES / f"{model}_{engine}.py", *command]
        finished = finish(start(script, 2, launcher, {"PYTHONPATH": str(ROOT)}), 120)
        output = finished.output
        assert finished.status == 0, output
        losses = [float(found) for found in re.findall(r"step \d+: loss (\d+\.\d+)", output)]
        assert len(losses) == 5, output
        (test_loss,) = re.findall(r"test loss (\d+\.\d+)", output)
        ((sent, ratio),) = re.findall(
            r"(\d+\.\d+) MB sent, (\d+\.\d+) times fewer, in \d+ s", output
        )
        every.append(Printed(losses, float(test_loss), float(sent), float(ratio)))
    return every


@pytest.mark.parametrize("model", ["gpt", "resnet"])
@pytest.mark.parametrize(
    "spec",
    [SPEC, *(pytest.param(spec, marks=pytest.mark.full) for spec in ("none", "auto"))],
)
def test_engines_train_alike(model: str, spec: str, options: dict[str, list[str]]) -> None:
    every = run(model, options[model], spec)
    for printed in every:
        assert printed.losses[-1] < printed.losses[0], printed
        assert spec != SPEC or printed.ratio > 3, printed
        assert spec != "none" or printed.ratio == 1, printed
    if spec != "auto":  # which measures the links, and may decide otherwise
        assert every[0].losses == pytest.approx(every[-1].losses, abs=0.01)
        assert (every[0].megabytes, every[0].ratio) == (every[-1].megabytes, every[-1].ratio)


@pytest.mark.parametrize("name", ["gpt_ddp", "resnet_ddp"])  # the others read their data likewise
def test_missing_data_names_the_package(name: str, tmp_path: Path) -> None:
    missing = ["--data", str(tmp_path)] if name.startswith("resnet") else []
    environment = {"PYTHONPATH": str(ROOT), "PATH": str(tmp_path)}
    finished = finish(start([EXAMPLES / f"{name}.py", *missing], environment=environment), 60)
    package = "dataset-fashion-mnist" if missing else "bible-kjv"
    assert finished.status == 1, finished.output
    (line,) = finished.output.splitlines()
    assert f"apt-get install {package}, or give a" in line


@pytest.mark.parametrize("model", ["gpt", "resnet"])
def test_files_of_a_model_differ_by_the_engine_only(model: str) -> None:
    texts = [(EXAMPLES / f"{model}_{engine}.py").read_text() for engine in LAUNCHERS]
    # The model and its options; the optimizer's arguments, the schedule and the steps.
    for same in (
        r"\nclass .*(?=\n    (?:dist|hvd)\.init)",
        r"optimizer = torch[^\n]*",
        r"\n    schedule = .*\n    seconds = [^\n]*",
        r"\n    model\.eval\(\).*for inputs",
        r"\n        print\(f\"test loss[^\n]*",
    ):
        first, second = (re.search(same, text, re.DOTALL) for text in texts)
        assert first
        assert second
        assert first[0] == second[0]


@pytest.mark.parametrize("engine", LAUNCHERS)
@pytest.mark.parametrize("model", ["gpt", "resnet"])
def test_a_file_is_short_and_marks_what_compresses(model: str, engine: str) -> None:
    lines = (EXAMPLES / f"{model}_{engine}.py").read_text().splitlines()
    assert len(lines) <= 105
    (marked,) = [line for line in lines if re.search(r"# .* compresse?s?$", line)]
    assert re.search("hook" if engine == "ddp" else "compression", marked)
