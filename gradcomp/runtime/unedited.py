"""Runs an unedited training script with compression: the common part of the adapters' launchers.

An adapter's module ``run`` calls `run_unedited` with its patches: functions that replace names in a
module of the engine when the script has imported it.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from gradcomp.config.preset import AUTO
from gradcomp.config.schema import Config
from gradcomp.config.sources import load_sources, load_spec
from gradcomp.errors import GradcompError
from gradcomp.messages import show_messages
from gradcomp.runtime.outer.options import OuterOptions

__all__ = ["Patch", "Unedited", "run_unedited"]

Patch = Callable[[ModuleType, "Unedited"], None]


@dataclass
class Unedited:
    """The run of one script, as its patches see it.

    Attributes:
        config: of the compression that the patches put in place.
        compressed: the stock functions that the patches replace, for messages.
        is_first_rank: whether this process is rank 0, also after the engine's shutdown.
        every: inner steps per outer step, if the patches make outer steps; see docs/outer.md.
        silent: whether no message is due at the end: something is compressed, or processes that the
            script has started report for themselves.
    """

    config: Config
    compressed: str
    is_first_rank: Callable[[], bool]
    every: int | None = None
    silent: bool = False

    def apply(self, patches: Mapping[str, Patch]) -> None:
        """Call each patch with the module of its name, now or once the script has imported it."""
        show_messages(always=True)
        for name, patch in patches.items():
            _after_import(name, functools.partial(_call, patch, self))

    def replaced(self, function: str, before: Any = None) -> None:
        """Report on rank 0 that ``function`` compresses, instead of ``before``."""
        self.silent = True
        instead = "" if before is None else f" instead of {before}"
        local = "" if self.every is None else f" every {self.every} steps, as OuterStep does,"
        self.say_once(
            f"{function} compresses{local} with {self.config.compress.default}{instead}; the "
            "compressor's state is not in the script's checkpoints"
        )

    def finish(self, script: str) -> None:
        """Report on rank 0 if nothing was compressed."""
        if not self.silent:
            self.say_once(f"{script} never called {self.compressed}, so nothing was compressed")

    def say_once(self, text: str) -> None:
        """Print a message for the user on stderr, on rank 0 only."""
        if self.is_first_rank():
            say(text)


def say(text: str) -> None:
    """Print a message for the user on stderr."""
    print(f"gradcomp: {text}", file=sys.stderr, flush=True)


def run_unedited(
    argv: Sequence[str] | None,
    package: str,
    compressed: str,
    patches: Mapping[str, Patch],
    is_first_rank: Callable[[], bool],
    prepare: Callable[[Config], None] | None = None,
    outer: bool = False,
) -> int:
    """Read the command line, and run its script or module as ``__main__``.

    Args:
        argv: arguments of the launcher; None for those of this process.
        package: the adapter's; its launcher is ``python -m PACKAGE.run``.
        compressed: the stock functions that the patches replace, for messages.
        patches: by the name of a module. Each is called once, when the module has been imported.
        is_first_rank: whether this process is rank 0; also True if the script never joined a job.
        prepare: called with the configuration before the script runs; raises a `GradcompError` if
            it cannot work under the launcher.
        outer: the patches know `Unedited.every`, the option ``--outer``.

    Returns:
        The exit code: 0, or 2 for wrong arguments.

    Raises:
        SystemExit: of the script, if it exits by itself.
    """
    options = _parse(sys.argv[1:] if argv is None else argv, package, compressed, outer)
    script = options.script or options.module[0]
    try:
        config = _config(options)
        if options.outer is not None:
            OuterOptions.of(config, options.outer)
        if prepare is not None:
            prepare(config)
    except GradcompError as error:
        say(str(error))
        return 2
    if options.script and not Path(script).is_file():
        say(f"there is no script '{script}'")
        return 2
    run = Unedited(config, compressed, is_first_rank, options.outer)
    run.apply(patches)
    sys.argv = [script, *(options.args if options.script else options.module[1:])]
    sys.path[0] = str(Path(script).resolve().parent) if options.script else os.getcwd()
    if not options.script and not _exists(script):
        say(f"there is no module '{script}' in {sys.path[0]} or on the path of Python (PYTHONPATH)")
        return 2
    end: SystemExit | None = None
    try:
        if options.script:
            runpy.run_path(script, run_name="__main__")
        else:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
    except SystemExit as exit_:  # many scripts end so
        end = exit_
    run.finish(script)
    if end is not None:
        raise end
    return 0


def _parse(argv: Sequence[str], package: str, compressed: str, outer: bool) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m {package}.run",
        description=f"Run a script that uses the stock {compressed} with compression.",
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--compression",
        metavar="SPEC",
        help="such as 'residual|topk(ratio=0.01)'; without this and --config: auto",
    )
    source.add_argument(
        "--config",
        metavar="FILE",
        action="append",
        help="YAML file; may be given several times, they compose left to right; or a spec",
    )
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="override of the configuration, such as seed=1; may be given several times",
    )
    if outer:
        parser.add_argument(
            "--outer",
            metavar="H",
            type=int,
            help="train H steps on each rank alone between two averages of the ranks' changes, in "
            "place of an average of gradients in each step",
        )
    parser.set_defaults(outer=None)
    parser.add_argument(
        "-m",
        dest="module",
        metavar="MODULE",
        nargs=argparse.REMAINDER,
        help="instead of a script, as with python -m: the module and its arguments",
    )
    parser.add_argument("script", nargs="?", help="the Python script")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="its arguments")
    options = parser.parse_args(argv)
    if not options.script and not options.module:
        parser.error("the following arguments are required: script, or -m MODULE")
    return options


def _config(options: argparse.Namespace) -> Config:
    if not options.config:
        return load_spec(options.compression or AUTO, options.set)
    return load_sources(options.config, options.set)


def _call(patch: Patch, run: Unedited, module: ModuleType) -> None:
    patch(module, run)


def _after_import(name: str, function: Callable[[ModuleType], None]) -> None:
    """Call a function with the named module, now or after its import."""
    if name in sys.modules:
        function(sys.modules[name])
    else:
        sys.meta_path.insert(0, _AfterImport(name, function))


class _AfterImport(MetaPathFinder):
    """Calls a function with the named module, after the module's import."""

    def __init__(self, name: str, function: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._function = function
        self._found = False

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Part of the import system."""
        if name != self._name or self._found:
            return None
        self._found = True
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_call(module: ModuleType) -> None:
                execute(module)
                self._function(module)

            spec.loader.exec_module = execute_and_call  # type: ignore[method-assign]
        return spec


def _exists(module: str) -> bool:
    """Whether a module can be found; imports the packages above it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError as error:
        if error.name and f"{module}.".startswith(f"{error.name}."):
            return False
        raise
