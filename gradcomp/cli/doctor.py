"""``gradcomp doctor``: the state of the installation."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from gradcomp.cli import show
from gradcomp.cli.json_option import JsonOption
from gradcomp.tools.doctor import examine

__all__ = ["doctor"]


def doctor(
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="Time that each trial may take.")
    ] = 120,
    as_json: JsonOption = False,
) -> None:
    """Try every part of the installation, and show the line that fixes each fault."""
    with show.progress("trying", None) as advance:
        findings = []
        for finding in examine(timeout):
            findings.append(finding)
            advance()
    broken = [finding for finding in findings if finding.status == "broken"]
    if as_json:
        show.output_json([asdict(finding) for finding in findings])
    else:
        table = show.table("part", "state", "found")
        for finding in findings:
            table.add_row(finding.name, finding.status, finding.detail)
        show.output(table)
        for finding in findings:
            if finding.fix is not None:
                show.output("", show.wrap(f"{finding.name}: {finding.fix}"))
        show.output("", f"{len(broken)} broken" if broken else "all that is installed works")
    sys.stdout.flush()
    if broken:
        raise typer.Exit(1)
