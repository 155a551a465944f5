"""``gradcomp report``: a page on training runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradcomp.errors import GradcompError
from gradcomp.tools.report import report_page
from gradcomp.tools.run_folder import read_runs

__all__ = ["report"]


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER",
            help="Output of scripts/train.py, profiles of a job, or a folder that holds such folders.",
        ),
    ],
    output: Annotated[Path, typer.Option(metavar="FILE.html", help="The page to write.")] = Path(
        "report.html"
    ),
) -> None:
    """Write one HTML page on training runs: curves, bytes, time and settings."""
    runs = []
    for folder in folders:
        found, warnings = read_runs(folder)
        runs += found
        for warning in warnings:
            typer.echo(f"gradcomp: left out: {warning}", err=True)
    page = report_page(runs)
    try:
        output.write_text(page, encoding="utf-8", errors="replace")
    except OSError as error:
        raise GradcompError(f"--output: cannot write '{output}': {error.strerror}") from error
    typer.echo(output)
