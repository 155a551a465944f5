"""Limits on imports: frameworks take seconds to import, so commands must not import them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Collection
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest

import gradcomp
import torch_compressors
from gradcomp import adapter_api, device_api
from support.files import ROOT, rule_of


def imported(program: str) -> set[str]:
    """The modules that a Python program has imported at its end."""
    names = "import sys; print('\\n'.join(sys.modules), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\n{names}"], capture_output=True, text=True, check=True
    )
    return set(done.stderr.split())


@pytest.mark.parametrize("arguments", [["--help"], ["explain", "residual|topk(ratio=0.01)"]])
def test_commands_import_no_framework(arguments: list[str]) -> None:
    modules = imported(f"from gradcomp.cli.app import app\napp({arguments}, standalone_mode=False)")
    assert "gradcomp.cli.app" in modules
    assert not modules & {"torch", "tensorflow", "horovod", "byteps", "matplotlib", "scipy"}


def test_help_imports_no_command() -> None:
    modules = imported("from gradcomp.cli.app import app\napp(['--help'], standalone_mode=False)")
    assert not modules & {"numpy", "pydantic", "gradcomp.codec.codec", "gradcomp.cli.stages"}
    assert "numpy" not in imported("import gradcomp")


def test_other_adapters_import_neither_ddp_nor_gossip() -> None:
    modules = imported("import gradcomp_torch.state, gradcomp_torch.dgc_sgd")
    assert not modules & {"torch_compressors.ddp", "torch_compressors.gossip", "gradcomp.gossip"}


def test_entry_points_can_be_loaded() -> None:
    """Those of pyproject.toml, which a tool looks up only when a user needs one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = {**project["entry-points"], "console_scripts": project["scripts"]}
    assert {"gradcomp.links", "gradcomp.probes"} < set(groups)
    for group, entries in groups.items():
        for name, value in entries.items():
            EntryPoint(name, value, group).load()


USERS = ("gradcomp_torch", "byteps_compressors", "horovod_compressors", "torch_compressors")


def names_imported_from(module: str) -> set[str]:
    """The names that adapters and gradcomp_torch import from a module."""
    nodes = (
        node
        for package in USERS
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
    )
    return {
        alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module == module
        for alias in node.names
    }


@pytest.mark.parametrize("api", [adapter_api, device_api], ids=lambda api: str(api.__name__))
def test_each_name_for_adapters_and_devices_is_used(api: ModuleType) -> None:
    assert names_imported_from(api.__name__) == set(api.__all__)


def test_adapters_need_few_names_and_none_for_devices() -> None:
    assert len(adapter_api.__all__) <= 60
    assert not set(adapter_api.__all__) & set(device_api.__all__)


def test_the_public_names_are_there() -> None:
    for name in torch_compressors.__all__:
        assert getattr(torch_compressors, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'ddphook'"):
        torch_compressors.ddphook  # noqa: B018


@pytest.mark.parametrize(
    ("module", "missing", "remedy"),
    [
        ("torch_compressors", "torch", "pip install torch"),
        ("torch_compressors.fsdp", "torch", "pip install torch"),
        ("horovod_compressors.torch", "horovod", "./scripts/setup --engines horovod"),
        ("horovod_compressors.torch", "torch", "pip install torch"),
        ("horovod_compressors.tensorflow", "horovod", "./scripts/setup --engines horovod"),
        ("horovod_compressors.tensorflow", "tensorflow", "./scripts/setup --engines tensorflow"),
        ("byteps_compressors.torch", "byteps", "./scripts/setup --engines byteps"),
        ("byteps_compressors.torch", "torch", "pip install torch"),
        ("torch_compressors.trainers.lightning", "lightning", "pip install lightning"),
        ("torch_compressors.trainers.accelerate", "accelerate", "pip install accelerate"),
        ("torch_compressors.trainers.transformers", "transformers", "pip install transformers"),
    ],
)
def test_an_engine_that_is_not_installed(module: str, missing: str, remedy: str) -> None:
    """As on a machine without it: the package cannot be found."""
    program = f"""
import sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name == "{missing}" else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Without
import {module}
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("gradcomp.errors.MissingPackageError: "), done.stderr
    assert f"(no module named '{missing}'): run {remedy}" in last
    assert "the above exception" not in done.stderr


GRADCOMP = Path(gradcomp.__file__).parent


@rule_of(sorted(set(GRADCOMP.rglob("*.py")) - {GRADCOMP / "__init__.py"}))
def test_inside_the_package_only_the_extension_is_imported_from_its_root(
    path: Path,
) -> Collection[str]:
    """The contract of layers leaves imports of the root out: it cannot tell `_core` from the rest."""
    text = path.read_text()
    imported = re.findall(r"^\s*from gradcomp import (.*)$", text, re.MULTILINE)
    if path.parent.name != "cli":
        imported += re.findall(r"^\s*import gradcomp$", text, re.MULTILINE)
    return set(imported) - {"_core"}
