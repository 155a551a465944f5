"""Train a small task under Horovod, BytePS or DDP, with or without gradient compression, or by
gossip.

  horovodrun -np 2 .venv/bin/python scripts/train.py \\
      --config configs/digits/cnn.yaml --config configs/compress/residual-topk.yaml

  python -m byteps_compressors.launch --workers 2 -- \\
      python scripts/train.py --engine byteps --config configs/digits/cnn.yaml

  torchrun --nproc_per_node=2 scripts/train.py --engine torch --config configs/digits/cnn.yaml

  torchrun --nproc_per_node=4 scripts/train.py --engine torch --config configs/digits/cnn.yaml \\
      --algorithm sgp --topology npdde

Without a launcher it trains in one process. docs/training.md describes the configuration.
Exit codes: 0 done, or stopped by SIGTERM after a checkpoint; 1 training failed; 2 wrong
arguments or configuration.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gradcomp.config.sources import files_and_overrides
from gradcomp.errors import GradcompError


def main() -> int:
    """Parse the command line and run; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--config",
        action="append",
        required=True,
        metavar="FILE",
        help="YAML file; may be repeated, later files win; or a spec, as --compression has it",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set one key, such as train.epochs=3; may be repeated, wins over files",
    )
    parser.add_argument(
        "--compression",
        metavar="SPEC",
        help="short for --set compress.default=SPEC, such as 'residual|topk(ratio=0.01)'",
    )
    parser.add_argument(
        "--algorithm",
        metavar="NAME",
        help="short for --set gossip.algorithm=NAME, such as sgp: gossip (--engine torch)",
    )
    parser.add_argument(
        "--topology",
        metavar="NAME",
        help="short for --set gossip.topology=NAME, such as npdde",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="where results go, shared by all hosts (default: runs/TASK-DATE-TIME)",
    )
    parser.add_argument(
        "--engine",
        choices=["horovod", "byteps", "torch"],
        default="horovod",
        help="what averages the gradients, or lets ranks gossip (default: horovod)",
    )
    parser.add_argument(
        "--framework",
        choices=["torch", "tensorflow"],
        default="torch",
        help="what computes them (default: torch); tensorflow goes with horovod only",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue from the newest checkpoint in --output",
    )
    arguments = parser.parse_args()
    if arguments.resume and arguments.output is None:
        parser.error("--resume needs --output, the folder of the run to continue")
    if arguments.framework == "tensorflow" and arguments.engine != "horovod":
        parser.error(
            f"--framework tensorflow trains with --engine horovod, not {arguments.engine}: "
            "leave one of the two out"
        )
    try:
        configs, overrides = files_and_overrides(arguments.config, arguments.set)
    except GradcompError as error:
        parser.error(f"--config: {error}")
    if arguments.compression is not None:
        overrides.append(f"compress.default={arguments.compression}")
    for key in ("algorithm", "topology"):
        if getattr(arguments, key) is not None:
            overrides.append(f"gossip.{key}={getattr(arguments, key)}")

    # Imports frameworks and the engine, which takes seconds: not for --help or a mistyped flag.
    from training.job import Arguments, run

    return run(
        Arguments(
            configs=[Path(config) for config in configs],
            overrides=overrides,
            output=arguments.output,
            resume=arguments.resume,
            engine=arguments.engine,
            framework=arguments.framework,
        )
    )


if __name__ == "__main__":
    sys.exit(main())
