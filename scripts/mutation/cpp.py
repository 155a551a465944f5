"""Mutants of C++: one change of a statement that is one line.

Both forms are compiled, and a test of the active mutant's number chooses between them, so that all mutants
need one build. `scripts.mutation.tree` leaves out what does not compile in this form, such as a
constant expression.
"""

from __future__ import annotations

import re
from random import Random
from typing import NamedTuple

from .sites import OPERATORS

__all__ = ["Change", "changes"]


class Change(NamedTuple):
    """A changed line, and the line that has both forms, with ``@`` for the mutant's number."""

    after: str
    both: str


_CHOICE = "GRADCOMP_MUTANT(@)"
_OPERATORS = {**OPERATORS, "&&": "||", "||": "&&"}
_OPERATOR = re.compile(r"(?<= )(?:<=|>=|==|!=|<<|>>|&&|\|\||[-+*/%&|^<>])(?= )")
_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.<])")
_BOOLEAN = re.compile(r"\b(?:true|false)\b")

# Head, expression and tail of a line.
_CONDITION = re.compile(
    r"(\s*(?:\} else if|if|while) \()(.+)(\)(?: \{| return.*;| continue;| break;))$"
)
_LOOP = re.compile(r"(\s*for \([^;]*; )([^;]+)(;.*)$")
_VALUE = re.compile(
    r"(\s*(?:return |(?:[\w:]+(?:<[\w:, ]+>)?[*&]? )+[*&]?[a-z]\w*_? = |[a-z*][\w.\[\]>-]* (?:[-+*/|&^]|<<|>>)?= ))"
    r"([^{}\"]+)(;)$"
)
_CALL = re.compile(
    r"(\s*)([a-z][\w.:>\[\]-]*\(.*\)|[a-z*][\w.\[\]>-]* (?:[-+*/|&^]|<<|>>)?= .+)(;)$"
)
_NEVER = re.compile(
    r"\b(?:constexpr|static|static_assert|using|auto[&*]|throw|delete|goto|case)\b|//"
)


def changes(line: str, previous: str, random: Random) -> list[Change]:
    """The changes of a line: at most one of its expression, and its removal if it is a call or an assignment.

    Args:
        line: a line of C++.
        previous: the last line before it that is not blank.
        random: chooses among the operators and numbers of the expression.
    """
    if _NEVER.search(line) or not previous.rstrip().endswith((";", "{", "}", ":", "*/")):
        return []
    found = []
    for pattern, condition in ((_CONDITION, True), (_LOOP, True), (_VALUE, False)):
        match = pattern.match(line)
        if match is None or not _balanced(match[2]) or (condition and ";" in match[2]):
            continue
        head, expression, tail = match.groups()
        places = _places(expression)
        if pattern is _CONDITION:
            places.append((0, len(expression), f"!({expression})"))
        if places:
            begin, end, text = random.choice(places)
            changed = expression[:begin] + text + expression[end:]
            mutated, original = (
                (f"bool({changed})", f"bool({expression})") if condition else (changed, expression)
            )
            found.append(
                Change(
                    f"{head}{changed}{tail}",
                    f"{head}({_CHOICE} ? ({mutated}) : ({original})){tail}",
                )
            )
        break
    match = _CALL.match(line)
    if match is not None and _balanced(match[2]):
        found.append(Change("", f"{match[1]}if (!{_CHOICE}) {{ {match[2]}; }}"))
    return found


def _places(expression: str) -> list[tuple[int, int, str]]:
    """Begin, end and new text of what can be changed in an expression."""
    return [
        *((m.start(), m.end(), _OPERATORS[m[0]]) for m in _OPERATOR.finditer(expression)),
        *((m.start(), m.end(), str(int(m[0]) + 1)) for m in _NUMBER.finditer(expression)),
        *(
            (m.start(), m.end(), "false" if m[0] == "true" else "true")
            for m in _BOOLEAN.finditer(expression)
        ),
    ]


def _balanced(text: str) -> bool:
    depth = 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if depth < 0:
            return False
    return depth == 0
