"""The network lab's stand-in for ssh, called as launchers call ssh."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from byteps_compressors.job import SSH_OPTIONS
from netlab.launch import stand_in_for_ssh


@pytest.mark.parametrize("options", [[], ["-x"], [*SSH_OPTIONS, "--"]])
def test_the_command_runs_in_the_namespace_of_the_address(
    options: Sequence[str], tmp_path: Path
) -> None:
    """As of Open MPI, with and without forwarding of X, and of BytePS' launcher."""
    ip = tmp_path / "ip"
    ip.write_text('#!/bin/sh\necho "$@"\n', encoding="utf-8")
    ip.chmod(0o755)
    with stand_in_for_ssh() as folder:
        done = subprocess.run(
            [folder / "ssh", *options, "10.77.0.14", "echo", "here"],
            env={"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout.startswith("netns exec gradcomp4 unshare")
    assert done.stdout.endswith("; echo here\n")
