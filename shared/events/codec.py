"""The decoder of all events. Pure.

Invariant: any bytes give an event or a `msgspec.DecodeError`. msgspec alone raises two other errors as well:
UnicodeDecodeError for a name that is not UTF-8, RecursionError for a value nested too deeply.
"""

from collections.abc import Callable
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


class InternalInputError(Exception):
    """A record written by one of the services breaks the schema or an invariant: a defect, and fatal.

    Only ingest receives bad records from outside. The other services can process everything that it accepts.
    """
