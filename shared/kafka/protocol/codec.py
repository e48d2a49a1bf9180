"""Encodes and decodes Kafka's messages, requests and internal records alike, by Kafka's own definitions of them.

A message and version is compiled on first use, to a reader and a writer for each of its structs. The values of a
struct are a dict by the definition's field names. A number is an int, a string a str, bytes and records are bytes, a
uuid is its 16 bytes, an array a list, a struct a dict, null is None.

Invariant: `decode` accepts exactly one whole message.
"""

import struct
from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple

from shared.kafka.protocol.definitions import (
    Definition,
    definition,
    flexible_versions,
    has,
    is_present,
    valid_versions,
)
from shared.kafka.protocol.primitives import (
    BYTES,
    COMPACT,
    FORMATS,
    TEXT,
    Codec,
    ProtocolDecodeError,
    array_of,
    encode_uvarint,
    end_of,
    number,
    read_uvarint,
    sized,
)

Values = dict[str, Any]
"""The values of a message, or of a struct in it."""

_CONTENTS: Final = {"string": (TEXT, "int16"), "bytes": (BYTES, "int32"), "records": (BYTES, "int32")}
"""Content, and the type of the length where it is not compact."""
_EMPTY: Final = {"string": "", "bytes": b"", "records": None, "uuid": bytes(16)}
"""Defaults of types whose definitions rarely name one."""
_MARK: Final = number("int8")
_UNKNOWN: Final = object()
_NO_TAGS: Final = encode_uvarint(0)
_VERSION_BYTES: Final = 2


def encode(name: str, version: int, values: Values) -> bytes:
    """Encode a message, without a header.

    Args:
        values: fields that are left out have the definition's default.

    Raises:
        ValueError: the version or a field is unknown, a field is null that may not be, or this version cannot carry
            the value of a field and may not ignore it.
        struct.error: a number does not fit its type.
    """
    out: list[bytes] = []
    _compiled(name, version).write(out, values)
    return b"".join(out)


def decode(name: str, version: int, data: bytes, at: int = 0) -> Values:
    """Decode a message that begins at `at` and ends with the data: all fields of this version.

    Raises:
        ProtocolDecodeError: the bytes are not exactly one such message, or the version is unknown.
    """
    values, end = decode_at(name, version, data, at)
    if end != len(data):
        raise ProtocolDecodeError(f"{len(data) - end} bytes are left after {name} v{version}")
    return values


def decode_at(name: str, version: int, data: bytes, at: int) -> tuple[Values, int]:
    """Decode a message that others may follow; return its values and where it ends.

    Raises:
        ProtocolDecodeError: as for `decode`.
    """
    if version not in valid_versions(name):
        raise ProtocolDecodeError(f"{name} v{version} is not known")
    try:
        values, end = _compiled(name, version).read(data, at)
    except (struct.error, UnicodeDecodeError) as error:
        raise ProtocolDecodeError(f"{name} v{version}: {error}") from error
    return values, end


def decode_record(name: str, data: bytes) -> tuple[int, Values]:
    """Decode the key or value of an internal record, a message after its version; return version and values.

    Raises:
        ProtocolDecodeError: as for `decode`.
    """
    at = end_of(data, 0, _VERSION_BYTES)
    version = int.from_bytes(data[:at], "big", signed=True)
    return version, decode(name, version, data, at)


class _Tags(NamedTuple):
    """Reads the tagged fields of a struct into its values, and writes them from there."""

    read: Callable[[bytes, int, Values], int]
    write: Callable[[list[bytes], Values], None]


@cache
def _compiled(name: str, version: int) -> Codec:
    if version not in valid_versions(name):
        raise ValueError(f"{name} v{version} is not known")
    message = definition(name)
    shared = {common["name"]: common["fields"] for common in message.get("commonStructs", ())}
    return _Compiler(version, shared, flexible=version in flexible_versions(name)).struct(name, message["fields"])


