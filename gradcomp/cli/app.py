"""The ``gradcomp`` command: explains specs, checks configurations, reads frames, measures.

Exit codes: 0 for success, 1 for a frame whose CRC does not match, 2 for bad input.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import gradcomp
from gradcomp.cli.bench import bench
from gradcomp.cli.check import check
from gradcomp.cli.consensus import consensus
from gradcomp.cli.inspect import inspect
from gradcomp.cli.polar_demo import polar_demo
from gradcomp.cli.profile import profile
from gradcomp.cli.simulate import simulate
from gradcomp.cli.stages import explain, list_stages
from gradcomp.errors import GradcompError

__all__ = ["app"]


class _Group(TyperGroup):
    """Turns GradcompError and failed output into a message and exit code 2."""

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


# Help lists commands in this order.
app.command("list")(list_stages)
app.command()(explain)
app.command()(check)
app.command()(inspect)
app.command()(bench)
app.command()(simulate)
app.command()(profile)
app.command("polar-demo")(polar_demo)
app.command()(consensus)
