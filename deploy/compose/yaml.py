"""Writes the one kind of YAML that the generated files need: block style, every string in double quotes. Pure.

What holds: what is written reads back as what was given (YAML 1.2, of which JSON strings are a part). Two keys are not
data: one that begins with "# " is a comment before what follows it, and "<<" names the anchors whose keys are merged
in. A top-level key that begins with "x-" is given an anchor of the rest of its name.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

Value: TypeAlias = "str | int | float | bool | Sequence[Value] | Mapping[str, Value] | None"
Document: TypeAlias = Mapping[str, Value]

COMMENT: Final = "# "
MERGE: Final = "<<"
EXTENSION: Final = "x-"
_INDENT: Final = "  "
_WIDTH_CHARS: Final = 118


def write(document: Document) -> str:
    """The text of a document."""
    return "\n".join(_top(document)) + "\n"


def plain(document: Document) -> dict[str, Value]:
    """The document as a reader of its text gets it: comments gone, anchors merged in, extensions left out."""
    anchors = {name.removeprefix(EXTENSION): value for name, value in document.items() if name.startswith(EXTENSION)}
    return {name: _plain(value, anchors) for name, value in document.items() if _is_data(name)}


def _is_data(name: str) -> bool:
    return not name.startswith((COMMENT, EXTENSION)) and name != MERGE


def _plain(value: Value, anchors: Mapping[str, Value]) -> Value:
    if isinstance(value, Mapping):
        merged: dict[str, Value] = {}
        named = value.get(MERGE, [])
        assert isinstance(named, list), "anchors are named in a list"  # noqa: S101 # written here, never read
        for name in named:
            found = _plain(anchors[str(name)], anchors)
            assert isinstance(found, dict), "only mappings are merged"  # noqa: S101 # the same
            merged |= {key: item for key, item in found.items() if key not in merged}
        own = {key: _plain(item, anchors) for key, item in value.items() if _is_data(key) or key.startswith(EXTENSION)}
        return {**merged, **own}
    if isinstance(value, list | tuple):
        return [_plain(item, anchors) for item in value]
    return value


def _top(document: Document) -> Iterator[str]:
    for name, value in document.items():
        if name.startswith(COMMENT):
            yield from _comment(name, "")
            continue
        anchor = f" &{name.removeprefix(EXTENSION)}" if name.startswith(EXTENSION) else ""
        yield from _entry(name, value, "", anchor)
        yield ""


def _entry(name: str, value: Value, indent: str, anchor: str = "") -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        yield f"{indent}{name}:{anchor}"
        yield from _mapping(value, indent + _INDENT)
    elif isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
        yield f"{indent}{name}:{anchor}"
        yield from _items(value, indent + _INDENT)
    elif isinstance(value, list | tuple):
        yield from _flow(f"{indent}{name}:{anchor}", value, indent + _INDENT)
    else:
        yield f"{indent}{name}:{anchor}{_scalar(value)}"


def _mapping(value: Mapping[str, Value], indent: str) -> Iterator[str]:
    for name, item in value.items():
        if name.startswith(COMMENT):
            yield from _comment(name, indent)
        elif name == MERGE:
            assert isinstance(item, list), "anchors are named in a list"  # noqa: S101 # written here, never read
            yield f"{indent}<<: [{', '.join(f'*{anchor}' for anchor in item)}]"
        else:
            yield from _entry(name, item, indent)


def _items(values: Sequence[Value], indent: str) -> Iterator[str]:
    for item in values:
        if not isinstance(item, Mapping):
            yield f"{indent}-{_scalar(item)}"
            continue
        first, *others = _mapping(item, indent + _INDENT)
        yield f"{indent}- {first.removeprefix(indent + _INDENT)}"
        yield from others


def _flow(head: str, values: Sequence[Value], indent: str) -> Iterator[str]:
    line = f"{head} [{', '.join(_scalar(item).strip() for item in values)}]"
    if len(line) <= _WIDTH_CHARS:
        yield line
        return
    yield head
    for item in values:
        yield f"{indent}-{_scalar(item)}"


def _comment(text: str, indent: str) -> Iterator[str]:
    for line in text.removeprefix(COMMENT).splitlines():
        yield f"{indent}# {line}"


def _scalar(value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return " {}"
    return " " + (str(value).lower() if isinstance(value, bool) else json.dumps(value))
