"""Runs a training script with gradient compression, without editing it.

``horovodrun -np 2 python -m horovod_compressors.run --compression SPEC train.py --epochs 3``
replaces the compression of every ``hvd.DistributedOptimizer`` that the script makes.
"""

from __future__ import annotations

import argparse
import inspect
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import horovod.torch as hvd

from gradcomp import Config, load_config
from gradcomp.errors import GradcompError
from horovod_compressors.torch import Compression

__all__ = ["compressing", "main"]


def compressing(stock: Callable[..., Any], config: Config) -> Callable[..., Any]:
    """The stock ``DistributedOptimizer`` factory, with its ``compression`` argument replaced."""
    signature = inspect.signature(stock)

    def distributed_optimizer(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        names = call.arguments["named_parameters"]
        if names is None:  # the names that the stock optimizer would give
            groups = call.arguments["optimizer"].param_groups
            names = [
                (f"allreduce.noname.{i}.{j}", parameter)
                for i, group in enumerate(groups)
                for j, parameter in enumerate(group["params"])
            ]
        names = list(names)
        call.arguments["named_parameters"] = names
        replaced = call.arguments["compression"]
        call.arguments["compression"] = Compression(
            config, names, process_set=call.arguments["process_set"]
        )
        if hvd.rank() == 0:
            instead = "" if replaced is hvd.Compression.none else f" instead of {replaced}"
            print(
                f"gradcomp: hvd.DistributedOptimizer of {len(names)} parameters compresses with "
                f"{config.compress.default}{instead}; the compressor's state is not in the "
                "script's checkpoints",
                file=sys.stderr,
                flush=True,
            )
        distributed_optimizer.calls += 1  # type: ignore[attr-defined]
        return stock(*call.args, **call.kwargs)

    distributed_optimizer.calls = 0  # type: ignore[attr-defined]
    return distributed_optimizer


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m horovod_compressors.run",
        description="Run a script that uses the stock hvd.DistributedOptimizer with compression.",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--compression", metavar="SPEC", help="such as 'residual|topk(ratio=0.01)'")
    what.add_argument(
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
    parser.add_argument("script", help="the Python script")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="its arguments")
    options = parser.parse_args(argv)
    if options.compression and options.set:
        parser.error("--set goes with --config")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code unless the script exits by itself."""
    options = _parse(sys.argv[1:] if argv is None else argv)
    try:
        if options.compression:
            config = Config.from_spec(options.compression)
        else:
            config = load_config(options.config, options.set)
    except GradcompError as error:
        print(f"gradcomp: {error}", file=sys.stderr)
        return 2
    script = Path(options.script)
    if not script.is_file():
        print(f"gradcomp: there is no script '{script}'", file=sys.stderr)
        return 2
    if config.compress.two_level:  # needs new process sets, and the script calls hvd.init()
        os.environ.setdefault("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
    replacement = compressing(hvd.DistributedOptimizer, config)
    hvd.DistributedOptimizer = replacement
    sys.argv = [options.script, *options.args]
    sys.path[0] = str(script.resolve().parent)
    end: SystemExit | None = None
    try:
        runpy.run_path(options.script, run_name="__main__")
    except SystemExit as exit_:  # as many scripts end
        end = exit_
    first = not hvd.is_initialized() or hvd.rank() == 0
    if replacement.calls == 0 and first:  # type: ignore[attr-defined]
        print(
            f"gradcomp: {script} never called hvd.DistributedOptimizer, so nothing was compressed",
            file=sys.stderr,
        )
    if end is not None:
        raise end
    return 0


if __name__ == "__main__":
    sys.exit(main())
