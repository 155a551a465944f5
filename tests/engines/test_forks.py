"""`support.forks`: a fork behaves as a process of Python; in scripts/test full it is one."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from support.forks import python


def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*python(), *arguments], capture_output=True, text=True, timeout=60, check=False, **options
    )


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("pass", 0),
        ("raise SystemExit(3)", 3),
        ("1 / 0", 1),
        ("import os; os.kill(os.getpid(), 9)", -9),
        ("import os; os.abort()", -6),
    ],
)
def test_the_end_of_a_fork_is_the_processs(program: str, status: int) -> None:
    done = run("-c", program)
    assert done.returncode == status
    assert ("ZeroDivisionError" in done.stderr) == (program == "1 / 0")


def test_arguments_streams_folder_and_environment(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, beside\nprint(sys.argv[1:], os.getcwd(), input(), os.environ['A'])"
    )
    (tmp_path / "beside.py").touch()
    expected = f"['-W', 'b c'] {tmp_path} read from there\n"
    environment = {**os.environ, "A": "there"}
    for words in ([str(script)], ["-m", "script"]):
        done = run(*words, "-W", "b c", input="read from\n", cwd=tmp_path, env=environment)
        assert done.stdout == expected, done.stderr
        assert done.stderr == ""


def test_warnings_are_errors_if_asked_for() -> None:
    program = "import warnings; warnings.warn('of a test')"
    assert run("-c", program).returncode == 0
    assert "UserWarning: of a test" in run("-W", "error", "-c", program).stderr


def test_signals_reach_it_and_the_end_of_the_command_is_its_end() -> None:
    program = """
import os, signal, time
# Not by print(): the signal may come while it prints.
signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"asked to end\\n"))
print(os.getpid(), flush=True)
while True:
    time.sleep(0.1)
"""
    command = subprocess.Popen([*python(), "-c", program], stdout=subprocess.PIPE, text=True)
    assert command.stdout
    fork = int(command.stdout.readline())
    command.send_signal(signal.SIGTERM)
    assert command.stdout.readline() == "asked to end\n"
    command.kill()
    assert command.wait(60) == -9
    command.stdout.close()
    deadline = time.monotonic() + 60
    while psutil.pid_exists(fork):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_forks_do_not_wait_for_each_other() -> None:
    """Two that meet in a pipe."""
    reading, writing = os.pipe()
    program = f"import os; open('/proc/{os.getpid()}/fd/{{}}', '{{}}').{{}}"
    reader = subprocess.Popen([*python(), "-c", program.format(reading, "rb", "read(1)")])
    assert run("-c", program.format(writing, "wb", "write(b'x')")).returncode == 0
    assert reader.wait(60) == 0
    os.close(reading)
    os.close(writing)
