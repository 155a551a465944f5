"""Runs a training script with gradient compression, without editing it.

``horovodrun -np 2 python -m horovod_compressors.run --compression SPEC train.py --epochs 3`` (or
``-m pkg.train --epochs 3``) replaces the compression of every ``hvd.DistributedOptimizer`` and
``hvd.DistributedGradientTape`` that the script makes.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from gradcomp import Config, load_config
from gradcomp.errors import GradcompError

__all__ = ["main"]

# Horovod's modules, and our modules with the function `patch` for each.
_PATCHES = {
    "horovod.torch": "horovod_compressors.torch.patch",
    "horovod.tensorflow": "horovod_compressors.tensorflow.patch",
    "horovod.tensorflow.keras": "horovod_compressors.tensorflow.patch",
}


_LAUNCHER = "horovod.runner"


class _AfterImport(MetaPathFinder):
    """Calls a function with each of the named modules, after the module's import."""

    def __init__(self, names: Sequence[str], function: Callable[[ModuleType], None]) -> None:
        self._names = set(names)
        self._function = function

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Part of the import system."""
        if name not in self._names:
            return None
        self._names.remove(name)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_call(module: ModuleType) -> None:
                execute(module)
                self._function(module)

            spec.loader.exec_module = execute_and_call  # type: ignore[method-assign]
        return spec


class _Replacing:
    """Replaces compression in Horovod's modules, and reports it on stderr."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.count = 0

    def patch(self, module: ModuleType) -> None:
        """Replace compression in a module of Horovod, after its import."""
        ours = importlib.import_module(_PATCHES[module.__name__])
        ours.patch(module, self._config, partial(self._replaced, module))

    def _replaced(self, module: Any, function: str, before: Any) -> None:
        self.count += 1
        if module.rank() == 0:
            instead = "" if before is None else f" instead of {before}"
            print(
                f"gradcomp: {function} compresses with {self._config.compress.default}{instead}; the "
                "compressor's state is not in the script's checkpoints",
                file=sys.stderr,
                flush=True,
            )


def _warn_of_launches(module: Any) -> None:
    """Make ``horovod.run`` say, before it starts a job, that the job's processes are out of reach."""
    stock = module.run

    @functools.wraps(stock)
    def run(*args: Any, **kwargs: Any) -> Any:
        print(
            "gradcomp: horovod.run starts processes that python -m horovod_compressors.run does not "
            "reach, so nothing is compressed in them: start the ranks with horovodrun -np N python "
            "-m horovod_compressors.run ..., or use Compression.from_env() in the function",
            file=sys.stderr,
            flush=True,
        )
        return stock(*args, **kwargs)

    module.run = run


def _is_first_rank() -> bool:
    """Whether this is rank 0; also True if Horovod was never initialized."""
    modules: list[Any] = [sys.modules[name] for name in _PATCHES if name in sys.modules]
    ranks = [module.rank() for module in modules if module.is_initialized()]
    return not ranks or 0 in ranks


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m horovod_compressors.run",
        description="Run a script that uses the stock hvd.DistributedOptimizer or "
        "hvd.DistributedGradientTape with compression.",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--compression", metavar="SPEC", help="such as 'residual|topk(ratio=0.01)'")
    source.add_argument(
        "--config",
        metavar="FILE",
        action="append",
        help="YAML file; may be given several times, they compose left to right",
    )
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="override of the configuration, such as seed=1; may be given several times",
    )
    parser.add_argument(
        "-m",
        dest="module",
        metavar="MODULE",
        nargs=argparse.REMAINDER,
        help="in place of a script, as with python -m: the module and its arguments",
    )
    parser.add_argument("script", nargs="?", help="the Python script")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="its arguments")
    options = parser.parse_args(argv)
    if not options.script and not options.module:
        parser.error("the following arguments are required: script, or -m MODULE")
    if options.compression and options.set:
        parser.error("--set goes with --config")
    return options


def _exists(module: str) -> bool:
    """Whether a module can be found; imports the packages above it."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError as error:
        if error.name and f"{module}.".startswith(f"{error.name}."):
            return False
        raise


def main(argv: Sequence[str] | None = None) -> int:
    """Run the script.

    Returns:
        The exit code: 0, or 2 for wrong arguments.

    Raises:
        SystemExit: of the script, if it exits by itself.
    """
    options = _parse(sys.argv[1:] if argv is None else argv)
    try:
        if options.compression:
            config = Config.from_spec(options.compression)
        else:
            config = load_config(options.config, options.set)
    except GradcompError as error:
        print(f"gradcomp: {error}", file=sys.stderr)
        return 2
    script = options.script or options.module[0]
    if options.script and not Path(script).is_file():
        print(f"gradcomp: there is no script '{script}'", file=sys.stderr)
        return 2
    if config.compress.two_level:  # for new process sets; the script calls hvd.init() later
        os.environ.setdefault("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
    replacing = _Replacing(config)
    sys.meta_path.insert(0, _AfterImport(list(_PATCHES), replacing.patch))
    sys.meta_path.insert(0, _AfterImport([_LAUNCHER], _warn_of_launches))
    sys.argv = [script, *(options.args if options.script else options.module[1:])]
    sys.path[0] = str(Path(script).resolve().parent) if options.script else os.getcwd()
    if not options.script and not _exists(script):
        print(
            f"gradcomp: there is no module '{script}' in {sys.path[0]} or on the path of Python "
            "(PYTHONPATH)",
            file=sys.stderr,
        )
        return 2
    end: SystemExit | None = None
    try:
        if options.script:
            runpy.run_path(script, run_name="__main__")
        else:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
    except SystemExit as exit_:  # many scripts end so
        end = exit_
    if replacing.count == 0 and _is_first_rank():
        print(
            f"gradcomp: {script} never called hvd.DistributedOptimizer or "
            "hvd.DistributedGradientTape, so nothing was compressed",
            file=sys.stderr,
        )
    if end is not None:
        raise end
    return 0


if __name__ == "__main__":
    sys.exit(main())
