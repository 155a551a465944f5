"""The trainer's parts that need no second rank: settings, data, models, metrics, traffic."""

import gzip
import itertools
import pickle
import random
import socket
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from gradcomp.errors import ConfigError
from gradcomp.runtime.state.checkpoint import Checkpoints
from results.plots import plot_comparison, plot_runs
from training import checkpoint
from training.cluster import AbortError
from training.metrics import (
    ACCURACY,
    BITS_PER_CHARACTER,
    EpochRow,
    MetricsLog,
    Score,
    StepRow,
    read_rows,
)
from training.schedule import learning_rate
from training.settings.train import TASKS, TENSORFLOW_TASKS, TrainSettings
from training.tasks.catalog import task_of
from training.tasks.data import (
    load_cifar10,
    load_digits_images,
    load_fashion_mnist,
    steps_per_epoch,
    train_batches,
)
from training.tasks.models import ResNet20, digits_cnn, digits_mlp, digits_vgg, fashion_cnn
from training.tasks.text import PIECE, Text, TextPieces, load_kjv, load_python_topics, load_text
from training.traffic import tcp_bytes_sent

ROOT = Path(__file__).resolve().parents[2]


def settings_of(**train):
    return TrainSettings.from_mapping(
        {"train": {"task": "digits-mlp", **train}}, lambda _: "x.yaml"
    )


# ------------------------------------------------------------------- settings


@pytest.mark.parametrize("task", TASKS)
def test_every_task_needs_only_its_name_and_data(task):
    data = {"data_dir": "some/folder"} if task.startswith("cifar") else {}
    assert settings_of(task=task, **data).task == task


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("task", "mnist", "digits-mlp, digits-cnn, digits-vgg, digits-resnet20, cifar10-resnet20"),
        ("epochs", 0, ">= 1"),
        ("epochs", 2.5, "an integer"),
        ("epochs", "many", "an integer"),
        ("batch_size", -1, ">= 1"),
        ("steps_per_epoch", 0, ">= 1, or none"),
        ("lr", 0, "> 0"),
        ("lr", True, "a number"),
        ("lr", float("nan"), "a number > 0"),
        ("lr", float("inf"), "a number > 0"),
        ("momentum", 1, "[0, 1)"),
        ("weight_decay", -1e-4, ">= 0"),
        ("gamma", 1.5, "(0, 1]"),
        ("schedule", "linear", "constant, step or cosine"),
        ("milestones", [0], ">= 1"),
        ("milestones", 5, "a list"),
        ("warmup_epochs", -1, ">= 0"),
        ("nesterov", "yes please", "true or false"),
        ("seed", -1, "[0, 2^63)"),
        ("keep_checkpoints", 0, ">= 1"),
        ("checkpoint_every", -1, ">= 0"),
    ],
)
def test_bad_value_is_named_with_its_source_and_what_is_allowed(key, value, allowed):
    with pytest.raises(ConfigError) as error:
        settings_of(**{key: value})
    message = str(error.value)
    assert message.startswith(f"x.yaml: train.{key}")
    assert repr(value).strip("[]") in message
    assert allowed in message


def test_all_problems_are_reported_at_once():
    with pytest.raises(ConfigError, match=r"(?s)train\.epochs.*train\.lr"):
        settings_of(epochs=0, lr=0)


def test_unknown_key_names_the_nearest():
    with pytest.raises(ConfigError, match=r"train\.epoch: unknown key, did you mean 'epochs'\?"):
        settings_of(epoch=3)


@pytest.mark.parametrize("section", [None, 3, [1]])
def test_section_that_is_no_mapping(section):
    with pytest.raises(ConfigError, match="expected a mapping"):
        TrainSettings.from_mapping({"train": section}, lambda _: "x.yaml")


def test_missing_section_and_task():
    with pytest.raises(ConfigError, match="there is no train section; add a task"):
        TrainSettings.from_mapping({"version": 1}, lambda _: "x.yaml")
    with pytest.raises(ConfigError, match=r"train\.task: missing; expected one of"):
        TrainSettings.from_mapping({"train": {}}, lambda _: "x.yaml")


def test_number_that_yaml_reads_as_text():
    assert yaml.safe_load("1e-3") == "1e-3"
    assert settings_of(weight_decay="1e-3").weight_decay == 1e-3


