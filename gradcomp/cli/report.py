"""``gradcomp report``: a page on training runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradcomp.errors import GradcompError
from gradcomp.tools.report import report_page
from gradcomp.tools.run_folder import read_run

__all__ = ["report"]


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER...", help="Output of scripts/train.py, or profiles of a job."
        ),
    ],
    output: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
) -> None:
    """Write one HTML page on training runs: curves, bytes, time and settings."""
    page = report_page([read_run(folder) for folder in folders])
    try:
        output.write_text(page, encoding="utf-8")
    except OSError as error:
        raise GradcompError(f"--output: cannot write '{output}': {error.strerror}") from error
    typer.echo(output)
