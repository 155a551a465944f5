"""scripts/mutants.py: places that it changes in C++ and in Python, and the tests that it takes for each."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from random import Random

import pytest

from mutation.cpp import changes
from mutation.python import ModuleChanges
from mutation.runs import Records, read_records
from mutation.sites import Mutant

MODULE = '''"""A module."""

from __future__ import annotations

LIMIT = 3


def clipped(x: int, most: int = 9) -> int:
    """A function."""
    if x > most:
        raise ValueError(f"{x + 1} is too large")
    values = []
    values.append(x)
    return values[0] * 2
'''


def _lines(line: str, previous: str = "{") -> set[tuple[str, str]]:
    return {tuple(change) for seed in range(40) for change in changes(line, previous, Random(seed))}


def test_conditions_are_changed_and_negated():
    assert _lines("  if (x < n) {") == {
        ("  if (x <= n) {", "  if ((GRADCOMP_MUTANT(@) ? (bool(x <= n)) : (bool(x < n)))) {"),
        ("  if (!(x < n)) {", "  if ((GRADCOMP_MUTANT(@) ? (bool(!(x < n))) : (bool(x < n)))) {"),
    }


def test_values_are_changed_and_statements_left_out():
    assert _lines("  total += a * 2;") == {
        ("  total += a + 2;", "  total += (GRADCOMP_MUTANT(@) ? (a + 2) : (a * 2));"),
        ("  total += a * 3;", "  total += (GRADCOMP_MUTANT(@) ? (a * 3) : (a * 2));"),
        ("", "  if (!GRADCOMP_MUTANT(@)) { total += a * 2; }"),
    }


@pytest.mark.parametrize(
    ("line", "previous"),
    [
        ("  constexpr int kTile = 16;", "{"),
        ("  std::vector<std::uint32_t> sample;", "{"),
        ("      + 4.0 * hits;", "  const double x = 1.0"),
        ("  void clear();", "{"),
        ("  // total += 1;", "{"),
    ],
)
def test_what_is_no_whole_statement_is_left(line, previous):
    assert _lines(line, previous) == set()


def _run(number: int, monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleChanges, dict]:
    module = ModuleChanges(MODULE)
    active = types.ModuleType("gradcomp._mutants")
    active.mutant = lambda each: each == number
    monkeypatch.setitem(sys.modules, "gradcomp._mutants", active)
    names: dict = {}
    exec(module.changed({index: index for index in range(len(module.places))}), names)
    return module, names


def test_places_of_a_module(monkeypatch):
    module, names = _run(-1, monkeypatch)
    found = {(place.before, place.after) for place in module.places}
    assert found == {
        ("x > most", "x >= most"),
        ("values.append(x)", "pass"),
        ("values[0] * 2", "values[0] + 2"),
        ("0", "1"),
        ("2", "3"),
    }
    assert names["clipped"](9) == 18  # as without the changes


def test_the_active_change_of_a_module_alone_holds(monkeypatch):
    module, _ = _run(-1, monkeypatch)
    results = {}
    for index, place in enumerate(module.places):
        _, names = _run(index, monkeypatch)
        try:
            results[place.before] = names["clipped"](9)
        except (ValueError, IndexError) as error:
            results[place.before] = type(error)
    assert results == {
        "x > most": ValueError,
        "values.append(x)": IndexError,
        "values[0] * 2": 11,
        "0": IndexError,
        "2": 27,
    }


def test_the_shortest_test_of_each_function_comes_first(tmp_path: Path):
    (tmp_path / "1-tests").write_text(
        '["tests/a.py::f[1]", 1.0, "passed"]\n["tests/a.py::f[2]", 2.0, "passed"]\n'
        '["tests/a.py::g", 3.0, "passed"]\n["tests/a.py::h", 0.1, "failed"]\n["tests/b.py::i", 4.0, "passed"]\n'
    )
    (tmp_path / "1-core").write_text("7\ttests/a.py::f[2] (call)\n7\ttests/b.py::i (call)\n8\t\n")
    (tmp_path / "1-python").write_text("7\ttests/a.py::g (setup)\n")
    records = read_records(tmp_path)
    mutant = Mutant(7, "csrc/x.cpp", 1, "a < b", "a <= b")
    # A fixture ran it, so that all tests of its file may see it; one failed without a mutant.
    assert records.of(mutant, ["tests/"]) == [
        *("tests/a.py::f[1]", "tests/a.py::g", "tests/b.py::i", "tests/a.py::f[2]")
    ]
    assert records.of(mutant, ["tests/b"]) == ["tests/b.py::i"]
    assert Records().of(mutant, ["tests/"]) == []
