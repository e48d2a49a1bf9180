"""Kafka's own message definitions, read from its jars, and an encoder and a decoder that follow them.

For tests of decoders: it shares nothing with them, and when a newer Kafka changes a message, they fail.
"""

import json
import re
import struct
import zipfile
from functools import cache
from typing import Any

from deploy.local.jars import resolve

_NUMBERS = {"int8": ">b", "int16": ">h", "int32": ">i", "int64": ">q", "bool": ">?"}
_JARS = ("kafka-clients-", "kafka-transaction-coordinator-")


@cache
def definition(name: str) -> dict[str, Any]:
    """A message's definition, such as EndTxnRequest."""
    for path in resolve():
        if path.name.startswith(_JARS):
            with zipfile.ZipFile(path) as jar:
                if f"common/message/{name}.json" in jar.namelist():
                    text = jar.read(f"common/message/{name}.json").decode()
                    found: dict[str, Any] = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
                    return found
    raise LookupError(f"no jar defines {name}")


def valid_versions(name: str) -> range:
    """The versions that this Kafka knows of a message."""
    return _range(definition(name)["validVersions"])


def encode(name: str, version: int, values: dict[str, Any]) -> bytes:
    """A message's bytes, without any header.

    Args:
        name: of the definition.
        version: of the message.
        values: by the definition's field names; those left out have their defaults.
    """
    message = definition(name)
    structs = {struct_["name"]: struct_["fields"] for struct_ in message.get("commonStructs", ())}
    flexible = version in _range(message["flexibleVersions"])
    return _Encoder(version, structs, flexible=flexible).fields(message["fields"], values)


def decode(name: str, version: int, data: bytes) -> dict[str, Any]:
    """A message's values by the definition's field names, without those that are tagged.

    Args:
        name: of the definition.
        version: of the message.
        data: its bytes, without any header.
    """
    message = definition(name)
    structs = {struct_["name"]: struct_["fields"] for struct_ in message.get("commonStructs", ())}
    decoder = _Decoder(data, version, structs, flexible=is_flexible(name, version))
    values = decoder.fields(message["fields"])
    assert decoder.at == len(data), f"{len(data) - decoder.at} bytes of {name} are left"
    return values


def is_flexible(name: str, version: int) -> bool:
    """Whether a message has tagged fields in this version (KIP-482)."""
    return version in _range(definition(name)["flexibleVersions"])


def _range(text: str) -> range:
    if text == "none":
        return range(0)
    if text.endswith("+"):
        return range(int(text[:-1]), 1 << 15)
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def uvarint(value: int) -> bytes:
    """An unsigned number of 7 bits a byte."""
    encoded = b""
    while value > 0x7F:
        encoded += bytes([value & 0x7F | 0x80])
        value >>= 7
    return encoded + bytes([value])


class _Encoder:
    def __init__(self, version: int, structs: dict[str, Any], *, flexible: bool) -> None:
        self.version, self.structs, self.flexible = version, structs, flexible

    def fields(self, fields: list[dict[str, Any]], values: dict[str, Any]) -> bytes:
        known = {field["name"] for field in fields}
        assert set(values) <= known, f"{set(values) - known} are no fields"
        encoded, tagged = b"", dict[int, bytes]()
        for field in fields:
            if self.version in _range(field.get("taggedVersions", "none")):
                if field["name"] in values:
                    tagged[field["tag"]] = self.value(field["type"], field, values[field["name"]])
            elif self.version in _range(field.get("versions", "none")):
                encoded += self.value(field["type"], field, values.get(field["name"], self.default(field)))
        if self.flexible:
            encoded += uvarint(len(tagged))
            for tag, data in sorted(tagged.items()):
                encoded += uvarint(tag) + uvarint(len(data)) + data
        return encoded

    @staticmethod
    def default(field: dict[str, Any]) -> Any:
        if field["type"].startswith("[]"):
            return []
        if field["type"] in {"string", "records"}:
            return None if field.get("default") == "null" else field.get("default", "")
        default = str(field.get("default", 0)).lower()
        return int(default, 16) if default.startswith("0x") else json.loads(default)

    def value(self, kind: str, field: dict[str, Any], value: Any) -> bytes:
        if kind in _NUMBERS:
            return struct.pack(_NUMBERS[kind], value)
        if kind == "string":
            text: bytes | None = None if value is None else value.encode()
            return self.length(text, ">h") + (text or b"")
        if kind == "records":
            batches: bytes = value
            return self.length(batches, ">i") + batches
        if kind.startswith("[]"):
            items = b"".join(self.value(kind[2:], field, item) for item in value or ())
            return self.length(value, ">i") + items
        return self.fields(field.get("fields") or self.structs[kind], value)

    def length(self, value: Any, form: str) -> bytes:
        size = -1 if value is None else len(value)
        return uvarint(size + 1) if self.flexible else struct.pack(form, size)


class _Decoder:
    def __init__(self, data: bytes, version: int, structs: dict[str, Any], *, flexible: bool) -> None:
        self.data, self.at = data, 0
        self.version, self.structs, self.flexible = version, structs, flexible

    def fields(self, fields: list[dict[str, Any]]) -> dict[str, Any]:
        values = {
            field["name"]: self.value(field["type"], field)
            for field in fields
            if self.version in _range(field.get("versions", "none"))
            and self.version not in _range(field.get("taggedVersions", "none"))
        }
        if self.flexible:
            for _ in range(self.uvarint()):
                self.uvarint()
                self.take(self.uvarint())
        return values

    def value(self, kind: str, field: dict[str, Any]) -> Any:
        if kind in _NUMBERS:
            return struct.unpack(_NUMBERS[kind], self.take(struct.calcsize(_NUMBERS[kind])))[0]
        if kind == "string":
            size = self.length(">h")
            return None if size < 0 else self.take(size).decode()
        if kind in {"records", "bytes"}:
            size = self.length(">i")
            return None if size < 0 else self.take(size)
        if kind.startswith("[]"):
            return [self.value(kind[2:], field) for _ in range(max(self.length(">i"), 0))]
        return self.fields(field.get("fields") or self.structs[kind])

    def length(self, form: str) -> int:
        if self.flexible:
            return self.uvarint() - 1
        size: int = struct.unpack(form, self.take(struct.calcsize(form)))[0]
        return size

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def take(self, size: int) -> bytes:
        taken = self.data[self.at : self.at + size]
        assert len(taken) == size, "the message is shorter than it says"
        self.at += size
        return taken
