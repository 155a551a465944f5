"""Tensors that the packages make themselves."""

from __future__ import annotations

import ast

import pytest

from support.files import ROOT

FACTORIES = {
    "arange",
    "as_tensor",
    "empty",
    "eye",
    "full",
    "linspace",
    "ones",
    "rand",
    "randn",
    "tensor",
    "zeros",
}
PACKAGES = ("byteps_compressors", "gradcomp_torch", "horovod_compressors", "torch_compressors")


@pytest.mark.parametrize("package", PACKAGES)
def test_dtype_and_device_are_explicit(package: str) -> None:
    """Scripts change torch's defaults, with set_default_dtype and set_default_device."""
    implicit = []
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == "torch"
                and node.func.attr in FACTORIES
                and not {"dtype", "device"} <= {keyword.arg for keyword in node.keywords}
            ):
                implicit.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not implicit
