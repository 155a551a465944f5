"""Checks of BytePS' processes before they start; nothing of BytePS runs here."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from byteps_compressors import launch, process, server
from byteps_compressors.supervise import Order
from gradcomp.errors import ConfigError

CLUSTER = {
    "DMLC_ROLE": "server",
    "DMLC_NUM_WORKER": "2",
    "DMLC_NUM_SERVER": "1",
    "DMLC_PS_ROOT_URI": "127.0.0.1",
    "DMLC_PS_ROOT_PORT": "9000",
}


class TestServer:
    @pytest.mark.parametrize("missing", CLUSTER)
    def test_names_what_the_environment_lacks(
        self, missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for name, value in CLUSTER.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv(missing)
        assert server.main() == 2
        assert f"lacks {missing}" in capsys.readouterr().err

    def test_refuses_another_role(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for name, value in CLUSTER.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("DMLC_ROLE", "worker")
        assert server.main() == 2
        assert "must be server or scheduler" in capsys.readouterr().err


class TestScheduler:
    def test_its_name_becomes_an_address(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DMLC_PS_ROOT_URI", "localhost")
        process.resolve_scheduler()
        assert process.os.environ["DMLC_PS_ROOT_URI"] == "127.0.0.1"

    def test_a_name_that_nobody_knows_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DMLC_PS_ROOT_URI", "no.such.host.invalid")
        with pytest.raises(ConfigError, match=r"'no\.such\.host\.invalid', which has no address"):
            process.resolve_scheduler()


class TestWorker:
    @pytest.mark.parametrize("launched", [True, False])
    def test_an_exception_ends_it_before_atexit_where_our_launcher_watches(
        self, launched: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv(process.LAUNCHED, raising=False)
        if launched:
            monkeypatch.setenv(process.LAUNCHED, "1")
        script = (
            "import atexit\nfrom byteps_compressors import process\n"
            "atexit.register(print, 'waiting for the others')\n"
            "process.end_at_once()\nraise ValueError('no')"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        assert "ValueError: no" in done.stderr
        assert ("waiting" in done.stdout) is not launched


class TestLauncher:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--workers", "2"], "no command for the workers"),
            (["--workers", "0", "--", "true"], "0; it must be at least 1"),
            (["--", "no-such-program"], "program 'no-such-program' not found"),
        ],
    )
    def test_refuses_wrong_arguments(
        self, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as end:
            launch.main(arguments)
        assert end.value.code == 2
        assert message in capsys.readouterr().err

    @pytest.mark.parametrize("option", ["--timeout", "--stopped-timeout"])
    @pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
    def test_refuses_times_that_are_none(
        self, option: str, seconds: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as ended:
            launch.main([f"{option}={seconds}", "--", "python"])
        assert ended.value.code == 2
        assert f"{seconds}; it must be a number of seconds above 0" in capsys.readouterr().err


class TestSupervisor:
    def test_processors_are_divided_by_workers_on_any_system(self) -> None:
        """Also where the standard library cannot tell which processors a process may use, as on macOS."""
        report = "import os; print(os.environ['OMP_NUM_THREADS'])"
        order = Order(
            [sys.executable, "-c", report], {}, "/", 2, is_worker=False, stopped_seconds=1
        )
        program = (
            "import os; del os.sched_getaffinity; os.cpu_count = lambda: 4; "
            "from gradcomp import processors; processors._QUOTA = processors.Path('/no limit'); "
            "from byteps_compressors import supervise; raise SystemExit(supervise.main())"
        )
        supervisor = subprocess.Popen(
            [sys.executable, "-c", program],
            env={name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        with supervisor as running:
            assert running.stdin is not None
            assert running.stdout is not None
            running.stdin.write(order.to_line())
            running.stdin.flush()
            assert running.stdout.read() == b"2\n"
            assert running.wait() == 0
