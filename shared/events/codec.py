"""How events are decoded: one way for all of them. Pure.

What holds: whatever the bytes are, there is an event or a `msgspec.DecodeError`. msgspec alone raises two others as
well: UnicodeDecodeError for a name that is no UTF-8, RecursionError for a value nested too deeply.
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
    """A decoder of JSON.

    Args:
        kind: what the bytes should be: a struct, or a union of structs.

    Returns:
        A function that raises msgspec.DecodeError for bytes that are none.
    """
    decode = msgspec.json.Decoder(kind).decode

    def checked(value: bytes) -> Any:
        try:
            return decode(value)
        except UnicodeDecodeError as error:
            raise msgspec.DecodeError(f"not UTF-8: {error.reason}") from error
        except RecursionError as error:
            raise msgspec.DecodeError("nested too deeply") from error

    return checked
