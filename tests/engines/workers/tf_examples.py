"""The examples for TensorFlow and Keras 3, which run as scripts in a job that is there already."""

from __future__ import annotations

import io
import re
import runpy
import sys
from contextlib import redirect_stdout
from unittest import mock

import horovod.tensorflow as hvd
from launch import ROOT
from workers.runner import Cases

cases = Cases()


def check(name: str) -> None:
    """The example trains a model."""
    printed = io.StringIO()
    arguments = [f"{name}.py", "--epochs", "4"]
    with mock.patch.object(sys, "argv", arguments), redirect_stdout(printed):
        runpy.run_path(str(ROOT / "examples" / arguments[0]), run_name="__main__")
    if hvd.rank() == 0:
        (accuracy,) = re.findall(r"test accuracy ([0-9.]+)", printed.getvalue())
        assert float(accuracy) > 0.7, accuracy


@cases
def tf_example_of_a_tape() -> None:
    check("tensorflow2_digits")


@cases
def tf_example_of_fit() -> None:
    check("keras_digits")
