"""The parts of Horovod, public or not, that `horovod_compressors.torch` relies on.

Each failure names the code to change for another version of Horovod.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import subprocess
import sys
from typing import Any

import horovod
import horovod.torch as hvd
import pytest
from horovod.torch import mpi_ops as stock_ops
from horovod.torch import optimizer as stock
from launch import HERE

from horovod_compressors.torch import names
from horovod_compressors.torch.engine import SUMMABLE_DTYPES

NAMES = "horovod_compressors/torch/names.py"
COMPRESSION = "horovod_compressors/torch/compression.py"
RUN = "horovod_compressors/torch/patch.py"


@pytest.fixture(scope="module")
def observed() -> dict[str, Any]:
    """The calls of a compressor by the stock optimizer, in a process of its own."""
    script = HERE / "workers" / "horovod_seam.py"
    environment = {
        "HOROVOD_ELASTIC": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    job = subprocess.run(
        [sys.executable, script],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert job.returncode == 0, job.stdout + job.stderr
    result: dict[str, Any] = json.loads(job.stdout.splitlines()[-1])
    return result


def calls(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in events if event["call"] == kind]


def test_version() -> None:
    assert horovod.__version__ == "0.28.1", (
        f"Horovod is {horovod.__version__}; the seam was read in 0.28.1. Run the other tests of "
        "this file, fix what they name, then change the version here and in pyproject.toml"
    )


# Callers of compress, and names ---------------------------------------------


def callers_of_compress() -> dict[str, ast.FunctionDef]:
    """Functions of the stock optimizers that call ``self._compression.compress``."""
    tree = ast.parse(inspect.getsource(stock))
    return {
        f"{cls.name}.{function.name}": function
        for cls in tree.body
        if isinstance(cls, ast.ClassDef)
        for function in cls.body
        if isinstance(function, ast.FunctionDef)
        and any(
            isinstance(node, ast.Attribute) and node.attr == "compress"
            for node in ast.walk(function)
        )
    }


def test_methods_that_call_compress() -> None:
    expected = {
        "_DistributedOptimizer._allreduce_grad_async",
        "_DistributedOptimizer._grouped_allreduce_grad_async",
        "_DistributedAdasumOptimizer._allreduce_grad_async",
    }
    assert set(callers_of_compress()) == expected, (
        f"compress is called from elsewhere: change _CALLERS in {NAMES}"
    )
    assert {name.partition(".")[2] for name in expected} == names._CALLERS


@pytest.mark.parametrize("caller", sorted(callers_of_compress()))
def test_names_of_their_locals(caller: str) -> None:
    function = callers_of_compress()[caller]
    arguments = [argument.arg for argument in function.args.args]
    assert arguments[0] == "self", f"{NAMES} reads the optimizer from the local 'self' of {caller}"
    in_loops = {
        loop.target.id
        for loop in ast.walk(function)
        if isinstance(loop, ast.comprehension) and isinstance(loop.target, ast.Name)
    }
    assert "p" in {*arguments, *in_loops}, (
        f"{NAMES} reads the parameter from the local 'p' of {caller}, which has none: change the "
        "name in ParameterNames.find"
    )


def test_factory_arguments() -> None:
    have = set(inspect.signature(hvd.DistributedOptimizer).parameters)
    need = {"optimizer", "named_parameters", "compression", "process_set"}
    assert need <= have, f"{RUN} replaces arguments of hvd.DistributedOptimizer by these names"


@pytest.mark.parametrize("compressor", [hvd.Compression.none, hvd.Compression.fp16])
def test_interface_of_compressors(compressor: Any) -> None:
    for method, arguments in {"compress": ["tensor"], "decompress": ["tensor", "ctx"]}.items():
        assert list(inspect.signature(getattr(compressor, method)).parameters) == arguments, (
            f"stock compressors have another interface: change {method} in {COMPRESSION}"
        )


# Arguments of compress ------------------------------------------------------

ALL_NAMES = ["a", "b", "c"]


@pytest.mark.parametrize("mode", ["missing", "grouped"])
def test_compress_is_given_the_gradient_itself(observed: dict[str, Any], mode: str) -> None:
    compressed = calls(observed[mode], "compress")
    assert sorted(event["found"] for event in compressed) == [f"{mode}.{n}" for n in ALL_NAMES], (
        f"each parameter must come once a step, and ParameterNames in {NAMES} must find it"
    )
    for event in compressed:
        assert event["is_gradient_of"] == [event["found"]], (
            f"compress is given something else than p.grad: ParameterNames.find in {NAMES} looks "
            "for that very object first"
        )
        assert not event["requires_grad"], (
            f"{COMPRESSION} takes a tensor that requires grad for a parameter, and refuses it "
            "because only Adasum passes parameters"
        )


@pytest.mark.parametrize("mode", ["missing", "grouped", "unnamed", "sparse_as_dense", "adasum"])
def test_calling_frame(observed: dict[str, Any], mode: str) -> None:
    for event in calls(observed[mode], "compress"):
        assert event["caller"] in names._CALLERS, (
            f"the optimizer's method is not among the {names._MAX_DEPTH} frames above compress: "
            f"change _CALLERS or _MAX_DEPTH in {NAMES}"
        )
        assert event["self_is_optimizer"], f"calling_optimizer in {NAMES} finds another 'self'"


@pytest.mark.parametrize("mode", ["missing", "unnamed", "sparse_as_dense", "adasum"])
def test_parameter_in_the_calling_frame(observed: dict[str, Any], mode: str) -> None:
    """Where the gradient is not the parameter's own, the frame alone names the parameter."""
    for event in calls(observed[mode], "compress"):
        assert event["frame_p"], (
            f"the local 'p' of {event['caller']} is no parameter: "
            f"change ParameterNames.find in {NAMES}"
        )


