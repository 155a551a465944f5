"""Rules of a configuration that take no tensor, and what they were probably meant for."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping

from gradcomp.config.match import Match
from gradcomp.config.schema import Config

__all__ = ["idle_rules", "unreachable_rules"]

_NEAR = 3
"""Most names that a text proposes."""


def unreachable_rules(config: Config) -> list[str]:
    """Texts on rules that come after a rule for every tensor."""
    rules = config.compress.rules
    for index, rule in enumerate(rules):
        later = range(index + 1, len(rules))
        if rule.match == Match() and later:
            which = _label(later[0]) if len(later) == 1 else f"{_label(later[0])} to [{later[-1]}]"
            return [f"{which} can take no tensor: {_label(index)} before takes all (match: {{}})"]
    return []


def idle_rules(config: Config, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Texts on rules that take none of a model's tensors.

    Args:
        config: the configuration.
        shapes: of all tensors of the model, by name.
    """
    taken = {config.resolve(name, shape).rule for name, shape in shapes.items()}
    texts = unreachable_rules(config)
    rules = config.compress.rules
    last = next((i for i, rule in enumerate(rules) if rule.match == Match()), len(rules))
    for index, rule in enumerate(rules[:last]):
        if _label(index) in taken:
            continue
        condition = json.dumps(rule.match.model_dump(exclude_none=True))
        if any(rule.match.matches(name, shape) for name, shape in shapes.items()):
            texts.append(
                f"{_label(index)} ({condition}) takes no tensor: rules before it take all that it matches"
            )
        else:
            texts.append(
                f"{_label(index)} ({condition}) matches none of the {len(shapes)} tensors"
                f"{_proposal(rule.match, shapes)}"
            )
    return texts


def _label(index: int) -> str:
    return f"compress.rules[{index}]"


def _proposal(match: Match, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """What a rule with another name would match; "" if nothing comes near."""
    if match.name is None:
        return ""
    for name in _variants(match.name):
        other = match.model_copy(update={"name": name})
        found = [tensor for tensor, shape in shapes.items() if other.matches(tensor, shape)]
        if found:
            return f'; name: "{name}" would match {_listed(found)}'
    without = match.model_copy(update={"name": None})
    named = [tensor for tensor in shapes if Match(name=match.name).matches(tensor, ())]
    if named and without != Match():
        return f"; its name matches {_listed(named)}, its other conditions do not"
    near = difflib.get_close_matches(match.name.strip("*"), shapes, _NEAR, 0.5)
    return f"; names that come near: {_listed(near)}" if near else ""


def _variants(name: str) -> Iterator[str]:
    """Globs for the names that other wrappers and frameworks give, from the nearest on."""
    for prefix in ("module.", "_orig_mod.", "model."):
        if name.startswith(prefix):
            yield name.removeprefix(prefix)
        else:
            yield prefix + name
    yield f"{name}.*"
    yield f"*.{name}"
    yield f"*{name.strip('*')}*"


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - _NEAR} more" if len(names) > _NEAR else ""
    return ", ".join(names[:_NEAR]) + more
