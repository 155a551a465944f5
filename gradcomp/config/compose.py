"""Composition of YAML files and dotted overrides into one mapping.

Files compose left to right: mappings merge key by key, anything else (lists included)
is replaced by the file on the right. An override ``compress.seed=3`` acts as one more
file that holds only that key.
"""

from __future__ import annotations

import reprlib
import stat
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from gradcomp.errors import ConfigError

__all__ = ["VERSION", "Composed", "KeyPath", "compose", "format_path", "merge"]

KeyPath = tuple[object, ...]
"""Keys (and list indexes, as int) from the top of a mapping down to a value."""


VERSION = 1
"""The only configuration version this release reads."""

# Any text within these limits is read or refused in less than a second.
MAX_BYTES = 2**18
"""Size limit of a file."""

MAX_NODES = 20_000
"""Limit of the values in one file or override; an alias counts as the values it stands for."""

MAX_DEPTH = 64
"""Limit of nested mappings and lists, and of the parts of an override's key."""

MAX_CHARACTERS = 10_000
"""Size limit of a scalar."""

MAX_INT_BITS = 4096
"""Size limit of an integer: the largest that are valid have 64 bits."""


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
                f"{source}: version: got {reprlib.repr(layer['version'])}; this release reads version "
                f"{VERSION} only: set `version: {VERSION}`"
            )
        if layer.get("compress", ...) is None:  # the section without keys
            layer = {**layer, "compress": {}}
        try:
            mapping = merge(mapping, layer)
            origins.update((path, source) for path, _ in _leaves(layer))
        except ConfigError as error:
            raise ConfigError(f"{source}: {error}") from None
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
            key = str(part)
            if len(key) > _LONGEST_KEY or not key.isprintable():
                key = reprlib.repr(key)
            text += f".{key}" if text else key
    return text


_LONGEST_KEY = 60


def _leaves(mapping: Mapping[Any, Any], at: KeyPath = ()) -> Iterator[tuple[KeyPath, object]]:
    for key, value in mapping.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*at, key))
        else:
            yield (*at, key), value


_WITHOUT_VALUE = ("tag:yaml.org,2002:merge", "tag:yaml.org,2002:value")
"""Tags of the keys << and =, which SafeLoader replaces before it makes values."""


class _Refusal(yaml.MarkedYAMLError):
    """A value that YAML allows and configurations do not; line and column say where it is."""

    def __init__(self, mark: yaml.Mark, reason: str) -> None:
        super().__init__(problem=reason, problem_mark=mark)


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses repeated keys, malformed scalars, recursion and too large files."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._nodes = 0
        self._nodes_in: dict[yaml.Node, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        is_alias = self.check_event(yaml.AliasEvent)
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        before = self._nodes
        # Nested calls have made `_depth` larger; refused before the calls are too many.
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _Refusal(mark, f"nested more than {MAX_DEPTH} deep; write fewer levels")
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is None:
            return None
        if is_alias and node not in self._nodes_in:
            raise _Refusal(
                mark, "the *reference is inside the value that it stands for; write it out"
            )
        self._nodes += self._nodes_in[node] if is_alias else 1
        if self._nodes > MAX_NODES:
            raise _Refusal(
                mark,
                f"more than {MAX_NODES:,} values, with every *reference written out; "
                "write fewer values",
            )
        if not is_alias:
            self._nodes_in[node] = self._nodes - before
        return node

    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        node: yaml.ScalarNode = super().compose_scalar_node(anchor)
        if len(node.value) > MAX_CHARACTERS:
            raise _Refusal(
                node.start_mark,
                f"a value of {len(node.value):,} characters; at most {MAX_CHARACTERS:,} are allowed",
            )
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # Here, and not where values are made: merge keys then have changed the mapping.
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                name = key.tag if key.tag in _WITHOUT_VALUE else self.construct_object(key)
                if not isinstance(name, Hashable):  # SafeLoader refuses it
                    continue
                if name in seen:
                    raise _Refusal(
                        key.start_mark,
                        f"the key {reprlib.repr(key.value)} is repeated; remove one of the two",
                    )
                seen.add(name)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
        except (ValueError, TypeError, AttributeError, ArithmeticError, LookupError) as error:
            # SafeLoader hands on any error of int(), datetime() and its own look-ups.
            kind = node.tag.rpartition(":")[2]
            raise _Refusal(
                node.start_mark,
                f"{reprlib.repr(node.value)} is not a valid {kind} ({error}); quote a text",
            ) from None
        if isinstance(value, int) and value.bit_length() > MAX_INT_BITS:
            raise _Refusal(
                node.start_mark, f"an integer of more than {MAX_INT_BITS} bits; write a smaller one"
            )
        return value


def _read_bytes(path: Path) -> bytes:
    remedy = "give the path of a YAML file"
    if "\0" in str(path):
        raise ConfigError(f"{str(path)!r}: no path holds a NUL character; {remedy}")
    try:
        mode = path.stat().st_mode
        # Opening a FIFO may wait forever, and a device may have no end.
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise ConfigError(f"{path}: is a device, FIFO or socket; {remedy}")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); {remedy}") from None
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path}: has more than {MAX_BYTES:,} bytes, the limit; {remedy}")
    return data


def _read_file(path: Path) -> dict[Any, Any]:
    try:
        text = _read_bytes(path).decode("utf-8")
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
    if len(parts) > MAX_DEPTH:
        raise ConfigError(
            f"override {reprlib.repr(text)}: a key of {len(parts):,} parts; at most {MAX_DEPTH} are allowed"
        )
    nested: Any = _parse(value, f"override {text!r}")
    for part in reversed(parts):
        nested = {part: nested}
    assert isinstance(nested, dict)
    return nested


def _parse(text: str, source: str) -> object:
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source
        reason = "; ".join(part for part in (error.context, error.problem) if part)
        # The text around a refused value does not explain it.
        snippet = mark.get_snippet() if mark and not isinstance(error, _Refusal) else None
        hint = 'quote a value that starts with "*" or "&"' if "alias" in reason else ""
        lines = [f"{where}: {reason[:_LONGEST]}", snippet, hint]
        raise ConfigError("\n".join(filter(None, lines))) from None
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{source}: not YAML: {reason}; save the file as text") from None


_LONGEST = 200  # characters of an error of YAML, which may quote a part of the file


def _kind(value: object) -> str:
    if isinstance(value, dict):
        return "a mapping"
    return "a list" if isinstance(value, list) else f"the value {reprlib.repr(value)}"