@pytest.mark.parametrize(
    ("train", "remedy"),
    [
        ({"task": "cifar10-resnet20"}, "--set train.data_dir=FOLDER"),
        ({"data_dir": "x"}, "remove the key"),
        ({"task": "char-transformer", "data_dir": "x"}, "remove the key"),
        ({"text_file": "x"}, "digits-mlp reads no text; remove the key"),
        ({"width": 64}, "got 64, but the width of digits-mlp is fixed; remove the key"),
        ({"task": "char-transformer", "width": 66}, "expected a multiple of 4"),
        ({"schedule": "step"}, r"such as \[5, 8\]"),
        ({"milestones": [3]}, "train.schedule=step"),
        ({"schedule": "step", "milestones": [3, 2]}, "increasing"),
        ({"nesterov": True, "momentum": 0}, "above 0"),
    ],
)
def test_keys_that_contradict_each_other(train, remedy):
    with pytest.raises(ConfigError, match=remedy):
        settings_of(**train)


@pytest.mark.parametrize("task", sorted(set(TASKS) - {"cifar10-resnet20"}))
def test_tasks_of_tensorflow(task):
    settings = settings_of(task=task)
    settings.check_framework("torch")
    if task in TENSORFLOW_TASKS:
        settings.check_framework("tensorflow")
        return
    message = f"got '{task}', .*; expected one of digits-mlp, digits-cnn, or --framework torch"
    with pytest.raises(ConfigError, match=message):
        settings.check_framework("tensorflow")


@pytest.mark.parametrize(
    "path", sorted([*ROOT.glob("configs/digits/*.yaml"), *ROOT.glob("configs/text/*.yaml")])
)
def test_shipped_configs_are_valid(path):
    TrainSettings.from_mapping(yaml.safe_load(path.read_text()), lambda _: str(path))


def test_cifar_config_lacks_only_the_data():
    mapping = yaml.safe_load((ROOT / "configs/cifar/resnet20.yaml").read_text())
    mapping["train"]["data_dir"] = "some/folder"
    assert TrainSettings.from_mapping(mapping, lambda _: "").task == "cifar10-resnet20"


def test_docs_describe_every_key_with_its_default():
    text = (ROOT / "docs/training.md").read_text()
    for name, field in TrainSettings.model_fields.items():
        rows = [line for line in text.splitlines() if line.startswith(f"| `{name}` |")]
        assert len(rows) == 1, name
        default = rows[0].split("|")[-2].strip()
        if field.is_required():
            assert default == "(required)"
        elif field.default is None:
            assert default == "none"
        elif field.default == ():
            assert default == "`[]`"
        else:
            assert yaml.safe_load(default.strip("`")) == field.default, name


# ------------------------------------------------------------------- schedule


def rates(epochs=4, workers=1, **train):
    settings = settings_of(epochs=epochs, lr=1.0, **train)
    return [
        learning_rate(settings, workers=workers, steps_per_epoch=10, step=step)
        for step in range(epochs * 10)
    ]


def test_constant_rate_and_scaling():
    assert set(rates()) == {1.0}
    assert set(rates(workers=4, scale_lr=True)) == {4.0}
    assert set(rates(workers=4)) == {1.0}


def test_warm_up_rises_evenly_and_ends():
    warm = rates(warmup_epochs=2)
    np.testing.assert_allclose(warm[:20], np.arange(1, 21) / 20)
    assert set(warm[20:]) == {1.0}


def test_milestones_are_epochs():
    stepped = rates(schedule="step", milestones=[1, 3], gamma=0.5)
    assert stepped == [1.0] * 10 + [0.5] * 20 + [0.25] * 10


def test_cosine_falls_from_the_peak_towards_zero():
    cosine = rates(schedule="cosine")
    assert cosine[0] == 1.0
    assert cosine[20] == pytest.approx(0.5)
    assert 0 < cosine[-1] < 0.01
    assert cosine == sorted(cosine, reverse=True)


# ----------------------------------------------------------------------- data


@pytest.fixture(scope="module")
def digits():
    return load_digits_images()


def rows_of(batches):
    return torch.cat([batch.inputs.flatten(1) for batch in batches])


