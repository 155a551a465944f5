"""Private names of PyTorch are in one module, which refuses old versions."""

from __future__ import annotations

import ast
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from gradcomp.errors import ConfigError
from gradcomp_torch import compat
from gradcomp_torch.compat import check_version, destroy_process_group, require
from support.files import ROOT

PACKAGES = ("gradcomp_torch", "byteps_compressors", "horovod_compressors", "torch_compressors")
COMPAT = Path("gradcomp_torch/compat.py")

PRIVATE = {
    *("_C", "_execution_engine", "_get_fsdp_state", "_allgather_base", "_get_backend"),
    *("_join_config", "_divide_by_initial_world_size", "_use_python_reducer", "_comm_hooks"),
    *("_post_accumulate_grad_hooks", "_orig_mod", "_register_builtin_comm_hook"),
}
"""Of objects of PyTorch; those of its modules are found by their beginning."""


def private_names(code: str) -> set[str]:
    """The private names of PyTorch that a file uses."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            of_torch = ast.unparse(node.value).partition(".")[0] in ("torch", "dist")
            if (of_torch and not node.attr.startswith("__")) or node.attr in PRIVATE:
                found.add(node.attr)
        elif isinstance(node, ast.Constant) and node.value in PRIVATE:
            found.add(node.value)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch."):
            found |= {alias.name for alias in node.names if alias.name.startswith("_")}
            found |= {part for part in (node.module or "").split(".") if part.startswith("_")}
    return found


@pytest.mark.parametrize(
    "code",
    [
        "torch._foreach_add_(a, b)",
        "module._get_fsdp_state()",
        "getattr(model, '_orig_mod', model)",
        "from torch._C import _x",
        "from torch.distributed import _functional_collectives",
    ],
)
def test_a_private_name_is_found(code: str) -> None:
    assert private_names(code)


def test_private_names_are_in_one_module() -> None:
    used = {
        str(path.relative_to(ROOT)): names
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if (names := private_names(path.read_text()))
    }
    assert used.pop(str(COMPAT)) > PRIVATE
    assert used == {}


@pytest.mark.parametrize("version", ["1.13.1", "2.3.1+cpu", "2.0.0a0+git123"])
def test_an_old_version_is_refused(version: str) -> None:
    with pytest.raises(ConfigError, match=r"is too old.*need 2\.4 or later: run pip install"):
        check_version(version)


@pytest.mark.parametrize("version", ["2.4.0", "2.14.0+debian", "3.0.0", "10.1"])
def test_a_later_version_is_not(version: str) -> None:
    check_version(version)


def test_a_missing_name_is_an_error_with_the_remedy() -> None:
    require(torch, "ones", "2.4", "this test")
    with pytest.raises(
        ConfigError, match=r"has no other, which this test needs: run pip install 'torch>=2\.6'"
    ):
        require(torch, "other", "2.6", "this test")


@pytest.mark.parametrize("version", ["2.4.0", "2.7.1", torch.__version__])
def test_no_thread_of_gloo_outlives_its_group(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.new_group([0])
    dist.all_reduce(torch.ones(3))
    assert gloo_threads() > 0
    destroy_process_group(version=version)
    assert not dist.is_initialized()
    assert gloo_threads() == 0


def test_before_2_8_the_back_end_outlives_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the destructor of the back end lets Gloo's threads free tensors while it waits for them."""
    ended: list[str] = []
    found = compat._host_backends

    def watched() -> list[Any]:
        backends = found()
        for backend in backends:
            weakref.finalize(backend, ended.append, "back end")
        return backends

    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(compat, "_host_backends", watched)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    weakref.finalize(dist.group.WORLD, ended.append, "group")
    destroy_process_group(version="2.4.0")
    assert ended == ["group", "back end"]


def gloo_threads() -> int:
    """The number of threads of this process that PyTorch has named after Gloo."""
    names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    return sum("gloo" in name for name in names)
