"""Kafka's primitive types as bytes, and what begins with its length: strings, bytes and arrays.

Invariant: reading past the end is an error, never a guess. Types: https://kafka.apache.org/protocol#protocol_types;
compact ones: KIP-482.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

FORMATS: Final = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "int64": "q",
    "uuid": "16s",
}
"""Types of a fixed size, as `struct` formats."""

_UVARINT_BYTES_MAX: Final = 5  # of an unsigned 32-bit number
_SEVEN_BITS: Final = 0x7F
_SMALL: Final = tuple(bytes([value]) for value in range(_SEVEN_BITS + 1))


class ProtocolDecodeError(ValueError):
    """The bytes do not match the definition."""


class Codec(NamedTuple):
    """Reads and writes the values of one type.

    Attributes:
        read: takes the bytes and where to begin; returns the value and where it ends.
        write: takes the parts written so far and a value, and appends the value's.
    """

    read: Callable[[bytes, int], tuple[Any, int]]
    write: Callable[[list[bytes], Any], None]


class Content(NamedTuple):
    """What follows a length.

    Attributes:
        load: takes the bytes, where to begin, and the length; returns the value and where it ends.
        dump: returns a value's length and its parts.
    """

    load: Callable[[bytes, int, int], tuple[Any, int]]
    dump: Callable[[Any], tuple[int, Sequence[bytes]]]


def end_of(data: bytes, at: int, size: int) -> int:
    """Return where `size` bytes end.

    Raises:
        ProtocolDecodeError: there are not so many.
    """
    end = at + size
    if end > len(data):
        raise ProtocolDecodeError(f"{size} bytes wanted at {at}, {len(data) - at} are left")
    return end


def read_uvarint(data: bytes, at: int) -> tuple[int, int]:
    """Read an unsigned number of 7 bits a byte, the lowest first.

    Raises:
        ProtocolDecodeError: it is cut off, or has more than 5 bytes.
    """
    if at < len(data) and data[at] <= _SEVEN_BITS:  # most are
        return data[at], at + 1
    value = 0
    for place in range(_UVARINT_BYTES_MAX):
        byte = data[end_of(data, at + place, 1) - 1]
        value |= (byte & _SEVEN_BITS) << (7 * place)
        if byte <= _SEVEN_BITS:
            return value, at + place + 1
    raise ProtocolDecodeError(f"a number of more than {_UVARINT_BYTES_MAX} bytes at {at}")


def encode_uvarint(value: int) -> bytes:
    """Encode an unsigned number as `read_uvarint` reads it."""
    if value <= _SEVEN_BITS:
        return _SMALL[value]
    return bytes([value & _SEVEN_BITS | 0x80]) + encode_uvarint(value >> 7)


def number(kind: str) -> Codec:
    """Return the codec of a type of a fixed size."""
    form = struct.Struct(">" + FORMATS[kind])
    unpack, pack, size = form.unpack_from, form.pack, form.size
    return Codec(lambda data, at: (unpack(data, at)[0], at + size), lambda out, value: out.append(pack(value)))


def sized(name: str, content: Content, length: str, *, nullable: bool) -> Codec:
    """Return the codec of what begins with its length; `name` is the field's, for errors.

    Args:
        length: the type of the length; COMPACT is one more than it, unsigned, and 0 for a null.
    """
    load, dump = content
    read_size, encode_size = _LENGTHS[length]

    def read(data: bytes, at: int) -> tuple[Any, int]:
        size, at = read_size(data, at)
        if size >= 0:
            return load(data, at, size)
        if not nullable:
            raise ProtocolDecodeError(f"{name} is null")
        return None, at

    def write(out: list[bytes], value: Any) -> None:
        if value is None and not nullable:
            raise ValueError(f"{name} is null")
        size, parts = (-1, ()) if value is None else dump(value)
        out.append(encode_size(size))
        out += parts

    return Codec(read, write)


def array_of(item: Codec) -> Content:
    """Return the content of an array."""
    read_item, write_item = item

    def load(data: bytes, at: int, count: int) -> tuple[list[Any], int]:
        # Every item takes at least one byte, so a wrong count cannot ask for more than there is
        if count > len(data) - at:
            raise ProtocolDecodeError(f"{count} items wanted at {at}, {len(data) - at} bytes are left")
        items = []
        for _ in range(count):
            value, at = read_item(data, at)
            items.append(value)
        return items, at

    def dump(values: list[Any]) -> tuple[int, list[bytes]]:
        parts: list[bytes] = []
        for value in values:
            write_item(parts, value)
        return len(values), parts

    return Content(load, dump)


def _load(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    end = end_of(data, at, size)
    return data[at:end], end


def _load_text(data: bytes, at: int, size: int) -> tuple[str, int]:
    end = end_of(data, at, size)
    return data[at:end].decode(), end


def _dump_text(value: str) -> tuple[int, tuple[bytes]]:
    encoded = value.encode()
    return len(encoded), (encoded,)


def _read_compact(data: bytes, at: int) -> tuple[int, int]:
    size, at = read_uvarint(data, at)
    return size - 1, at


BYTES: Final = Content(_load, lambda value: (len(value), (value,)))
TEXT: Final = Content(_load_text, _dump_text)
COMPACT: Final = "compact"
_LENGTHS: Final[dict[str, tuple[Callable[[bytes, int], tuple[int, int]], Callable[[int], bytes]]]] = {
    COMPACT: (_read_compact, lambda size: encode_uvarint(size + 1)),
    "int16": (number("int16").read, struct.Struct(">h").pack),
    "int32": (number("int32").read, struct.Struct(">i").pack),
}
