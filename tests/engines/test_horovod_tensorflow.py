"""TensorFlow and Keras on real Horovod: the rounds that PyTorch has, in graphs."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from launch import HERE, CaseJob, cases_in, run
from workers.specs import SPECS

from support.scope import by_scope

EXAMPLES = HERE.parents[1] / "examples"
KERAS = {"keras3": {}, "keras2": {"TF_USE_LEGACY_KERAS": "1"}}


@pytest.mark.parametrize("spec", SPECS)
def test_many_steps(tf2: CaseJob, spec: str) -> None:
    of_ranks = [values[spec] for values in tf2.check("tf_replicas")]
    assert all(values["identical"] for values in of_ranks)
    assert all(values["moved"] > 0 for values in of_ranks)
    assert of_ranks[0]["differences"] == {}


@pytest.mark.parametrize("case", cases_in("tf_options"))
def test_option(tf2: CaseJob, case: str) -> None:
    tf2.check(case)


@pytest.mark.parametrize("case", cases_in("tf_conservation"))
def test_nothing_is_lost(tf2: CaseJob, case: str) -> None:
    tf2.check(case)


@pytest.mark.parametrize("case", cases_in("tf_process_sets"))
def test_process_set(tf3: CaseJob, case: str) -> None:
    tf3.check(case)


@pytest.mark.parametrize("case", cases_in("tf_keras"))
def test_keras(tf2: CaseJob, case: str) -> None:
    tf2.check(case)


@pytest.mark.parametrize("case", cases_in("tf_mixed_precision"))
def test_mixed_precision(tf2: CaseJob, case: str) -> None:
    tf2.check(case)


@pytest.mark.parametrize("version", ["keras3", "keras2"])
def test_keras_learns_as_well_with_compression(tf2: CaseJob, version: str) -> None:
    (found, _) = tf2.check("tf_keras_fit")
    plain = found[f"{version} identity"]["accuracy"]
    assert plain > 0.85
    others = {name: one for name, one in found.items() if name.startswith(version)}
    assert len(others) == by_scope(2, 3)
    assert all(one["accuracy"] > plain - 0.03 for one in others.values()), others


@pytest.mark.parametrize("case", cases_in("tf_examples"))
def test_example_of_tensorflow(tf2: CaseJob, case: str) -> None:
    tf2.check(case)


@pytest.mark.full
def test_example_of_keras2() -> None:
    command = ["-W", "error", EXAMPLES / "keras_digits.py", "--epochs", "4"]
    finished = run(command, 2, "gloo", KERAS["keras2"])
    assert finished.status == 0, finished.output
    (accuracy,) = re.findall(r"test accuracy ([0-9.]+)", finished.output)
    assert float(accuracy) > 0.7, finished.output


def test_script_runs_unedited() -> None:
    spec = "residual|topk(ratio=0.01)"
    script = HERE / "workers" / "stock_tf_script.py"
    command = ["-W", "error", "-m", "horovod_compressors.run", "--compression", spec, script]
    finished = run(command, 2, "gloo")
    assert finished.status == 0, finished.output
    assert '{"tape": true, "fit": true}' in finished.output, finished.output
    (line,) = re.findall(r"gradcomp: (.* compresses with .*)", finished.output)
    assert line.startswith("hvd.DistributedGradientTape compresses with residual("), line
    assert "instead of <class 'horovod.tensorflow.compression.FP16Compressor'>" in line


@pytest.mark.parametrize("case", cases_in("tf_outer"))
def test_outer_steps(tf2: CaseJob, case: str) -> None:
    tf2.check(case)


@pytest.mark.parametrize(
    "environment",
    [pytest.param(KERAS["keras3"], marks=pytest.mark.full), KERAS["keras2"]],
    ids=KERAS,
)
def test_fit_runs_unedited_with_outer_steps(environment: dict[str, str], tmp_path: Path) -> None:
    """Four batches, an average after each second one: the models are then equal."""
    # Beside the script, `workers.tf_keras` would hide the package tf_keras.
    script = shutil.copy(HERE / "workers" / "stock_tf_script.py", tmp_path)
    options = ["--compression", "residual|int8", "--outer", "2"]
    command = ["-W", "error", "-m", "horovod_compressors.run", *options, script, "--fit"]
    finished = run(command, 2, "gloo", environment)
    assert finished.status == 0, finished.output
    assert '"fit": true' in finished.output
    assert finished.output.count("compresses every 2 steps") == 1
