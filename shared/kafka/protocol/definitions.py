"""Kafka's own definitions of its messages: unchanged files of Kafka's jars, in `messages/`.

Their format is described in common/message/README.md of kafka-clients.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

DIRECTORY: Final = Path(__file__).with_name("messages")

Definition = dict[str, Any]
"""A message's definition, or that of one of its fields."""


@cache
def definition(name: str) -> Definition:
    """Return a message's definition.

    Args:
        name: as Kafka names it, such as EndTxnRequest.

    Raises:
        FileNotFoundError: there is no file of it.
    """
    text = (DIRECTORY / f"{name}.json").read_text()
    found: Definition = msgspec.json.decode(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
    return found


@cache
def valid_versions(name: str) -> range:
    """Return the versions of a message."""
    return _range(definition(name)["validVersions"])


@cache
def flexible_versions(name: str) -> range:
    """Return the versions of a message with compact lengths and tagged fields (KIP-482)."""
    return _range(definition(name)["flexibleVersions"])


def is_present(field: Definition, version: int) -> bool:
    """Whether this version of a message has the field."""
    return has(field, "versions" if "versions" in field else "taggedVersions", version)


def has(field: Definition, versions: str, version: int) -> bool:
    """Whether a range of a field's versions, such as nullableVersions, has this version."""
    return version in _range(field.get(versions, "none"))


def _range(text: str) -> range:
    if text == "none":
        return range(0)
    first, _, last = text.removesuffix("+").partition("-")
    return range(int(first), 1 << 15 if text.endswith("+") else int(last or first) + 1)
