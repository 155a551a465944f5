"""examples/loopback.ipynb prints what it shows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from pages.notebook import run_cells, shown

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "examples/loopback.ipynb"


def test_the_notebook_prints_what_it_shows() -> None:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    printed = run_cells(notebook)
    assert len(printed) >= 5
    assert all(printed)
    assert printed == shown(notebook)


def test_another_output_is_found(tmp_path: Path) -> None:
    cell = {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {},
        "outputs": [],
        "source": ["x = 2\n", "print(x + 1)"],
    }
    path = tmp_path / "small.ipynb"
    path.write_text(json.dumps({"cells": [cell], "nbformat": 4}), encoding="utf-8")
    command = [sys.executable, str(ROOT / "scripts/pages/notebook.py"), str(path)]
    checked = subprocess.run([*command, "--check"], capture_output=True, text=True, check=False)
    assert checked.returncode == 1
    assert checked.stderr == "cell 1 prints\n3\ninstead of\n"
    assert subprocess.run(command, check=True).returncode == 0
    assert subprocess.run([*command, "--check"], check=True).returncode == 0
