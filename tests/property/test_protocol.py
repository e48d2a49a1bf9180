"""The codec over every message that is defined for it, in all versions: messages are read back, and no part of one is
taken for a whole message."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.kafka.protocol.codec import Values, decode, encode
from shared.kafka.protocol.definitions import (
    DIRECTORY,
    Definition,
    definition,
    has,
    is_present,
    valid_versions,
)
from shared.kafka.protocol.primitives import ProtocolDecodeError

NAMES = sorted(path.stem for path in DIRECTORY.glob("*.json"))
EXAMPLES = 10

NUMBERS: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int8": st.integers(-(1 << 7), (1 << 7) - 1),
    "int16": st.integers(-(1 << 15), (1 << 15) - 1),
    "uint16": st.integers(0, (1 << 16) - 1),
    "int32": st.integers(-(1 << 31), (1 << 31) - 1),
    "int64": st.integers(-(1 << 63), (1 << 63) - 1),
}
PRIMITIVES: dict[str, st.SearchStrategy[Any]] = NUMBERS | {
    "string": st.text(max_size=200),
    "bytes": st.binary(max_size=200),
    "records": st.binary(max_size=200),
    "uuid": st.binary(min_size=16, max_size=16),
}


def messages(name: str, version: int) -> st.SearchStrategy[Values]:
    """Every value that a version of a message can carry."""
    message = definition(name)
    shared = {common["name"]: common["fields"] for common in message.get("commonStructs", ())}

    def struct(fields: list[Definition]) -> st.SearchStrategy[Values]:
        return st.fixed_dictionaries({f["name"]: field(f) for f in fields if is_present(f, version)})

    def field(one: Definition) -> st.SearchStrategy[Any]:
        kind = one["type"].removeprefix("[]")
        values = PRIMITIVES[kind] if kind in PRIMITIVES else struct(one.get("fields") or shared[kind])
        if one["type"].startswith("[]"):
            values = st.lists(values, max_size=3)
        return st.none() | values if has(one, "nullableVersions", version) else values

    return struct(message["fields"])


@st.composite
def versioned(draw: Callable[..., Any], name: str) -> tuple[int, Values]:
    """A version of a message, and its values."""
    version = draw(st.sampled_from(valid_versions(name)))
    return version, draw(messages(name, version))


@pytest.mark.parametrize("name", NAMES)
def test_only_whole_messages_are_read_back(name: str) -> None:
    @settings(max_examples=EXAMPLES)
    @given(versioned(name), st.data())
    def read_back(case: tuple[int, Values], data: st.DataObject) -> None:
        version, values = case
        whole = encode(name, version, values)
        assert decode(name, version, whole) == values
        with pytest.raises(ProtocolDecodeError, match="1 bytes are left"):
            decode(name, version, whole + b"\x00")
        if whole:
            with pytest.raises(ProtocolDecodeError):
                decode(name, version, whole[: data.draw(st.integers(0, len(whole) - 1))])

    read_back()


@pytest.mark.parametrize("name", NAMES)
def test_an_omitted_field_has_its_defined_default(name: str) -> None:
    for version in valid_versions(name):
        values = decode(name, version, encode(name, version, {}))
        assert decode(name, version, encode(name, version, values)) == values
