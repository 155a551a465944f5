"""Regular expressions that are refused, and others near them that are not."""

from __future__ import annotations

import pytest

from gradcomp.config.regex_check import MAX_LENGTH, REMEDY, regex_refusal


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+$",
        "(a*)*$",
        "(?:a+?)+$",
        "((a+))+$",
        "(a{1,50}){1,50}$",
        "(?:a+){20}$",
        "(?:a|ab|b)*$",
        "(?:a+|ab)*$",
        "(aa?)+$",
        r"(\w+\.?)+$",
        r"(.*\.)+$",
        r"(a*\.a*)+$",
        "(?:a*a*x)+$",
        "(?:(?:a*)?x)+$",
        "(?:(?:a+a+|b)x)+$",
        "(?:(?:a*|)x)+$",
        "(a+(?=b|a))+$",
        "([^b]+a)+$",
        "(\u03b1+[\u03b1-\u03c9])+$",
        "(?:x(?:(?:a+)+)y)?$",
        "(?=(a+)+$)b",
    ],
)
def test_ambiguous_repeats_are_refused(pattern: str) -> None:
    refusal = regex_refusal(pattern)
    assert refusal is not None
    assert REMEDY in refusal


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        r"^fc\.",
        r".*layer.*weight$",
        r"^(layer\d+\.)+weight$",
        r"^(?:\w+_\.)?bias",
        r"(?:[a-z]+\.)*bias$",
        r"(?:\.[^.]+)+$",
        r"(?:[a-z]+-\d+\.)+weight",
        r"(?:weight|bias)+",
        r"(?:\w|\d)*$",  # one set of characters to `re`
        r"(?:(?:conv\d+|bn)\.)+weight",
        r"(conv|bn)?\d+(weight|bias)$",
        r"(?i)^ENCODER\.(\d+|norm)\.",
        r"(a)(?:\1)?b",
        r"(?<!\.)norm(?=\.)",
    ],
)
def test_others_are_accepted(pattern: str) -> None:
    assert regex_refusal(pattern) is None


@pytest.mark.parametrize(
    ("pattern", "part"),
    [
        ("(", "missing )"),
        ("a{99999999999999999999}", "the repetition number is too large"),
        ("(" * 499 + ")" * 499, "nested too deeply"),
        ("a" * (MAX_LENGTH + 1), "1,001 characters; at most 1,000 are allowed"),
    ],
)
def test_invalid_patterns_are_reported(pattern: str, part: str) -> None:
    assert part in str(regex_refusal(pattern))
