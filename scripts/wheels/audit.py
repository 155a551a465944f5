"""Check that a wheel of gradcomp runs on the promised glibc, and tag it so: ``scripts/release``.

    python scripts/wheels/audit.py PYTHON WHEEL

WHEEL is tagged ``linux_ARCH`` and for the Python that built it. Its replacement in the same folder has the
tags of PYTHON, such as cp313, with which headers its extension was compiled, and ``manylinux_2_28_ARCH``.
The environment has auditwheel and wheel. (``auditwheel repair`` also moves libraries into wheels, which
this one needs not, and it refuses other processors' wheels.)
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

PROMISED = (2, 28)
"""The oldest glibc that wheels run on: Debian 10's, and RHEL 8's."""


class AuditError(Exception):
    """The wheel needs more than the promised glibc."""


def version_of(text: str) -> tuple[int, ...]:
    """Version of glibc in a tag, such as "manylinux_2_24_x86_64", or a symbol, such as "GLIBC_2.2.5".

    Raises:
        AuditError: there is none, as in "linux_x86_64".
    """
    found = re.fullmatch(r"(?:manylinux|GLIBC)_(\d+)[._](\d+).*", text)
    if found is None:
        raise AuditError(f"'{text}' is no version of glibc that auditwheel vouches for")
    return int(found[1]), int(found[2])


def check(report: dict[str, Any]) -> str:
    """A line about the report of ``auditwheel show --json``.

    Raises:
        AuditError: the wheel needs a newer glibc, or a library besides glibc.
    """
    if report["external_libs"]:
        raise AuditError(f"libraries besides glibc: {', '.join(report['external_libs'])}")
    symbols = {symbol for used in report["versioned_symbols"].values() for symbol in used}
    newest = max(symbols, key=version_of)
    if max(version_of(newest), version_of(report["overall_tag"])) > PROMISED:
        raise AuditError(
            f"the newest symbol is {newest}, the tag {report['overall_tag']}: "
            f"above the promised glibc {'.'.join(map(str, PROMISED))}"
        )
    return f"auditwheel: {report['overall_tag']}; newest symbol {newest}; no other libraries"


def check_extension(names: list[str], python: str) -> None:
    """See that the extension among a wheel's files is for ``python``.

    Raises:
        AuditError: it is for another Python.
    """
    (extension,) = (name for name in names if name.endswith(".so"))
    if f".cpython-{python.removeprefix('cp')}-" not in extension:
        raise AuditError(f"{extension} is not for {python}")


def main() -> None:
    """Check and tag the wheel of the command line."""
    python, wheel = sys.argv[1], Path(sys.argv[2])
    tool = Path(sys.executable).parent
    shown = subprocess.run(
        [str(tool / "auditwheel"), "show", "--json", str(wheel)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    try:
        with zipfile.ZipFile(wheel) as archive:
            check_extension(archive.namelist(), python)
        print(check(json.loads(shown.stdout)))
    except AuditError as error:
        sys.exit(f"{wheel.name}: {error}")
    processor = wheel.stem.split("-linux_")[1]
    tag = "manylinux_{}_{}_{}".format(*PROMISED, processor)
    tags = ["--python-tag", python, "--abi-tag", python, "--platform-tag", tag]
    command = [str(tool / "wheel"), "tags", "--remove", *tags, str(wheel)]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)


if __name__ == "__main__":
    main()
