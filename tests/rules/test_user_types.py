"""mypy --strict accepts what users write, and knows the types of what they get."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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


def test_types_of_scripts_and_of_mistakes(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(WRONG)
    scripts = sorted(SCRIPTS.glob("*.py"))
    assert len(scripts) == 8
    found = mypy(*scripts, wrong)
    assert not any(f"{script.name}:" in found for script in scripts), found
    lines = WRONG.splitlines()
    for number in range(lines.index("get_codec(3)") + 1, len(lines) + 1):
        assert f"wrong.py:{number}: error:" in found
