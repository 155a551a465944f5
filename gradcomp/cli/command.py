"""A command with help that names arguments as the pages do, without the types of Python."""

from __future__ import annotations

from typing import Any

from typer.core import TyperArgument, TyperCommand

__all__ = ["Command"]


class Command(TyperCommand):
    """Shows each argument by its ``metavar`` alone, in the usage as well."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The parts of the usage line after the command."""
        arguments = [param for param in self.get_params(ctx) if isinstance(param, TyperArgument)]
        return ["[OPTIONS]", *map(_shown, arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and the options."""
        for title, of_arguments in (("Arguments", True), ("Options", False)):
            rows = [
                (_shown(param) if isinstance(param, TyperArgument) else record[0], record[1])
                for param in self.get_params(ctx)
                if isinstance(param, TyperArgument) == of_arguments
                and (record := param.get_help_record(ctx)) is not None
            ]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _shown(argument: TyperArgument) -> str:
    """An argument as the usage line has it: ``NAME``, ``[NAME]`` or ``NAME...``."""
    name = argument.metavar or argument.name
    return f"{name if argument.required else f'[{name}]'}{'' if argument.nargs == 1 else '...'}"
