"""The ``gradcomp`` command: explains specs, checks configurations, reads frames, measures.

Exit codes: 0 for success, 1 for a frame with a wrong CRC or an installation with a fault,
2 for bad input.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import gradcomp
from gradcomp.errors import GradcompError

__all__ = ["COMMANDS", "app"]

COMMANDS = {
    "list": ("stages.list_stages", "List the stages a spec may name."),
    "explain": (
        "explain.explain",
        "Explain a spec, compare several, or count the bytes that a configuration sends.",
    ),
    "check": ("check.check", "Validate a configuration and show its rules, in order."),
    "inspect": ("inspect.inspect", "Show the header of a frame and check its CRC."),
    "bench": (
        "bench.bench",
        "Measure the speed of a spec, or of every codec, next to a memory copy.",
    ),
    "profile": (
        "profile.profile",
        "Show where a step's time goes under a configuration, and what to change.",
    ),
    "advise": (
        "advise.advise",
        "Rank specs and exchange patterns for a job by their predicted steps.",
    ),
    "report": (
        "report.report",
        "Write one HTML page on training runs: curves, bytes, time and settings.",
    ),
    "doctor": (
        "doctor.doctor",
        "Try every part of the installation, and show the line that fixes each fault.",
    ),
    "polar-demo": (
        "polar_demo.polar_demo",
        "Compress coin flips or normal values with polar codes; compare with the bound.",
    ),
    "consensus": (
        "consensus.consensus",
        "Measure how many bits gossip algorithms need until ranks agree.",
    ),
}
"""For each command, in the order of the help, its function in this package, and the first line of
the function's docstring. So help imports no command: all of them together take most of a second."""


class _Group(TyperGroup):
    """Imports the command that is called; turns GradcompError and failed output into a message and
    exit code 2."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name; None if there is none."""
        if cmd_name not in COMMANDS:
            return None
        module, function = COMMANDS[cmd_name][0].split(".")
        alone = typer.Typer(
            add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
        )
        found = getattr(importlib.import_module(f"gradcomp.cli.{module}"), function)
        alone.command(cmd_name)(found)
        return typer.main.get_command(alone)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands and their summaries."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command and write its output out."""
        try:
            try:
                return super().main(*args, **kwargs)
            finally:
                sys.stdout.flush()
        except BrokenPipeError:  # the reader has all it wanted
            code = 1
        except OSError as error:
            typer.echo(f"gradcomp: {error}", err=True)
            code = 2
        _drop_output()
        sys.exit(code)

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        """Run the command."""
        try:
            return super().invoke(ctx)
        except GradcompError as error:
            typer.echo(f"gradcomp: {error}", err=True)
            raise typer.Exit(2) from None


def _drop_output() -> None:
    """Keep the interpreter from a second try to write the rest of the output at its end."""
    stdout = sys.__stdout__
    if stdout is None or sys.stdout is not stdout:
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stdout.fileno())
    os.close(null)


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Gradient compression for Horovod, BytePS and torch.distributed.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gradcomp {gradcomp.__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass
