"""Composition of YAML files and dotted overrides into one mapping.

Files compose left to right: mappings merge key by key, anything else (lists included)
is replaced by the file on the right. An override ``compress.seed=3`` acts as one more
file that holds only that key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from gradcomp.errors import ConfigError

__all__ = ["VERSION", "Composed", "KeyPath", "compose", "format_path", "merge"]

KeyPath = tuple[object, ...]
"""Keys (and list indexes, as int) from the top of a mapping down to a value."""


VERSION = 1
"""The only configuration version this release reads."""


class Composed(NamedTuple):
    """A merged mapping, and for each of its leaves the file or override it came from."""

    mapping: dict[Any, Any]
    sources: tuple[str, ...]
    origins: dict[KeyPath, str]

    def origin(self, path: KeyPath) -> str:
        """The source of the value at ``path``; all sources when no single one set it."""
        for end in range(len(path), 0, -1):
            found = {self.origins[key] for key in self.origins if key[:end] == path[:end]}
            if len(found) == 1:
                return found.pop()
            if found:
                break
        return ", ".join(self.sources) or "configuration"


def compose(paths: Sequence[str | Path], overrides: Sequence[str] = ()) -> Composed:
    """Read ``paths``, merge them left to right, then apply ``overrides`` in order.

    Raises ConfigError for a file that cannot be read, is not a YAML mapping, repeats a key
    or has another ``version``, for an override that is not ``dotted.key=value``, and where
    one source holds a mapping and another holds something else.
    """
    if isinstance(paths, str):
        raise ConfigError(f"paths: got the string {paths!r}; give a list of paths: [{paths!r}]")
    layers = [(str(path), _read_file(Path(path))) for path in paths]
    layers += [(f"override {text!r}", _read_override(text)) for text in overrides]
    mapping: dict[Any, Any] = {}
    origins: dict[KeyPath, str] = {}
    for source, layer in layers:
        # Each file on its own: a later file must not hide that an earlier one is of another
        # version and would be misread.
        if layer.get("version", VERSION) != VERSION:
            raise ConfigError(
                f"{source}: version: got {layer['version']!r}; this release reads version "
                f"{VERSION} only: set `version: {VERSION}`"
            )
        try:
            mapping = merge(mapping, layer)
            origins.update((path, source) for path, _ in _leaves(layer))
        except ConfigError as error:
            raise ConfigError(f"{source}: {error}") from None
        except RecursionError:
            raise ConfigError(
                f"{source}: nested too deeply, or an alias refers to itself; write the values out"
            ) from None
    return Composed(mapping, tuple(source for source, _ in layers), origins)


def merge(left: Mapping[Any, Any], right: Mapping[Any, Any], at: KeyPath = ()) -> dict[Any, Any]:
    """``left`` with ``right`` laid over it, as a new mapping; associative.

    Raises ConfigError where one side holds a mapping and the other does not.
    """
    merged = dict(left)
    for key, value in right.items():
        if key not in left:
            merged[key] = merge({}, value, (*at, key)) if isinstance(value, dict) else value
        elif isinstance(left[key], dict) and isinstance(value, dict):
            merged[key] = merge(left[key], value, (*at, key))
        elif isinstance(left[key], dict) or isinstance(value, dict):
            raise ConfigError(
                f"{format_path((*at, key))}: got {_kind(value)}, but an earlier source has "
                f"{_kind(left[key])}; mappings and other values do not merge: give "
                f"{_kind(left[key])}"
            )
        else:
            merged[key] = value
    return merged


def format_path(path: KeyPath) -> str:
    """A key path as users write it: ``compress.rules[0].use``."""
    text = ""
    for part in path:
        if isinstance(part, int) and not isinstance(part, bool):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else str(part)
    return text


def _leaves(mapping: Mapping[Any, Any], at: KeyPath = ()) -> Iterator[tuple[KeyPath, object]]:
    for key, value in mapping.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*at, key))
        else:
            yield (*at, key), value


class _UniqueKeyLoader(yaml.SafeLoader):
    """SafeLoader that refuses a repeated key instead of keeping the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value!r} is repeated", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _read_file(path: Path) -> dict[Any, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); give the path of a YAML file"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8"
        ) from None
    value = _parse(text, str(path))
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(
            f"{path}: got {_kind(value)} at the top; expected a mapping such as "
            "{version: 1, compress: {default: fp16}}"
        )
    return value


def _read_override(text: str) -> dict[Any, Any]:
    key, equals, value = text.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise ConfigError(
            f"override {text!r}: expected dotted.key=value, such as compress.default=fp16"
        )
    nested: Any = _parse(value, f"override {text!r}")
    for part in reversed(parts):
        nested = {part: nested}
    assert isinstance(nested, dict)
    return nested


def _parse(text: str, source: str) -> object:
    try:
        return yaml.load(text, _UniqueKeyLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source
        reason = "; ".join(part for part in (error.context, error.problem) if part)
        snippet = mark.get_snippet() if mark else None
        hint = 'quote a value that starts with "*" or "&"' if "alias" in reason else ""
        raise ConfigError("\n".join(filter(None, [f"{where}: {reason}", snippet, hint]))) from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not YAML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{source}: nested too deeply; write the values out") from None


def _kind(value: object) -> str:
    if isinstance(value, dict):
        return "a mapping"
    return "a list" if isinstance(value, list) else f"the value {value!r}"