def test_sparse_as_dense_compresses_a_copy(observed: dict[str, Any]) -> None:
    compressed = calls(observed["sparse_as_dense"], "compress")
    assert [event["is_gradient_of"] for event in compressed] == [[], [], []], (
        f"sparse_as_dense no longer makes a dense copy: {NAMES} may do without the calling frame"
    )
    assert [event["found"] for event in compressed] == [f"dense.{n}" for n in ALL_NAMES], (
        f"ParameterNames.find in {NAMES} takes a dense copy for another parameter's gradient"
    )


def test_adasum_compresses_the_parameter(observed: dict[str, Any]) -> None:
    for event in calls(observed["adasum"], "compress"):
        assert event["is_parameter"], (
            f"Adasum no longer passes the parameter itself: {COMPRESSION} knows Adasum by a tensor "
            "that requires grad, and must learn to know it otherwise"
        )
        assert event["requires_grad"]


def test_attributes_of_optimizers(observed: dict[str, Any]) -> None:
    assert observed["is average"], f"Compression._check_optimizer in {COMPRESSION} reads op"
    assert observed["process set"] == hvd.global_process_set.process_set_id, (
        f"Compression._check_optimizer in {COMPRESSION} reads process_set"
    )
    assert observed["adasum has"] == [], (
        f"the Adasum optimizer has them now: read them in _check_optimizer in {COMPRESSION}"
    )


def test_names_that_horovod_gives(observed: dict[str, Any]) -> None:
    found = sorted(event["found"] for event in calls(observed["unnamed"], "compress"))
    assert found == [f"allreduce.noname.0.{position}" for position in range(3)], (
        f"change the names that {RUN} gives to parameters without one, and look at the use of "
        f"_parameter_names in {NAMES}"
    )


# Order of calls, and use of the results --------------------------------------


@pytest.mark.parametrize("mode", ["missing", "grouped", "unnamed", "sparse_as_dense"])
def test_all_are_compressed_before_the_first_is_decompressed(
    observed: dict[str, Any], mode: str
) -> None:
    order = [event["call"] for event in observed[mode]]
    assert order == ["compress"] * 3 + ["decompress"] * 3, (
        "the first decompress of a step must find all rounds of the step started (those of "
        "parameters without a gradient too), or Driver in gradcomp/exchange/engine.py deadlocks"
    )


def test_contexts_and_payloads_come_back(observed: dict[str, Any]) -> None:
    for mode in ("missing", "grouped", "unnamed", "sparse_as_dense", "adasum"):
        sent = [event["found"] for event in calls(observed[mode], "compress")]
        back = calls(observed[mode], "decompress")
        assert sorted(event["context"] for event in back) == sorted(sent), (
            f"decompress needs the context that compress returned: {COMPRESSION}"
        )
        assert all(event["payload"] == [3.0] for event in back), (
            f"a token of one element must do instead of a gradient: {COMPRESSION}"
        )


def test_what_decompress_returns_is_the_gradient(observed: dict[str, Any]) -> None:
    expected = [[5.0] * 3] * 2
    assert observed["gradients"] == {f"missing.{n}": expected for n in ALL_NAMES}, (
        "p.grad must become what decompress returns, whatever the shape of what was reduced"
    )


def test_sparse_gradients_are_gathered_without_asking(observed: dict[str, Any]) -> None:
    assert "sparse.b" not in [event["found"] for event in calls(observed["sparse"], "compress")], (
        f"sparse gradients are compressed now: change Compression._pass_sparse in {COMPRESSION}"
    )
    contexts = [event["context"] for event in calls(observed["sparse"], "decompress")]
    assert sorted(contexts, key=str) == [None, "sparse.a", "sparse.c"], (
        f"Compression.decompress in {COMPRESSION} knows a sparse gradient by the context None"
    )


def test_dtypes_that_horovod_adds(observed: dict[str, Any]) -> None:
    assert sorted(observed["summable"]) == sorted(map(str, SUMMABLE_DTYPES)), (
        "change SUMMABLE_DTYPES in horovod_compressors/torch/engine.py"
    )


def test_process_sets_can_be_listed() -> None:
    for name in ("_get_process_set_ids_and_ranks", "is_homogeneous"):
        assert callable(getattr(stock_ops._basics, name, None)), (
            f"horovod_compressors/nodes.py calls it: {name} is gone"
        )
