"""Wheels of scripts/release: the check of auditwheel's report."""

from __future__ import annotations

from typing import Any

import pytest

from wheels.audit import AuditError, check, check_extension


def report(**changes: Any) -> dict[str, Any]:
    """Parts of the report about a wheel that zig linked for glibc 2.28."""
    symbols = {
        "libc.so.6": ["GLIBC_2.18", "GLIBC_2.2.5", "GLIBC_2.3.2"],
        "libm.so.6": ["GLIBC_2.2.5"],
    }
    whole = {"overall_tag": "manylinux_2_24_x86_64", "versioned_symbols": symbols}
    return {"external_libs": {}, **whole, **changes}


def test_a_wheel_for_the_promised_glibc_passes() -> None:
    line = check(report())
    assert line == "auditwheel: manylinux_2_24_x86_64; newest symbol GLIBC_2.18; no other libraries"
    assert "GLIBC_2.28" in check(report(versioned_symbols={"libc.so.6": ["GLIBC_2.28"]}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"versioned_symbols": {"libc.so.6": ["GLIBC_2.9", "GLIBC_2.34"]}}, "is GLIBC_2.34"),
        ({"overall_tag": "manylinux_2_35_x86_64"}, "the tag manylinux_2_35_x86_64"),
        ({"overall_tag": "linux_x86_64"}, "'linux_x86_64' is no version"),
        ({"external_libs": {"libstdc++.so.6": None}}, r"besides glibc: libstdc\+\+"),
    ],
)
def test_a_wheel_that_needs_more_fails(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(AuditError, match=message):
        check(report(**changes))


def test_the_extension_must_be_for_the_python_of_the_tag() -> None:
    names = ["gradcomp/__init__.py", "gradcomp/_core.cpython-313-x86_64-linux-gnu.so"]
    check_extension(names, "cp313")
    with pytest.raises(AuditError, match=r"x86_64-linux-gnu\.so is not for cp314"):
        check_extension(names, "cp314")
