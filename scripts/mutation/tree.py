"""A copy of the checkout in which all mutants sleep until GRADCOMP_MUTANT wakes one."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from random import Random

from rules.structure import PACKAGES, ROOT

from . import cpp
from .python import ModuleChanges
from .sites import Mutant

__all__ = ["ROOT", "make_tree"]

_WITHOUT = re.compile(r"csrc/(?:include/|kernels/neon)|gradcomp_torch/gpu/kernels/|.*/probes\.py")
"""Files without mutants: the public header, what this processor does not run, and kernels for GPUs, which are
not run as Python; tests/gpu/test_mutants.py changes them."""

_HEADER = """#pragma once
extern "C" {
extern int gradcomp_mutant;
extern unsigned char gradcomp_unseen[];
void gradcomp_see(int number);
}
static inline bool gradcomp_is_mutant(int number) {
  if (__builtin_expect(gradcomp_unseen[number], 0)) gradcomp_see(number);
  return __builtin_expect(number == gradcomp_mutant, 0);
}
#define GRADCOMP_MUTANT(number) ::gradcomp_is_mutant(number)
"""

# A place that runs is written down with the test that runs it, once per test and process.
_SOURCE = """#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <unistd.h>
extern "C" {
static int from_environment() {
  const char* number = std::getenv("GRADCOMP_MUTANT");
  return number == nullptr ? -1 : std::atoi(number);
}
__attribute__((visibility("default"))) int gradcomp_mutant = from_environment();
__attribute__((visibility("default"))) unsigned char gradcomp_unseen[COUNT];
__attribute__((visibility("default"))) void gradcomp_forget() {
  if (std::getenv("GRADCOMP_MUTANT_LOG") != nullptr) std::memset(gradcomp_unseen, 1, COUNT);
}
static const bool forgot = (gradcomp_forget(), true);
void gradcomp_see(int number) {
  (void)forgot;
  gradcomp_unseen[number] = 0;
  const char* folder = std::getenv("GRADCOMP_MUTANT_LOG");
  const char* test = std::getenv("PYTEST_CURRENT_TEST");
  if (folder == nullptr) return;
  const std::string path = std::string(folder) + "/" + std::to_string(getpid()) + "-core";
  if (std::FILE* file = std::fopen(path.c_str(), "a")) {
    std::fprintf(file, "%d\\t%s\\n", number, test == nullptr ? "" : test);
    std::fclose(file);
  }
}
}
"""

_MODULE = '''"""Tells which mutant is active, and writes down which test runs which place."""
import os

_active = int(os.environ.get("GRADCOMP_MUTANT", "-1"))
_folder = os.environ.get("GRADCOMP_MUTANT_LOG")
_seen = set()


def mutant(number):
    if _folder and number not in _seen:
        _seen.add(number)
        with open(f"{_folder}/{os.getpid()}-python", "a") as file:
            file.write(f"{number}\\t{os.environ.get('PYTEST_CURRENT_TEST', '')}\\n")
    return number == _active


def forget():
    _seen.clear()
'''


def make_tree(folder: Path, each: int, seed: int) -> list[Mutant]:
    """Copy the checkout, change it, and build its core.

    Args:
        folder: the copy; what is there is replaced.
        each: mutants of C++, and as many of Python.
        seed: chooses them.
    """
    shutil.rmtree(folder, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    files = [name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    random = Random(seed)
    mutants = [*_change_python(folder, files, each, random)]
    mutants += _change_cpp(folder, files, each, random, first=len(mutants))
    (folder.parent / "mutants.json").write_text(json.dumps([asdict(m) for m in mutants], indent=1))
    _build(folder)
    return mutants


def _change_python(folder: Path, files: list[str], count: int, random: Random) -> list[Mutant]:
    modules = {
        name: ModuleChanges((folder / name).read_text())
        for name in sorted(files)
        if name.startswith(tuple(f"{package}/" for package in PACKAGES))
        and name.endswith(".py")
        and not _WITHOUT.match(name)
    }
    places = [
        (name, index) for name, module in modules.items() for index in range(len(module.places))
    ]
    mutants = []
    chosen: dict[str, dict[int, int]] = defaultdict(dict)
    for number, (name, index) in enumerate(sorted(random.sample(places, count))):
        place = modules[name].places[index]
        mutants.append(Mutant(number, name, place.line, place.before, place.after))
        chosen[name][index] = number
    for name, numbers in chosen.items():
        (folder / name).write_text(modules[name].changed(numbers))
    (folder / "gradcomp/_mutants.py").write_text(_MODULE)
    return mutants


def _change_cpp(
    folder: Path, files: list[str], count: int, random: Random, first: int
) -> list[Mutant]:
    places: list[tuple[str, int, cpp.Change]] = []
    texts = {
        name: (folder / name).read_text().splitlines()
        for name in sorted(files)
        if name.startswith("csrc/") and name.endswith((".cpp", ".hpp")) and not _WITHOUT.match(name)
    }
    for name, lines in texts.items():
        previous = ""
        for number, line in enumerate(lines):
            places += [(name, number, change) for change in cpp.changes(line, previous, random)]
            previous = line if line.strip() else previous
    random.shuffle(places)
    # At most one for each line.
    places = list(
        {(name, number): (name, number, change) for name, number, change in places}.values()
    )
    (folder / "csrc/mutants.hpp").write_text(_HEADER)
    chosen: list[tuple[str, int, cpp.Change]] = []
    while len(chosen) < count:
        chosen += [places.pop() for _ in range(count - len(chosen))]
        chosen.sort(key=lambda place: place[:2])
        changed = {name: [*lines] for name, lines in texts.items()}
        for index, (name, number, change) in enumerate(chosen):
            changed[name][number] = change.both.replace("@", str(first + index))
        for name, lines in changed.items():
            text = "\n".join(lines) + "\n"
            if (folder / name).read_text() != text:
                (folder / name).write_text(text)
        refused = _refused(folder)
        print(f"{len(chosen)} places in C++, {len(refused)} lines with errors", flush=True)
        chosen = [place for place in chosen if place[:2] not in refused]
    source = _SOURCE.replace("COUNT", str(first + count))
    (folder / "csrc/mutants.cpp").write_text(source)
    return [
        Mutant(first + index, name, number + 1, texts[name][number].strip(), change.after.strip())
        for index, (name, number, change) in enumerate(chosen)
    ]


def _compile_flags(folder: Path) -> list[str]:
    include = subprocess.run(
        [sys.executable, "-m", "pybind11", "--includes"], check=True, capture_output=True, text=True
    )
    return [
        "-std=c++17",
        "-w",
        "-include",
        str(folder / "csrc/mutants.hpp"),
        "-Icsrc",
        "-Icsrc/include",
        *include.stdout.split(),
    ]


def _refused(folder: Path) -> set[tuple[str, int]]:
    """Files and lines (from 0) that do not compile."""
    flags = _compile_flags(folder)

    def check(source: Path) -> str:
        command = [
            "g++",
            "-fsyntax-only",
            "-fmax-errors=100",
            *flags,
            str(source.relative_to(folder)),
        ]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True).stderr

    sources = [source for source in folder.glob("csrc/**/*.cpp") if source.name != "mutants.cpp"]
    refused = set()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for errors in pool.map(check, sources):
            refused |= {
                (name, int(line) - 1)
                for name, line in re.findall(
                    r"(csrc/[\w/.]+):(\d+)(?::\d+)?: (?:fatal )?error", errors
                )
            }
            # An error within a macro or a constant expression names the place below it.
            refused |= {
                (name, int(line) - 1)
                for name, line in re.findall(
                    r"(csrc/[\w/.]+):(\d+)(?::\d+)?:.*GRADCOMP_MUTANT", errors
                )
            }
    return refused


def _build(folder: Path) -> None:
    """Build the extension in place, and tests/cpp in build/cpp."""
    flags = f"-w -include {folder / 'csrc/mutants.hpp'}"
    environment = {**os.environ, "CC": "ccache gcc", "CXX": f"ccache g++ {flags}"}
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(command, cwd=folder, env=environment, check=True)
    configure = ["cmake", "-S", ".", "-B", "build/cpp", "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"]
    subprocess.run([*configure, f"-DCMAKE_CXX_FLAGS={flags}"], cwd=folder, check=True)
    build = ["cmake", "--build", "build/cpp", "--target", "cpp_tests", "--parallel"]
    subprocess.run([*build, str(os.cpu_count())], cwd=folder, check=True)
