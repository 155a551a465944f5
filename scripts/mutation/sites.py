"""What the mutants of both languages have in common."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["OPERATORS", "Mutant"]

OPERATORS = {
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "==": "!=",
    "!=": "==",
    "+": "-",
    "-": "+",
    "*": "+",
    "/": "*",
    "%": "+",
    "<<": ">>",
    ">>": "<<",
    "&": "|",
    "|": "&",
    "^": "|",
}
"""What each operator becomes."""


@dataclass(frozen=True)
class Mutant:
    """One change of one place."""

    number: int
    """Active where the environment variable GRADCOMP_MUTANT has this number."""
    file: str
    line: int
    """From 1, in the file of the checkout."""
    before: str
    after: str
