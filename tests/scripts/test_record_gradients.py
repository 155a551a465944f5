"""Recorded gradients, and the character transformer and text behind them."""

from pathlib import Path

import numpy as np
import pytest
import torch
import typer

from gradcomp.tools.survey import load_gradients
from results.record_gradients import Model, main, record
from training.tasks.models import CharTransformer
from training.tasks.text import load_python_topics


@pytest.mark.parametrize("model", Model)
def test_a_recording_holds_every_gradient_of_the_steps(model: Model, tmp_path: Path) -> None:
    output = tmp_path / "folder" / "gradients.npz"
    record(model, output, steps=(1, 3))
    with np.load(output) as arrays:
        shapes = {name: arrays[name].shape for name in arrays.files}
        assert {arrays[name].dtype for name in arrays.files} == {np.dtype(np.float16)}
    first = [name.removeprefix("step1/") for name in shapes if name.startswith("step1/")]
    third = [name.removeprefix("step3/") for name in shapes if name.startswith("step3/")]
    assert first == third
    assert len(first) + len(third) == len(shapes)
    gradient = load_gradients([output])["gradients"]
    assert gradient.size == sum(int(np.prod(shape)) for shape in shapes.values())
    assert np.all(np.isfinite(gradient))
    # Dead units give exact zeros; more would be gradients too small for float16.
    assert np.mean(gradient == 0) < 0.3


@pytest.mark.parametrize("model", Model)
def test_the_seed_decides_a_recording(model: Model, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("first.npz", "again.npz", "other.npz")]
    for file, seed in zip(files, (0, 0, 1), strict=True):
        record(model, file, seed, steps=(2,))
    first, again, other = (file.read_bytes() for file in files)
    assert first == again
    assert first != other


def test_files_are_named_after_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(
        "results.record_gradients.record", lambda *arguments: calls.append(arguments)
    )
    monkeypatch.setattr("torch.set_num_threads", lambda count: None)
    main(model=Model.CHAR_TRANSFORMER)
    main(tmp_path, Model.DIGITS_CNN, seed=3)
    assert calls == [
        (Model.CHAR_TRANSFORMER, Path("runs/gradients/char-transformer.npz"), 0),
        (Model.DIGITS_CNN, tmp_path, 3),
    ]


def test_a_range_of_steps(tmp_path: Path) -> None:
    output = tmp_path / "gradients.npz"
    main(output, Model.DIGITS_CNN, steps="2:3")
    with np.load(output) as arrays:
        assert {name.partition("/")[0] for name in arrays.files} == {"step2", "step3"}
    for steps in ("3:2", "0:1", "5", "a:b"):
        with pytest.raises(typer.BadParameter, match="expected FIRST:LAST"):
            main(output, Model.DIGITS_CNN, steps=steps)


def test_the_transformer_does_not_see_what_follows() -> None:
    torch.manual_seed(0)
    model = CharTransformer(characters=20, length=16)
    text = torch.randint(20, (2, 16))
    changed = text.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 20
    before, after = model(text), model(changed)
    assert before.shape == (2, 20, 16)
    torch.testing.assert_close(before[..., :9], after[..., :9])
    assert not torch.allclose(before[..., 9], after[..., 9])


def test_the_transformer_has_the_documented_size() -> None:
    for characters in (1, 100):
        model = CharTransformer(characters, length=64)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        assert parameters == 404_992 + 257 * characters


def test_a_batch_of_text_asks_for_the_next_character() -> None:
    text = load_python_topics()
    assert len(text.characters) > 100_000
    batch = text.batch(np.random.default_rng(0), size=5, length=8)
    assert batch.inputs.shape == batch.classes.shape == (5, 8)
    assert torch.equal(batch.inputs[:, 1:], batch.classes[:, :-1])
    whole = "".join(text.vocabulary[number] for number in text.characters)
    for row, last in zip(batch.inputs, batch.classes[:, -1], strict=True):
        piece = "".join(text.vocabulary[number] for number in [*row, last])
        assert piece in whole
