"""Refusal of regular expressions whose search may take exponential time.

A repeat whose body can match one text in several ways makes the search try every combination, as in
``(a+)+$`` or ``(a|ab|b)*$``. The check is static, so that every rank gives the same answer, and it is
conservative: it may refuse a harmless pattern, for which `REMEDY` applies. Sequences of repeats,
such as ``.*a.*b``, take polynomial time and are accepted.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import Any

# The public module sre_parse is the same one, deprecated.
from re import _constants as sre, _parser as parser  # type: ignore[attr-defined]  # isort: skip

__all__ = ["MAX_LENGTH", "REMEDY", "regex_refusal"]

MAX_LENGTH = 1000
"""Limit of a pattern's characters."""

REMEDY = "write the group without the inner repeat, or use a glob (name:)"

_OTHER = 256  # stands for all characters from 256 on
_ALL = frozenset(range(_OTHER + 1))
_REPEATS = {sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT}
_ONE_CHARACTER = {sre.LITERAL, sre.NOT_LITERAL, sre.IN}
_CLASSES = {
    sre.CATEGORY_DIGIT: r"\d",
    sre.CATEGORY_NOT_DIGIT: r"\D",
    sre.CATEGORY_SPACE: r"\s",
    sre.CATEGORY_NOT_SPACE: r"\S",
    sre.CATEGORY_WORD: r"\w",
    sre.CATEGORY_NOT_WORD: r"\W",
}

Item = tuple[Any, Any]  # opcode and argument, as the parser of `re` gives them


def regex_refusal(pattern: str) -> str | None:
    """Why ``pattern`` is no valid or no safe regular expression; None if it is."""
    if len(pattern) > MAX_LENGTH:
        return f"{len(pattern):,} characters; at most {MAX_LENGTH:,} are allowed"
    try:
        re.compile(pattern)
        tree = parser.parse(pattern)
    except (re.error, OverflowError) as error:
        return str(error)
    except RecursionError:
        return "nested too deeply"
    if _has_ambiguous_repeat(tree):
        return f"a repeat of a group that matches one text in several ways; {REMEDY}"
    return None


def _has_ambiguous_repeat(body: Iterable[Item]) -> bool:
    for opcode, argument in body:
        if opcode in _REPEATS and argument[1] > 1 and _is_ambiguous(_flat(argument[2])):
            return True
        if any(_has_ambiguous_repeat(inner) for inner in _bodies(opcode, argument)):
            return True
    return False


def _is_ambiguous(body: list[Item]) -> bool:
    """Whether a repeat of ``body`` may match one text in several ways."""
    if any(_has_overlapping_branch(item) for item in body):
        return True
    varying = [index for index, item in enumerate(body) if _varies(item)]
    if not varying:
        return False
    if any(_nests(body[index]) for index in varying):
        return True
    chars = [_chars([item]) for item in body]

    def separate(index: int) -> bool:
        return all(chars[index].isdisjoint(c) for i, c in enumerate(chars) if i != index)

    # A separator at either end fixes where each repetition ends; in between, one repeat has one
    # length, and several have one length each if they share no character with their neighbours.
    ends = [i for i in (0, len(body) - 1) if body[i][0] in _ONE_CHARACTER and separate(i)]
    return not ends or (len(varying) > 1 and not all(map(separate, varying)))


def _has_overlapping_branch(item: Item) -> bool:
    opcode, argument = item
    if opcode is sre.BRANCH:
        firsts = [_first(_flat(branch)) for branch in argument[1]]
        if any(not a.isdisjoint(b) for a, b in itertools.combinations(firsts, 2)):
            return True
    return any(
        _has_overlapping_branch(inner) for body in _bodies(opcode, argument) for inner in body
    )


def _varies(item: Item) -> bool:
    """Whether the item may match texts of several lengths that no first character tells apart."""
    opcode, argument = item
    if opcode in _REPEATS and argument[0] != argument[1]:
        return True
    if opcode in (sre.GROUPREF, sre.GROUPREF_EXISTS):
        return True
    if opcode is sre.BRANCH and not all(map(len, argument[1])):
        return True
    return any(_varies(inner) for body in _bodies(opcode, argument) for inner in body)