class _Compiler:
    """Makes the codecs of one version of a message.

    Args:
        shared: fields of the structs that several fields of the message have, by the struct's name.
    """

    def __init__(self, version: int, shared: dict[str, list[Definition]], *, flexible: bool) -> None:
        self._version = version
        self._shared = shared
        self._flexible = flexible

    def struct(self, name: str, fields: list[Definition]) -> Codec:
        """Return the codec of a struct; `name` is for errors."""
        present = [field for field in fields if is_present(field, self._version)]
        known = frozenset(field["name"] for field in present)
        absent = {f["name"]: (f.get("ignorable"), self._default(f)) for f in fields if f["name"] not in known}
        tagged = [field for field in present if has(field, "taggedVersions", self._version)]
        plain = {f["name"]: (self._default(f), self._codec(f)) for f in present if f not in tagged}
        reads = [(field, codec.read) for field, (_, codec) in plain.items()]
        writes = [(field, default, codec.write) for field, (default, codec) in plain.items()]
        tags = self._tags(tagged) if self._flexible else None

        def read(data: bytes, at: int) -> tuple[Values, int]:
            values: Values = {}
            for field, take in reads:
                values[field], at = take(data, at)
            if tags is not None:
                at = tags.read(data, at, values)
            return values, at

        def write(out: list[bytes], values: Values) -> None:
            if not known.issuperset(values):
                for field in values.keys() - known:  # a value must not get lost unnoticed
                    ignorable, default = absent.get(field, (False, _UNKNOWN))
                    if not ignorable and values[field] != default:
                        raise ValueError(f"{name} v{self._version} has no field {field}")
            for field, default, put in writes:
                put(out, values.get(field, default))
            if tags is not None:
                tags.write(out, values)

        return Codec(read, write)

    def _tags(self, fields: list[Definition]) -> _Tags:
        """Return the codec of the tagged fields, which end every struct of a flexible version (KIP-482)."""
        codecs = {field["tag"]: (field["name"], self._codec(field)) for field in fields}
        defaults = {field["name"]: self._default(field) for field in fields}
        no_tag_in = frozenset(defaults).isdisjoint

        def read(data: bytes, at: int, values: Values) -> int:
            for name, default in defaults.items():
                values[name] = _copy(default)
            count, at = read_uvarint(data, at)
            for _ in range(count):
                tag, at = read_uvarint(data, at)
                size, at = read_uvarint(data, at)
                end = end_of(data, at, size)
                if tag in codecs:  # others are of a later Kafka
                    name, codec = codecs[tag]
                    values[name], at = codec.read(data, at)
                    if at != end:
                        raise ProtocolDecodeError(f"{name} has {size} bytes, and ends {end - at} before them")
                at = end
            return at

        def write(out: list[bytes], values: Values) -> None:
            if no_tag_in(values):
                out.append(_NO_TAGS)
                return
            sent = [tag for tag, (name, _) in codecs.items() if values.get(name, defaults[name]) != defaults[name]]
            out.append(encode_uvarint(len(sent)))
            for tag in sorted(sent):
                name, codec = codecs[tag]
                parts: list[bytes] = []
                codec.write(parts, values[name])
                value = b"".join(parts)
                out += (encode_uvarint(tag), encode_uvarint(len(value)), value)

        return _Tags(read, write)

    def _codec(self, field: Definition) -> Codec:
        return self._typed(field, field["type"], nullable=has(field, "nullableVersions", self._version))

    def _typed(self, field: Definition, kind: str, *, nullable: bool) -> Codec:
        if kind in FORMATS:
            return number(kind)
        if kind in _CONTENTS:
            content, length = _CONTENTS[kind]
        elif kind.startswith("[]"):
            content, length = array_of(self._typed(field, kind[2:], nullable=False)), "int32"
        else:
            found = self.struct(kind, self._fields(field))
            return _optional(found) if nullable else found
        # The client_id of a request's header is never compact: any broker must be able to read it
        compact = self._flexible and field.get("flexibleVersions") != "none"
        return sized(field["name"], content, COMPACT if compact else length, nullable=nullable)

    def _fields(self, field: Definition) -> list[Definition]:
        return field.get("fields") or self._shared[field["type"].removeprefix("[]")]

    def _default(self, field: Definition) -> Any:
        kind, default = field["type"], field.get("default")
        if default == "null":
            return None
        if kind.startswith("[]"):
            return []
        if kind in _EMPTY:
            return default or _EMPTY[kind]
        if kind in FORMATS:
            text = str(default or 0).lower()
            return text == "true" if kind == "bool" else int(text, 0)
        inner = [field for field in self._fields(field) if is_present(field, self._version)]
        return {field["name"]: self._default(field) for field in inner}


def _optional(found: Codec) -> Codec:
    """Return the codec of a struct that may be null (KIP-893)."""

    def read(data: bytes, at: int) -> tuple[Values | None, int]:
        mark, at = _MARK.read(data, at)
        return (None, at) if mark < 0 else found.read(data, at)

    def write(out: list[bytes], value: Values | None) -> None:
        _MARK.write(out, -1 if value is None else 1)
        if value is not None:
            found.write(out, value)

    return Codec(read, write)


def _copy(default: Any) -> Any:
    """Return a default that the caller may change."""
    if isinstance(default, dict):
        return {name: _copy(value) for name, value in default.items()}
    return [] if isinstance(default, list) else default