def test_digits_are_split_and_normalised(digits):
    assert digits.train_images.shape == (1437, 1, 8, 8)
    assert digits.test_images.shape == (360, 1, 8, 8)
    assert set(digits.test_classes.tolist()) == set(range(10))
    batch = next(digits.test_batches(0, 1))
    assert abs(batch.inputs.mean()) < 0.05
    assert abs(batch.inputs.std() - 1) < 0.05


def test_ranks_share_the_test_samples(digits):
    counts = [sum(len(b.classes) for b in digits.test_batches(rank, 7)) for rank in range(7)]
    assert sum(counts) == 360
    assert max(counts) - min(counts) <= 1


def batches_of(digits, *, epoch=0, start=0, stop=1437, batch_size=32, rank=0, workers=1):
    return list(
        train_batches(
            digits,
            seed=5,
            epoch=epoch,
            start=start,
            stop=stop,
            batch_size=batch_size,
            rank=rank,
            workers=workers,
        )
    )


def test_ranks_split_each_global_batch(digits):
    alone = batches_of(digits, batch_size=96)
    shares = [batches_of(digits, batch_size=32, rank=rank, workers=3) for rank in range(3)]
    assert len(alone) == len(shares[0]) == steps_per_epoch(1437, 32, 3) == 14
    for whole, parts in zip(alone, zip(*shares, strict=True), strict=True):
        assert torch.equal(whole.inputs, torch.cat([part.inputs for part in parts]))
        assert torch.equal(whole.classes, torch.cat([part.classes for part in parts]))


def test_epochs_are_shuffled_anew_but_repeatably(digits):
    first, again, second = (rows_of(batches_of(digits, epoch=e)) for e in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_an_epoch_goes_on_where_it_was_left(digits):
    whole = batches_of(digits, workers=2)
    rest = batches_of(digits, workers=2, start=3 * 64)
    assert torch.equal(rows_of(whole[3:]), rows_of(rest))


def test_an_epoch_may_end_before_the_last_sample(digits):
    whole = batches_of(digits, workers=2)
    first = batches_of(digits, workers=2, stop=3 * 64)
    assert torch.equal(rows_of(whole[:3]), rows_of(first))


def test_too_large_a_batch(digits):
    with pytest.raises(ConfigError, match=r"got 800, which on 2 ranks .* at most 718"):
        steps_per_epoch(1437, 800, 2)


def write_cifar(folder, images_per_file=4):
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        content = {
            b"batch_label": name.encode(),
            b"labels": list(range(images_per_file)),
            b"data": rng.integers(0, 256, (images_per_file, 3072), dtype=np.uint8),
        }
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))


@pytest.mark.parametrize("nested", ["", "cifar-10-batches-py"])
def test_cifar10_is_read_and_augmented(tmp_path, nested):
    write_cifar(tmp_path / "data" / nested)
    dataset = load_cifar10(tmp_path / "data")
    assert dataset.train_images.shape == (20, 3, 32, 32)
    assert dataset.test_classes.tolist() == [0, 1, 2, 3]
    indices = np.arange(8)
    one, same, other = (
        dataset.train_batch(indices, np.random.default_rng(seed)).inputs for seed in (1, 1, 2)
    )
    assert one.shape == (8, 3, 32, 32)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    # Each augmented image is a window of the padded original, flipped or not.
    plain = (dataset.train_images[:8].float() - dataset.mean) / dataset.std
    padded = torch.nn.functional.pad(plain, (4, 4, 4, 4))
    windows = padded.unfold(2, 32, 1).unfold(3, 32, 1)[3]  # 3, 9, 9, 32, 32
    candidates = windows.permute(1, 2, 0, 3, 4).reshape(-1, 3, 32, 32)
    found = [torch.equal(one[3], c) or torch.equal(one[3], c.flip(2)) for c in candidates]
    assert sum(found) == 1


def test_missing_cifar10_files_are_named(tmp_path):
    write_cifar(tmp_path / "data")
    (tmp_path / "data" / "data_batch_3").unlink()
    (tmp_path / "data" / "test_batch").unlink()
    with pytest.raises(ConfigError, match=r"has no data_batch_3, test_batch; expected the folder"):
        load_cifar10(tmp_path / "data")


