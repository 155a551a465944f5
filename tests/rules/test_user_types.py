"""mypy --strict and Pyright accept what users write, and know the types of what they get."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).parent / "user_scripts"

WRONG = """\
from gradcomp import Loopback, get_codec
from torch_compressors import OuterStep, ddp_hook
from horovod_compressors.torch import Compression

get_codec(3)
Loopback("fp16", "2")
ddp_hook(3.5)
OuterStep("int4", None, every="30")
ratio: str = Compression("fp16").stats.ratio
"""
MISTAKES = range(5, 10)
"""Lines of `WRONG`, counted from 1."""


def mypy(*paths: Path) -> str:
    """What mypy says on files, with the settings of the repository, which are strict."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *map(str, paths)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr, done.stderr
    return done.stdout


STRICT = ["byteps.py", "fsdp.py", "gossip.py", "loopback_and_plugin.py"]
"""Scripts that Pyright checks strictly; the others call functions of PyTorch, Horovod or Keras without types."""


def pyright(folder: Path) -> list[tuple[str, int]]:
    """Where Pyright finds errors in a folder: file and line, counted from 1. Engines may be missing."""
    settings: dict[str, Any] = {"extraPaths": [str(ROOT)], "strict": STRICT}
    settings |= {"reportMissingImports": False, "reportMissingTypeStubs": False}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = ["pyright", "--pythonpath", sys.executable, "--outputjson", str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["summary"]["filesAnalyzed"] == len(list(folder.glob("*.py")))
    return [
        (Path(error["file"]).name, error["range"]["start"]["line"] + 1)
        for error in found["generalDiagnostics"]
        if error["severity"] == "error"
    ]


def test_types_of_scripts_and_of_mistakes(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(WRONG)
    scripts = sorted(SCRIPTS.glob("*.py"))
    assert len(scripts) == 8
    found = mypy(*scripts, wrong)
    assert not any(f"{script.name}:" in found for script in scripts), found
    for number in MISTAKES:
        assert f"wrong.py:{number}: error:" in found


def test_pyright_finds_the_mistakes_alone(tmp_path: Path) -> None:
    for script in SCRIPTS.glob("*.py"):
        shutil.copy(script, tmp_path)
    (tmp_path / "wrong.py").write_text(WRONG)
    assert {path.name for path in tmp_path.glob("*.py")} > set(STRICT)
    assert set(pyright(tmp_path)) == {("wrong.py", number) for number in MISTAKES}
