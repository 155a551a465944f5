"""Measure how many faults the tests notice: change the code in seeded places, and run the tests of each place.

  .venv/bin/python scripts/mutants.py make            # a changed copy of the checkout, in build/mutants
  .venv/bin/python scripts/mutants.py record          # which tests run which place
  .venv/bin/python scripts/mutants.py run             # each mutant, until a test fails
  .venv/bin/python scripts/mutants.py report          # the share that was noticed, and the others

A mutant is one change of one place, such as `<` for `<=` or a statement left out. Those that were tried are
kept in build/mutants/results.jsonl, so that `run` goes on where it was interrupted. Each is tried by the tests
that run its place: first those of scripts/test quick, then those of scripts/test, then
the same with the numbers of examples of scripts/test full, at most two minutes of tests each.
Exit codes: 0 done, 2 wrong arguments or a step before it is missing.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mutation.runs import SCOPES, read_records, record, try_mutant
from mutation.sites import Mutant
from mutation.tree import ROOT, make_tree

FOLDER = ROOT / "build/mutants"
TREE = FOLDER / "tree"
RESULTS = FOLDER / "results.jsonl"

QUICK = ("tests/codecs", "tests/config", "tests/exchange", "tests/golden", "tests/runtime")
"""The tests of scripts/test quick, but for one job."""

WITHOUT = (
    "tests/rules",
    "tests/scripts/test_docs",
    "tests/scripts/test_wheel",
    "tests/scripts/test_source",
)
"""Tests of the source's text and of wheels, which cannot tell mutants from the text around them."""


def main(arguments: list[str] | None = None) -> int:
    """Run one of the steps."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps = parser.add_subparsers(dest="step", required=True)
    make = steps.add_parser("make", help="copy the checkout, change it and build its core")
    make.add_argument("--each", type=int, default=160, help="mutants of C++, and as many of Python")
    make.add_argument("--seed", type=int, default=1, help="chooses the places")
    recorded = steps.add_parser("record", help="run the tests with all mutants asleep")
    recorded.add_argument(
        "paths", nargs="*", help="tests (default: all); those of other runs are kept"
    )
    run = steps.add_parser("run", help="run each mutant's tests until one fails")
    run.add_argument("--scope", choices=SCOPES, default="full", help="the last scope that is tried")
    run.add_argument(
        "--part",
        default="0/1",
        help="K/N: each N-th mutant from the K-th, for processes side by side",
    )
    run.add_argument(
        "--files",
        default="",
        metavar="FOLDER",
        help="only mutants of files below it, such as csrc/",
    )
    report = steps.add_parser(
        "report", help="print the shares, and the mutants that no test noticed"
    )
    report.add_argument("--csv", type=Path, help="also write all mutants there")
    options = parser.parse_args(arguments)

    if options.step == "make":
        for old in (*FOLDER.glob("records/*"), *FOLDER.glob("results*.jsonl")):
            old.unlink()
        print(f"{len(make_tree(TREE, options.each, options.seed))} mutants in {TREE}")
        return 0
    if not (FOLDER / "mutants.json").exists():
        print("mutants: there are none yet: run `scripts/mutants.py make` first", file=sys.stderr)
        return 2
    mutants = [Mutant(**row) for row in json.loads((FOLDER / "mutants.json").read_text())]
    if options.step == "record":
        ignored = [f"--ignore-glob={path}*" for path in WITHOUT]
        record(TREE, FOLDER / "records", [*ignored, *(options.paths or ["tests"])])
    elif options.step == "run":
        first, _, every = options.part.partition("/")
        chosen = [mutant for mutant in mutants if mutant.file.startswith(options.files)]
        _run(chosen[int(first) :: int(every)], options.scope)
    else:
        _report(mutants, options.csv)
    return 0


def _run(mutants: list[Mutant], last: str) -> None:
    records = read_records(FOLDER / "records")
    for count, mutant in enumerate(mutants, start=1):
        results = _results().get(mutant.number, {})
        for scope in SCOPES[: SCOPES.index(last) + 1]:
            if scope in results or any(results.values()):
                continue
            tests = records.of(mutant, QUICK if scope == "quick" else ["tests/"])
            if scope == "default":
                tried = set(records.of(mutant, QUICK))
                tests = [name for name in tests if name not in tried]
            found = try_mutant(TREE, mutant, tests, records.seconds, scope)
            results[scope] = found
            with RESULTS.open("a") as file:
                file.write(json.dumps([mutant.number, scope, found, len(tests)]) + "\n")
        shown = next(
            (f"{scope}: {found}" for scope, found in results.items() if found), "not noticed"
        )
        print(f"{count}/{len(mutants)} {mutant.file}:{mutant.line} {shown}", flush=True)


def _results() -> dict[int, dict[str, str]]:
    results: dict[int, dict[str, str]] = {}
    if RESULTS.exists():
        for line in RESULTS.read_text().splitlines():
            number, scope, found, _ = json.loads(line)
            results.setdefault(number, {})[scope] = found
    return results


def _report(mutants: list[Mutant], path: Path | None) -> None:
    results = _results()
    records = read_records(FOLDER / "records")
    rows: list[dict[str, Any]] = []
    noticed: Counter[tuple[str, str]] = Counter()
    tried: Counter[str] = Counter()
    for mutant in mutants:
        if mutant.number not in results:
            continue
        found = next(((s, test) for s, test in results[mutant.number].items() if test), ("", ""))
        language = "C++" if mutant.file.startswith("csrc/") else "Python"
        tried[language] += 1
        for scope in SCOPES[SCOPES.index(found[0]) :] if found[0] else ():
            noticed[language, scope] += 1
        ran = bool(records.tests.get(mutant.number))
        rows.append({**asdict(mutant), "ran": ran, "scope": found[0], "test": found[1]})
    print(f"{'':10}{'mutants':>9}" + "".join(f"{scope:>10}" for scope in SCOPES))
    for language, count in tried.items():
        shares = "".join(f"{noticed[language, scope] / count:10.1%}" for scope in SCOPES)
        print(f"{language:10}{count:9}{shares}")
    print("\nNoticed by no test:")
    for row in rows:
        if not row["scope"]:
            place = f"{row['file']}:{row['line']}" + ("" if row["ran"] else " (no test runs it)")
            print(
                f"{row['number']:4} {place}\n       {row['before'][:100]}\n    -> {row['after'][:100] or 'left out'}"
            )
    if path is not None:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    sys.exit(main())