def _nests(item: Item) -> bool:
    """Whether an item that varies holds others; one in each alternative may be told apart."""
    opcode, argument = item
    limit = 1 if opcode is sre.BRANCH and all(map(len, argument[1])) else 0
    bodies = [_flat(body) for body in _bodies(opcode, argument)]
    return any(
        sum(map(_varies, body)) > limit or any(_nests(inner) for inner in body) for body in bodies
    )


def _flat(body: Iterable[Item]) -> list[Item]:
    """The items, groups replaced by their bodies."""
    items: list[Item] = []
    for opcode, argument in body:
        if opcode is sre.SUBPATTERN:
            items += _flat(argument[3])
        elif opcode is sre.ATOMIC_GROUP:
            items += _flat(argument)
        else:
            items.append((opcode, argument))
    return items


def _bodies(opcode: Any, argument: Any) -> list[Any]:
    """The bodies inside an item."""
    if opcode in _REPEATS:
        return [argument[2]]
    if opcode is sre.SUBPATTERN:
        return [argument[3]]
    if opcode is sre.BRANCH:
        return list(argument[1])
    if opcode is sre.ATOMIC_GROUP:
        return [argument]
    if opcode in (sre.ASSERT, sre.ASSERT_NOT):
        return [argument[1]]
    if opcode is sre.GROUPREF_EXISTS:
        return [body for body in argument[1:] if body is not None]
    return []


def _first(body: list[Item]) -> frozenset[int]:
    """Characters with which a match of ``body`` may begin; all where it may be empty."""
    for opcode, argument in body:
        if opcode in _ONE_CHARACTER:
            return _chars([(opcode, argument)])
        if opcode in _REPEATS and argument[0] > 0:
            return _first(_flat(argument[2]))
        if opcode is not sre.AT:
            return _ALL
    return frozenset()


def _chars(body: Iterable[Item]) -> frozenset[int]:
    """Characters that a match of ``body`` may hold, in either case."""
    found: frozenset[int] = frozenset()
    for opcode, argument in body:
        if opcode is sre.LITERAL:
            found |= _either_case(argument, argument)
        elif opcode is sre.RANGE:
            found |= _either_case(*argument)
        elif opcode is sre.CATEGORY:
            found |= _in_class(argument, re.UNICODE) | _in_class(argument, re.ASCII) | {_OTHER}
        elif opcode is sre.IN and argument[0][0] is not sre.NEGATE:
            found |= _chars(argument)
        elif opcode is sre.IN:
            found |= _ALL - _surely(argument[1:])
        elif opcode is sre.NOT_LITERAL:
            found |= _ALL - ({argument} - {_OTHER})
        elif opcode in (sre.ANY, sre.GROUPREF):
            found |= _ALL
        else:
            for inner in _bodies(opcode, argument):
                found |= _chars(inner)
    return found


def _surely(members: Iterable[Item]) -> frozenset[int]:
    """Characters below `_OTHER` that belong to a set under any flags."""
    found: frozenset[int] = frozenset()
    for opcode, argument in members:
        if opcode is sre.CATEGORY:
            found |= _in_class(argument, re.UNICODE) & _in_class(argument, re.ASCII)
        else:
            low, high = argument if opcode is sre.RANGE else (argument, argument)
            found |= frozenset(range(low, min(high, _OTHER - 1) + 1))
    return found


def _in_class(category: Any, flag: re.RegexFlag) -> frozenset[int]:
    return frozenset(c for c in range(_OTHER) if re.match(_CLASSES[category], chr(c), flag))


def _either_case(low: int, high: int) -> frozenset[int]:
    codes = range(low, min(high, _OTHER - 1) + 1)
    swapped = {ord(c) for code in codes for c in chr(code).swapcase()}
    found = {min(code, _OTHER) for code in (*codes, *swapped)}
    return frozenset(found | {_OTHER} if high >= _OTHER else found)
