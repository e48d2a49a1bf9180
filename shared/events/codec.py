"""The decoder of all events. Pure.

Invariant: any bytes give an event or a `msgspec.DecodeError`. msgspec alone raises two other errors as well:
UnicodeDecodeError for a name that is not UTF-8, RecursionError for a value nested too deeply.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")


@overload
def decoder(kind: type[T]) -> Callable[[bytes], T]: ...
@overload
def decoder(kind: Any) -> Callable[[bytes], Any]: ...
def decoder(kind: Any) -> Callable[[bytes], Any]:
    """Make a JSON decoder of a struct, or a union of structs, that raises msgspec.DecodeError for any other bytes."""
    decode = msgspec.json.Decoder(kind).decode

    def checked(value: bytes) -> Any:
        try:
            return decode(value)
        except UnicodeDecodeError as error:
            raise msgspec.DecodeError(f"not UTF-8: {error.reason}") from error
        except RecursionError as error:
            raise msgspec.DecodeError("nested too deeply") from error

    return checked


decode_fields = decoder(dict[str, msgspec.Raw])
"""Decodes the fields of an object without their values, by name and in their order."""
Extra = Mapping[str, msgspec.Raw]  # fields of a record that this version does not know, by name
NO_EXTRA: Extra = {}


def split(value: bytes, known: Collection[str]) -> tuple[bytes, Extra]:
    """Separate an event's known fields from the others."""
    fields = decode_fields(value)
    extra = {name: raw for name, raw in fields.items() if name not in known}
    return msgspec.json.encode({name: raw for name, raw in fields.items() if name in known}), extra


def with_extra(value: bytes, extra: Extra, known: Collection[str]) -> bytes:
    """Add the fields of another event that the event of `value` does not have of its own."""
    added = extra and {name: raw for name, raw in extra.items() if name not in known}
    return b"%b,%b" % (value[:-1], msgspec.json.encode(added)[1:]) if added else value


class InternalInputError(Exception):
    """A record written by one of the services breaks the schema or an invariant: a defect, and fatal.

    Only ingest receives bad records from outside. The other services can process everything that it accepts.
    """
