"""The ``gradcomp`` command: explains specs, checks configurations, reads frames, measures.

Exit codes: 0 for success, 1 for a frame with a wrong CRC or an installation with a fault,
2 for bad input.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

import gradcomp
from gradcomp.cli.command import Command
from gradcomp.errors import GradcompError

__all__ = ["COMMANDS", "app"]


class _Entry(NamedTuple):
    place: str
    """``module.function`` in this package."""
    summary: str
    """The first line of the function's docstring."""
    example: str


COMMANDS = {
    "list": _Entry(
        "stages.list_stages",
        "List the stages a spec may name.",
        "gradcomp list topk",
    ),
    "explain": _Entry(
        "explain.explain",
        "Explain a spec, compare several, or count the bytes that a configuration sends.",
        "gradcomp explain 'residual|topk(ratio=0.01)' --model resnet50 --workers 8",
    ),
    "check": _Entry(
        "check.check",
        "Validate a configuration and show its rules, in order.",
        "gradcomp check compress.yaml --set seed=3 --tensor fc.weight=512x512",
    ),
    "inspect": _Entry(
        "inspect.inspect",
        "Show the header of a frame and check its CRC.",
        "gradcomp inspect frame.bin",
    ),
    "bench": _Entry(
        "bench.bench",
        "Measure the speed of a spec, or of every codec, next to a memory copy.",
        "gradcomp bench 'residual|topk(ratio=0.01)' --threads 1 --threads 2",
    ),
    "profile": _Entry(
        "profile.profile",
        "Show where a step's time goes under a configuration, and what to change.",
        "gradcomp profile compress.yaml --model resnet50 --bandwidth 1000",
    ),
    "advise": _Entry(
        "advise.advise",
        "Rank specs and exchange patterns for a job by their predicted steps.",
        "gradcomp advise resnet50 --ranks 4 --bandwidth 1000 --compute 300",
    ),
    "report": _Entry(
        "report.report",
        "Write one HTML page on training runs: curves, bytes, time and settings.",
        "gradcomp report runs/uncompressed runs/top-k --output report.html",
    ),
    "doctor": _Entry(
        "doctor.doctor",
        "Try every part of the installation, and show the line that fixes each fault.",
        "gradcomp doctor --timeout 60",
    ),
    "polar-demo": _Entry(
        "polar_demo.polar_demo",
        "Compress coin flips or normal values with polar codes; compare with the bound.",
        "gradcomp polar-demo --length 1024 --rate 0.25 --rate 0.5",
    ),
    "consensus": _Entry(
        "consensus.consensus",
        "Measure how many bits gossip algorithms need until ranks agree.",
        "gradcomp consensus --data lowrank --size 50 --steps 100",
    ),
}
"""All commands, in the order of the help. The summaries are repeated here, as help imports no command: all of
them together take most of a second."""


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
        entry = COMMANDS[cmd_name]
        module, function = entry.place.split(".")
        alone = typer.Typer(
            add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
        )
        found = getattr(importlib.import_module(f"gradcomp.cli.{module}"), function)
        alone.command(cmd_name, cls=Command, epilog=f"Example:\n\n\b\n  {entry.example}")(found)
        return typer.main.get_command(alone)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that ``args`` begin with; a wrong name gets the nearest ones."""
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], COMMANDS)
            guess = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
            ctx.fail(f"No such command {args[0]!r}.{guess}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands and their summaries."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])

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
    context_settings={"help_option_names": ["-h", "--help"]},
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