class Evil:
    def __reduce__(self):
        return (print, ("code of a stranger ran",))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a pickle",
        pickle.dumps(Evil()),
        pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]}),
        pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [10]}),
        pickle.dumps({b"data": np.zeros((1, 3071), np.uint8), b"labels": [1]}),
        pickle.dumps({b"labels": [1]}),
        pickle.dumps([1, 2]),
    ],
)
def test_bad_cifar10_file_is_refused(tmp_path, content, capsys):
    write_cifar(tmp_path / "data")
    (tmp_path / "data" / "data_batch_2").write_bytes(content)
    with pytest.raises(ConfigError, match="data_batch_2 is not a CIFAR-10 python batch"):
        load_cifar10(tmp_path / "data")
    assert "stranger" not in capsys.readouterr().out


def write_fashion(folder, train=6, test=4):
    rng = np.random.default_rng(0)
    for part, count in (("train", train), ("t10k", test)):
        pixels = rng.integers(0, 256, (count, 28, 28), np.uint8)
        head = np.array([0x0803, count, 28, 28], ">u4").tobytes()
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(
            gzip.compress(head + pixels.tobytes())
        )
        labels = np.array([0x0801, count], ">u4").tobytes() + bytes(range(count))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))


def test_fashion_mnist_is_read_and_normalised(tmp_path):
    write_fashion(tmp_path)
    dataset = load_fashion_mnist(tmp_path)
    assert (dataset.classes, dataset.train_samples) == (10, 6)
    batch = dataset.train_batch(np.arange(6), np.random.default_rng(0))
    assert batch.inputs.shape == (6, 1, 28, 28)
    assert batch.classes.tolist() == [0, 1, 2, 3, 4, 5]
    assert float(batch.inputs.mean()) == pytest.approx(0, abs=1e-5)
    assert float(batch.inputs.std(correction=0)) == pytest.approx(1, abs=1e-5)
    (test,) = dataset.test_batches(0, 1)
    first = np.random.default_rng(0).integers(0, 256, (6, 28, 28), np.uint8)[0, 0, 0]
    assert dataset.train_images[0, 0, 0, 0] == first
    assert test.classes.tolist() == [0, 1, 2, 3]


def test_missing_fashion_mnist_names_folder_and_package(tmp_path):
    write_fashion(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(ConfigError) as error:
        load_fashion_mnist(tmp_path)
    assert f"{tmp_path} has no t10k-labels-idx1-ubyte.gz; run apt-get install " in str(error.value)
    assert "dataset-fashion-mnist" in str(error.value)


def packed(data):
    """As gzip, without the time, which would be in the names of tests."""
    return gzip.compress(data, mtime=0)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not gzip",
        packed(b""),
        packed(b"abc"),
        packed(np.array([0x0803, 6], ">u4").tobytes() + bytes(6)),
        packed(np.array([0x0801, 7], ">u4").tobytes() + bytes(6)),
        packed(np.array([0x0801, 6], ">u4").tobytes() + bytes(6))[:-9],
    ],
)
def test_damaged_fashion_mnist_is_named(tmp_path, content):
    write_fashion(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(content)
    with pytest.raises(ConfigError, match=r"train-labels-idx1-ubyte.gz is damaged .*--reinstall"):
        load_fashion_mnist(tmp_path)


@pytest.mark.parametrize(("train", "test"), [(6, 11), (11, 4)])
def test_fashion_mnist_has_ten_classes(tmp_path, train, test):
    write_fashion(tmp_path, train, test)
    with pytest.raises(ConfigError, match=r"11 images with 11 labels of at most 10; expected"):
        load_fashion_mnist(tmp_path)


# ----------------------------------------------------------------------- text


def text_of(batches, vocabulary):
    """The characters of inputs, and the last one of classes."""
    rows = [[*x, y[-1]] for b in batches for x, y in zip(b.inputs, b.classes, strict=True)]
    return ["".join(vocabulary[number] for number in row) for row in rows]


def test_a_text_is_cut_into_training_and_a_tail_for_the_test():
    letters = "".join(np.random.default_rng(0).choice(list("abcdef"), 40 * PIECE + 10))
    text = Text.of(letters)
    pieces = TextPieces(text)
    assert (pieces.classes, pieces.train_samples) == (6, 36)
    everything = pieces.train_batch(np.arange(36), np.random.default_rng(0))
    train = text_of([everything], text.vocabulary)
    assert train == [letters[i * PIECE : (i + 1) * PIECE + 1] for i in range(36)]
    test = text_of(pieces.test_batches(0, 1, size=3), text.vocabulary)
    assert test == [letters[i * PIECE : (i + 1) * PIECE + 1] for i in range(36, 40)]
    shares = [text_of(pieces.test_batches(rank, 5), text.vocabulary) for rank in range(5)]
    assert sorted(itertools.chain(*shares)) == sorted(test)
    assert shares[4] == []


def test_the_test_of_a_long_text_is_limited():
    pieces = TextPieces(Text(torch.zeros(10_000 * PIECE + 1, dtype=torch.long), "x"))
    assert pieces.train_samples == 9600


def test_a_text_file_is_read(tmp_path):
    content = "Grüße. " * 100
    (tmp_path / "text").write_text(content, encoding="utf-8")
    text = load_text(tmp_path / "text")
    assert "".join(text.vocabulary[number] for number in text.characters) == content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "text cannot be read .*No such file"),
        (b"x" * 2 * PIECE, "has 128 characters; expected more than 128"),
        (b"x" * 1000 + b"\xff", r"is not UTF-8 \(at byte 1000\); convert it"),
    ],
)
def test_bad_text_file_is_named(tmp_path, content, message):
    if content is not None:
        (tmp_path / "text").write_bytes(content)
    with pytest.raises(ConfigError, match=f"train.text_file: .*{message}"):
        load_text(tmp_path / "text")


