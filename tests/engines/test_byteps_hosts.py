"""Machines of a BytePS job: hostfiles, and the placement of processes."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from byteps_compressors import launch
from byteps_compressors.hosts import LOCALHOST, Host, read_hostfile, spread
from gradcomp.errors import ConfigError


def hostfile(folder: Path, text: str) -> Path:
    path = folder / "hosts"
    path.write_text(text, encoding="utf-8")
    return path


def test_hostfiles_have_a_line_for_each_machine(tmp_path: Path) -> None:
    path = hostfile(tmp_path, "# ours\nnode1 slots=4\n\n  10.0.0.2   # one worker\n")
    assert read_hostfile(path) == [Host("node1", 4), Host("10.0.0.2", 1)]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["no machine for workers"]),
        ("# nothing\n", ["no machine for workers"]),
        ("a slots=0\n", ["no machine for workers", "N >= 1"]),
        ("a slots=two\n", ["line 1", "NAME slots=N"]),
        ("-oProxyCommand=touch\tslots=1\n", ["line 1", "'-oProxyC", "host name or address"]),
        ("a;b\n", ["line 1", "'a;b'", "host name or address"]),
        ("a@-oProxyCommand=b\n", ["line 1", "host name or address"]),
        (f"a slots={'9' * 5000}\n", ["line 1", "N from 0 to 9999"]),
        ("a\nb 4\n", ["line 2", "'b 4'"]),
        ("a\nb\na slots=2\n", ["line 3", "a is listed twice", "slots=N"]),
    ],
)
def test_other_hostfiles_are_refused(tmp_path: Path, text: str, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        read_hostfile(hostfile(tmp_path, text))
    for part in parts:
        assert part in str(caught.value)


def test_names_are_host_names_or_addresses(tmp_path: Path) -> None:
    names = ["node-1.example", "127.0.0.1", "::1", "fe80::1%eth0", "user@node_2"]
    assert [host.name for host in read_hostfile(hostfile(tmp_path, "\n".join(names)))] == names


def test_a_missing_hostfile_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the hostfile .*nowhere"):
        read_hostfile(tmp_path / "nowhere")


def test_processes_are_spread_over_machines() -> None:
    one, two = Host("one", 2), Host("two", 1)
    assert spread([one, two], None, 3) == [
        ("scheduler", one),
        *[("server 0", one), ("server 1", two), ("server 2", one)],
        *[("worker 0", one), ("worker 1", one), ("worker 2", two)],
    ]
    servers_only = Host("three", 0)
    assert spread([servers_only, two], None, 1) == [
        *[("scheduler", servers_only), ("server 0", servers_only), ("worker 0", two)],
    ]
    assert [name for name, _ in spread([one, two], 1, 1)] == ["scheduler", "server 0", "worker 0"]
    with pytest.raises(ConfigError, match="--workers is 4, but the hostfile has 3 slots"):
        spread([one, two], 4, 1)


def test_which_machine_is_this_one() -> None:
    for name in (LOCALHOST, "localhost", socket.gethostname()):
        assert Host(name, 1).is_local()
    for name in ("no-such-machine.invalid", "192.0.2.1"):  # the latter is for documentation
        assert not Host(name, 1).is_local()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "several machines need --interface"),
        (["--interface", "eth0"], "the scheduler runs on the first machine, localhost"),
        (["--interface", "lo", "--workers", "3"], "--workers is 3, but the hostfile has 2 slots"),
    ],
)
def test_the_launcher_refuses(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.delenv("DMLC_INTERFACE", raising=False)
    path = hostfile(tmp_path, "localhost\nother\n")
    logs = ["--logs", str(tmp_path / "logs")]
    code = launch.main(["--hostfile", str(path), *logs, *arguments, "--", sys.executable])
    assert code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize("port", ["0", "65536", "http"])
def test_ports_are_numbers(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        launch.main(["--port", port, "--", sys.executable])
    assert ended.value.code == 2
    assert port in capsys.readouterr().err


def test_the_scheduler_has_a_port_that_nothing_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    port = launch._free_port()
    with socket.socket() as used:
        used.bind(("", port))
        monkeypatch.setattr(launch, "_PORTS", range(port, port + 1))
        with pytest.raises(
            ConfigError, match=f"every port from {port} to {port} is in use; give one"
        ):
            launch._free_port()
    assert launch._free_port() == port
