"""The scripts that start containers, without an engine: wrong arguments, and what is missing."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(command: Sequence[str]) -> tuple[int, str]:
    """Run a script that finds no engine; returns its exit code and its messages."""
    environment = {**os.environ, "GRADCOMP_CONTAINERS": "no-such-engine"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["docker/byteps/cluster", "--", "true"],
        ["docker/hosts", "a", "--", "true"],
        ["scripts/cluster"],
    ],
    ids=lambda command: str(command[0]),
)
def test_a_missing_engine_is_named(command: list[str]) -> None:
    code, messages = run(command)
    assert code == 2
    assert "neither podman nor Docker runs here (tried: no-such-engine)" in messages
    assert "name yours in GRADCOMP_CONTAINERS" in messages


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("docker/byteps/cluster", "no command for the workers"),
        ("docker/byteps/cluster --workers 0 -- true", "--workers is '0'; it must be a number from"),
        ("docker/byteps/cluster --servers", "--servers needs a value"),
        ("docker/byteps/cluster python", "unknown argument 'python'; the command comes after --"),
        ("docker/hosts a b", "no command"),
        ("docker/hosts -- true", "no names of hosts"),
        ("docker/hosts A -- true", "'A' is no name of a host"),
        ("docker/hosts --image", "--image needs a value"),
    ],
)
def test_wrong_arguments_are_named(command: str, message: str) -> None:
    code, messages = run(command.split())
    assert code == 2
    assert message in messages


@pytest.mark.parametrize("script", ["docker/byteps/cluster", "docker/hosts", "scripts/cluster"])
def test_help_needs_no_engine(script: str) -> None:
    assert run([script, "--help"]) == (0, "")