def test_the_tail_of_a_text_is_for_the_test():
    letters = "".join(np.random.default_rng(0).choice(list("abcdef"), 40 * PIECE + 10))
    text = Text.of(letters)
    tail = 7 * PIECE + 3
    pieces = TextPieces(text, tail)
    everything = pieces.train_batch(np.arange(pieces.train_samples), np.random.default_rng(0))
    train = text_of([everything], text.vocabulary)
    assert train == [letters[i * PIECE : (i + 1) * PIECE + 1] for i in range(33)]
    assert len(letters) - tail >= 33 * PIECE + 1
    test = text_of(pieces.test_batches(0, 1, size=3), text.vocabulary)
    assert test == [letters[i * PIECE : (i + 1) * PIECE + 1] for i in range(33, 40)]


def pretend_bible(folder, verses, code=0):
    command = folder / "bible"
    command.write_text(
        f"#!/bin/sh\n[ \"$*\" = '-f Gen1:1-Rev22:21' ] || exit 9\n"
        f"/bin/cat <<'END'\n{verses}\nEND\n[ {code} = 0 ] || echo broken >&2\nexit {code}\n"
    )
    command.chmod(0o755)


def test_the_king_james_bible_is_split_before_revelation(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    letter = [f"God is light, {i}:1 and the life." for i in range(20)]
    last = [f"And he that sat was to look upon like a jasper {i}" for i in range(9)]
    verses = ["Ge1:1 In the beginning (God)"]
    verses += [f"1Joh1:{i} {verse}" for i, verse in enumerate(letter)]
    verses += [f"Rev22:{i} {verse}" for i, verse in enumerate(last)]
    pretend_bible(tmp_path, "\n".join(verses))
    pieces = load_kjv()
    whole = "\n".join(["In the beginning (God)", *letter, *last, ""])
    before = whole.index("And he that sat")
    first = (before - 1) // PIECE
    assert (pieces.train_samples, pieces.classes) == (first, len(set(whole)))
    expected = [
        whole[i * PIECE : (i + 1) * PIECE + 1] for i in range(first, (len(whole) - 1) // PIECE)
    ]
    assert text_of(pieces.test_batches(0, 1), sorted(set(whole))) == expected


@pytest.mark.parametrize(
    ("verses", "code", "message"),
    [
        ("", 0, "printed 0 verses and ended with 0: no error"),
        ("Ge1:1 In the beginning", 3, "printed 1 verses and ended with 3: broken"),
    ],
)
def test_a_broken_bible_is_named(tmp_path, monkeypatch, verses, code, message):
    monkeypatch.setenv("PATH", str(tmp_path))
    pretend_bible(tmp_path, verses, code)
    with pytest.raises(ConfigError, match=f"{message}; .* apt-get install bible-kjv --reinstall"):
        load_kjv()


def test_a_missing_bible_names_path_and_package(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=f"no command bible in {tmp_path}; .* install bible-kjv"):
        load_kjv()


def test_the_transformer_fits_its_text(tmp_path):
    (tmp_path / "text").write_text("abcd" * 100)
    task = task_of(settings_of(task="char-transformer", text_file=str(tmp_path / "text")))
    dataset = task.load()
    batch = dataset.train_batch(np.arange(2), np.random.default_rng(0))
    assert task.model(dataset.classes)(batch.inputs).shape == (2, 4, PIECE)
    assert task.metric is BITS_PER_CHARACTER
    wide = task_of(settings_of(task="char-transformer", width=512)).model(4)
    assert sum(p.numel() for p in wide.parameters()) == 6_338_560 + 4 * 1025
    help_topics = task_of(settings_of(task="char-transformer")).load()
    assert help_topics.classes == len(load_python_topics().vocabulary)


# --------------------------------------------------------------------- models


@pytest.mark.parametrize(
    ("make", "shape", "parameters"),
    [
        (digits_mlp, (1, 8, 8), 301_066),
        (digits_cnn, (1, 8, 8), 151_306),
        (digits_vgg, (1, 8, 8), 1_677_834),
        (fashion_cnn, (1, 28, 28), 421_642),
        (ResNet20, (3, 32, 32), 269_722),
        (partial(ResNet20, channels=1), (1, 8, 8), 269_434),
    ],
)
def test_models(make, shape, parameters):
    model = make()
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert model(torch.randn(2, *shape)).shape == (2, 10)


# ------------------------------------------------------- metrics, checkpoints


def write_steps(log, steps):
    for step in steps:
        log.write(StepRow(step, 1, 1.0 / step, 0.1, 10, 10 * step, 0.001))
    log.write(EpochRow(steps[-1], 1, 0.5, None, None, 10.0, None, 0.001))
    log.close()


def test_a_resumed_run_replaces_what_came_after_its_checkpoint(tmp_path):
    write_steps(MetricsLog(tmp_path, tensorboard=False, resume_step=None), [1, 2, 3, 4])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "step", "st')  # cut off by SIGKILL
    write_steps(MetricsLog(tmp_path, tensorboard=False, resume_step=2), [3, 4, 5])
    steps = [row["step"] for row in read_rows(tmp_path / "metrics.jsonl") if row["kind"] == "step"]
    assert steps == [1, 2, 3, 4, 5]
    lines = (tmp_path / "steps.csv").read_text().splitlines()
    assert lines[0] == "step,epoch,loss,lr,sent_bytes,sent_bytes_total,seconds"
    assert [line.split(",")[0] for line in lines[1:]] == ["1", "2", "3", "4", "5"]
    assert len((tmp_path / "epochs.csv").read_text().splitlines()) == 2


def test_a_damaged_line_of_the_metrics_is_named(tmp_path):
    write_steps(MetricsLog(tmp_path, tensorboard=False, resume_step=None), [1, 2, 3])
    path = tmp_path / "metrics.jsonl"
    good = path.read_text().splitlines()
    for bad in (
        "\0\0",
        good[1][:-5],
        "[1]",
        '{"kind": "step"}',
        '{"kind": "step", "step": 1, "x": 2}',
    ):
        path.write_text("\n".join([good[0], bad, good[2], ""]))
        with pytest.raises(ConfigError, match=r"metrics\.jsonl, line 2 is damaged: .*; remove the"):
            MetricsLog(tmp_path, tensorboard=False, resume_step=2)
        assert path.read_text().startswith(good[0])


class Alone:
    """An engine of one rank."""

    def rank(self):
        return 0

    def size(self):
        return 1

    def allgather_object(self, value, name):
        return [value]


def test_no_damage_of_a_checkpoint_is_loaded(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(checkpoint, "engine", Alone)
    saved = checkpoint.Checkpoints(tmp_path, keep=3)
    for step in (10, 20):
        model = {"w": torch.arange(50.0) + step}
        saved.save(step, {"model": model, "progress": {"step": step}}, {"random": [step]})
    draw = random.Random(3)
    files = list((tmp_path / "checkpoints" / f"step-{20:012d}").iterdir())
    assert len(files) == 2
    for attempt in range(60):
        file = files[attempt % 2]
        data = file.read_bytes()
        damaged = bytearray(data)
        damaged[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        file.write_bytes(damaged if attempt % 10 else data[: draw.randrange(len(data))])
        caplog.clear()
        resumed = checkpoint.Checkpoints(tmp_path, keep=3).newest()
        assert resumed.path.name == f"step-{10:012d}"
        assert resumed.common["model"]["w"].tolist() == [*range(10, 60)]
        assert resumed.parts == [{"random": [10]}]
        assert f"skips a checkpoint: {tmp_path / 'checkpoints'}/step-{20:012d}" in caplog.text
        file.write_bytes(data)
    resumed = checkpoint.Checkpoints(tmp_path, keep=3).newest()
    assert resumed.common["progress"] == {"step": 20}
    assert resumed.common["world_size"] == 1


def test_a_checkpoint_of_another_program_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "engine", Alone)
    other = Checkpoints(0, 1, 1, "train.py", lambda data: [data])
    for state in ({"torch": np.zeros(9, np.uint8)}, {"torch": 3}, {"x": 1}):
        other.save(tmp_path / "checkpoints", 1, 1, state)
        with pytest.raises(
            AbortError, match=r"rank 0: a checkpoint was not written by this scripts"
        ):
            checkpoint.Checkpoints(tmp_path, keep=1).newest()


def test_random_state_round_trip(tmp_path):
    torch.manual_seed(1)
    np.random.seed(1)
    np.random.standard_normal()  # leaves a cached second number behind
    torch.save(checkpoint.random_state(), tmp_path / "state.pt")
    expected = torch.rand(3), np.random.standard_normal(3)
    checkpoint.set_random_state(torch.load(tmp_path / "state.pt", weights_only=True))
    assert torch.equal(torch.rand(3), expected[0])
    assert np.array_equal(np.random.standard_normal(3), expected[1])


def test_plot(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        log = MetricsLog(tmp_path / name, tensorboard=False, resume_step=None)
        write_steps(log, list(range(1, 50)))
    plot_runs({name: tmp_path / name for name in "ab"}, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def write_epochs(folder, accuracies):
    folder.mkdir()
    log = MetricsLog(folder, tensorboard=False, resume_step=None)
    for epoch, accuracy in enumerate(accuracies, 1):
        log.write(EpochRow(epoch, epoch, 0.5, accuracy, None, 10.0, 2.0, 0.001))
    log.close()


def test_plot_of_a_comparison(tmp_path):
    # One epoch was not tested, and there are more labels than colours: each has a panel.
    for seed in range(2):
        write_epochs(tmp_path / str(seed), [0.5, None, 0.7 + 0.1 * seed])
    runs = {f"run {i}": [tmp_path / "0", tmp_path / "1"] for i in range(9)}
    plot_comparison({**runs, "one seed": [tmp_path / "0"]}, ACCURACY, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    few = {label: runs[label] for label in ("run 0", "run 1")}
    plot_comparison(few, ACCURACY, tmp_path / "few.png")
    assert (tmp_path / "few.png").read_bytes().startswith(b"\x89PNG")


def test_scores_are_shown():
    score = Score(accuracy=0.5, test_bits=2.0)
    assert ACCURACY.show(score) == "test accuracy 0.5000"
    assert "test 2.0000 bits per character (perplexity 4.000)" in BITS_PER_CHARACTER.show(score)
    assert "(perplexity inf)" in BITS_PER_CHARACTER.show(Score(accuracy=0.0, test_bits=1e4))


# -------------------------------------------------------------------- traffic


def test_tcp_bytes_are_those_of_open_connections():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        peer, _ = server.accept()
        with peer:
            descriptors = len(list(Path("/proc/self/fd").iterdir()))
            before = tcp_bytes_sent()
            client.sendall(b"x" * 100_000)
            received = 0
            while received < 100_000:
                received += len(peer.recv(65536))
            assert tcp_bytes_sent() - before == 100_000
            assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
            peer.sendall(b"still open")
            assert client.recv(64) == b"still open"
