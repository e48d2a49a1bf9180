"""Kafka's primitive types, read from bytes: the parts of every message of the protocol and every internal record. Pure.

Invariant: reading past the end is an error, never a guess; bytes are copied only on request. Types:
https://kafka.apache.org/protocol#protocol_types; flexible ones: KIP-482.
"""

import struct
from collections.abc import Callable
from typing import TypeVar

_INT8, _INT16, _INT32, _INT64 = (struct.Struct(f) for f in (">b", ">h", ">i", ">q"))
_VARINT_BYTES_MAX = 5  # of an unsigned 32-bit number

T = TypeVar("T")


class ProtocolDecodeError(ValueError):
    """The bytes do not match the schema."""


class Reader:
    """Reads one value after the other.

    Args:
        data: of one message.
        at: where to begin.

    Every method raises ProtocolDecodeError when the bytes end too soon.
    """

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data = data
        self._at = at

    @property
    def left(self) -> int:
        """Number of bytes that are not read yet."""
        return len(self._data) - self._at

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        if not 0 <= size <= self.left:
            raise ProtocolDecodeError(f"{size} bytes wanted at {self._at}, {self.left} are left")
        self._at += size
        return self._data[self._at - size : self._at]

    def boolean(self) -> bool:
        """One byte; anything but 0 is true."""
        return self.take(1) != b"\x00"

    def int8(self) -> int:
        """One byte, signed."""
        return self._number(_INT8)

    def int16(self) -> int:
        """Two bytes, signed."""
        return self._number(_INT16)

    def int32(self) -> int:
        """Four bytes, signed."""
        return self._number(_INT32)

    def int64(self) -> int:
        """Eight bytes, signed."""
        return self._number(_INT64)

    def uvarint(self) -> int:
        """An unsigned number of 7 bits a byte, the lowest first."""
        value = 0
        for place in range(_VARINT_BYTES_MAX):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << (7 * place)
            if not byte & 0x80:
                return value
        raise ProtocolDecodeError(f"a number of more than {_VARINT_BYTES_MAX} bytes before {self._at}")

    def string(self) -> str | None:
        """A string with its length in two bytes; None for a null."""
        size = self.int16()
        return None if size < 0 else self._text(size)

    def compact_string(self) -> str | None:
        """A string with its length, plus one, as an unsigned varint; None for a null."""
        size = self.uvarint() - 1
        return None if size < 0 else self._text(size)

    def nullable_bytes(self) -> bytes | None:
        """Bytes with their length in four bytes; None for a null."""
        size = self.int32()
        return None if size < 0 else self.take(size)

    def array(self, item: Callable[[], T]) -> list[T]:
        """Items with their number in four bytes; a null is empty."""
        return self._items(self.int32(), item)

    def compact_array(self, item: Callable[[], T]) -> list[T]:
        """Items with their number, plus one, as an unsigned varint; a null is empty."""
        return self._items(self.uvarint() - 1, item)

    def tagged_fields(self) -> dict[int, bytes]:
        """The optional fields at the end of a flexible structure, by tag."""
        found: dict[int, bytes] = {}
        for _ in range(self.uvarint()):
            tag = self.uvarint()
            found[tag] = self.take(self.uvarint())
        return found

    def _number(self, form: struct.Struct) -> int:
        value: int = form.unpack(self.take(form.size))[0]
        return value

    def _text(self, size: int) -> str:
        try:
            return self.take(size).decode()
        except UnicodeDecodeError as error:
            raise ProtocolDecodeError(f"a string before {self._at} is not UTF-8") from error

    def _items(self, count: int, item: Callable[[], T]) -> list[T]:
        # Every item takes at least one byte, so a wrong count cannot ask for more than there is
        if count > self.left:
            raise ProtocolDecodeError(f"{count} items wanted at {self._at}, {self.left} bytes are left")
        return [item() for _ in range(count)]
