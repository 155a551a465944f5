#!/usr/bin/env python3
"""Run a notebook: ``python scripts/pages/notebook.py FILE.ipynb`` runs its code cells, and saves what they print.

With ``--check`` it saves nothing, and fails if they print something else than the notebook shows. Only printed text is
an output; this needs no package of Jupyter.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

__all__ = ["run_cells", "shown"]


def run_cells(notebook: dict[str, Any]) -> list[str]:
    """Run the code cells of a notebook in one namespace, in order.

    Returns:
        What each code cell prints.
    """
    namespace: dict[str, Any] = {"__name__": "__main__"}
    printed = []
    for number, cell in enumerate(code_cells(notebook), 1):
        output = StringIO()
        with redirect_stdout(output):
            exec(compile("".join(cell["source"]), f"<cell {number}>", "exec"), namespace)
        printed.append(output.getvalue())
    return printed


def shown(notebook: dict[str, Any]) -> list[str]:
    """Return the outputs that the code cells of a notebook show."""
    return [
        "".join(line for output in cell["outputs"] for line in output["text"])
        for cell in code_cells(notebook)
    ]


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the cells of a notebook that hold code."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def show(notebook: dict[str, Any], printed: list[str]) -> None:
    """Make ``printed`` the outputs of the code cells."""
    for number, (cell, text) in enumerate(zip(code_cells(notebook), printed, strict=True), 1):
        lines = text.splitlines(keepends=True)
        stream = {"name": "stdout", "output_type": "stream", "text": lines}
        cell["execution_count"], cell["outputs"] = number, [stream] if lines else []


def main() -> int:
    """Run one notebook; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("file", type=Path)
    parser.add_argument("--check", action="store_true", help="compare instead of saving")
    options = parser.parse_args()
    notebook = json.loads(options.file.read_text(encoding="utf-8"))
    printed = run_cells(notebook)
    if options.check:
        wrong = [
            f"cell {number} prints\n{now}instead of\n{before}"
            for number, (now, before) in enumerate(zip(printed, shown(notebook), strict=True), 1)
            if now != before
        ]
        print("\n".join(wrong), end="", file=sys.stderr)
        return 1 if wrong else 0
    show(notebook, printed)
    text = json.dumps(notebook, indent=1, ensure_ascii=False)
    options.file.write_text(f"{text}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
