"""Run a command with each rank on a host of its own, behind links of a given rate.

  python benchmarks/netlab --ranks 4 --rate 100mbit -- python train.py

The hosts are network namespaces of this machine (see lab.py), so this needs root, on Linux. They
are removed at the end. Exit codes: 0 done; 1 the job failed; 2 wrong arguments, or no lab here.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from netlab import ENGINES, JobError, Lab, LabError, hosts_of, run


def main() -> int:
    """Run the job; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python benchmarks/netlab",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--engine", choices=ENGINES, default="horovod", help="default: %(default)s")
    parser.add_argument("--ranks", type=int, default=2, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--rate", metavar="RATE", help="such as 100mbit or 1gbit; default: not limited"
    )
    parser.add_argument(
        "--logs", type=Path, default=Path("netlab-logs"), help="default: %(default)s"
    )
    parser.add_argument("--timeout", type=float, default=3600, metavar="SECONDS")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="after --, what each rank runs")
    arguments = parser.parse_args()
    command = arguments.command[arguments.command[:1] == ["--"] :]
    if not command:
        parser.error("what should the ranks run? For example: -- python train.py")
    try:
        with Lab(hosts_of(arguments.engine, arguments.ranks), arguments.rate) as lab:
            print(f"links carry {lab.measure() / 1e6:.1f} Mbit/s", flush=True)
            run(lab, arguments.engine, arguments.ranks, command, arguments.logs, arguments.timeout)
    except LabError as error:
        print(f"netlab: {error}", file=sys.stderr)
        return 2
    except JobError as error:
        print(f"netlab: {error}", file=sys.stderr)
        return 1
    first = {"byteps": "worker-0", "mpi": "mpirun"}.get(arguments.engine, "rank-0")
    print((arguments.logs / f"{first}.log").read_text(encoding="utf-8", errors="replace"), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
