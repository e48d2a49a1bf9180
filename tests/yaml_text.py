"""Reads the YAML that deploy/compose/yaml.py writes: block style, double quotes, comments, anchors and merges.

A reader of its own, so that tests see the committed file and not what its writer meant. It refuses whatever it does not
know, and is no reader of YAML at large.
"""

import json
import re
from typing import Any

_KEY = re.compile(r"([A-Za-z0-9_.<-]+):(?: &([a-z-]+))?(?: (.*))?$")
_ALIASES = re.compile(r"\[(\*[a-z-]+(?:, \*[a-z-]+)*)\]$")


class Reader:
    """One text, read line by line."""

    def __init__(self, text: str) -> None:
        lines = [line for line in text.split("\n") if line.strip() and not line.lstrip().startswith("#")]
        self._lines = [(len(line) - len(line.lstrip()), line.strip()) for line in lines]
        self._anchors: dict[str, dict[str, Any]] = {}

    def document(self) -> dict[str, Any]:
        """The whole text."""
        found = self._mapping(0)
        assert not self._lines, f"not read: {self._lines[0]}"
        return found

    def _mapping(self, indent: int) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        own: dict[str, Any] = {}
        while self._lines and self._lines[0][0] == indent and not self._lines[0][1].startswith("- "):
            _, line = self._lines.pop(0)
            match = _KEY.match(line)
            assert match, line
            key, anchor, rest = match.groups()
            assert key not in own, f"twice: {key}"
            if key == "<<":
                aliases = _ALIASES.match(rest or "")
                assert aliases, line
                for name in aliases[1].split(", "):
                    merged = {**self._anchors[name.removeprefix("*")], **merged}
                continue
            own[key] = self._value(rest, indent)
            if anchor:
                self._anchors[anchor] = own[key]
        return {**merged, **own}

    def _value(self, text: str | None, indent: int) -> Any:
        if text:
            return json.loads(text)
        if not self._lines or self._lines[0][0] <= indent:
            return None
        inner = self._lines[0][0]
        return self._items(inner) if self._lines[0][1].startswith("- ") else self._mapping(inner)

    def _items(self, indent: int) -> list[Any]:
        found = []
        while self._lines and self._lines[0][0] == indent and self._lines[0][1].startswith("- "):
            rest = self._lines[0][1].removeprefix("- ")
            if _KEY.match(rest):
                self._lines[0] = (indent + 2, rest)
                found.append(self._mapping(indent + 2))
            else:
                self._lines.pop(0)
                found.append(json.loads(rest))
        return found


def read(text: str) -> dict[str, Any]:
    """The document that a text holds."""
    return Reader(text).document()
