"""A check of JSON values against the schemas of an OpenAPI document, with the keywords that this project's use.

Invariant: an unknown keyword is an error, so that no part of a schema is ignored.
"""

import re
from collections.abc import Iterator
from typing import Any

_TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}
_NO_CHECK = {"title", "description", "default", "example"}


class SchemaMismatchError(AssertionError):
    """A value is not what its schema says."""


class Checker:
    """Checks values.

    Args:
        document: OpenAPI 3.1.
    """

    def __init__(self, document: dict[str, Any]) -> None:
        self._schemas: dict[str, Any] = document["components"]["schemas"]

    def check(self, value: Any, schema: dict[str, Any], at: str = "$") -> None:
        """Check a value.

        Raises:
            SchemaMismatchError: names the first mismatch.
        """
        for fault in self._faults(value, schema, at):
            raise SchemaMismatchError(fault)

    def _faults(self, value: Any, schema: dict[str, Any], at: str) -> Iterator[str]:
        for keyword, said in schema.items():
            if keyword in _NO_CHECK or keyword in {"required", "additionalProperties"}:
                continue
            yield from getattr(self, f"_{keyword.strip('$')}")(value, said, at)
        if "properties" in schema and isinstance(value, dict):
            yield from (f"{at}: {name} is missing" for name in schema.get("required", ()) if name not in value)
            # Stricter than the keyword, which allows added fields: these are the project's own answers
            yield from (f"{at}: {name} is not described" for name in value if name not in schema["properties"])

    def _ref(self, value: Any, said: str, at: str) -> Iterator[str]:
        yield from self._faults(value, self._schemas[said.removeprefix("#/components/schemas/")], at)

    def _type(self, value: Any, said: str, at: str) -> Iterator[str]:
        fits = isinstance(value, _TYPES[said]) and (said == "boolean" or not isinstance(value, bool))
        if not fits:
            yield f"{at}: {value!r} is no {said}"

    def _properties(self, value: Any, said: dict[str, Any], at: str) -> Iterator[str]:
        for name, schema in said.items():
            if isinstance(value, dict) and name in value:
                yield from self._faults(value[name], schema, f"{at}.{name}")

    def _items(self, value: Any, said: dict[str, Any], at: str) -> Iterator[str]:
        for number, item in enumerate(value if isinstance(value, list) else ()):
            yield from self._faults(item, said, f"{at}[{number}]")

    def _anyOf(self, value: Any, said: list[dict[str, Any]], at: str) -> Iterator[str]:  # noqa: N802 # the keyword
        if all(any(self._faults(value, schema, at)) for schema in said):
            yield f"{at}: {value!r} is none of {said}"

    def _enum(self, value: Any, said: list[Any], at: str) -> Iterator[str]:
        if value not in said:
            yield f"{at}: {value!r} is none of {said}"

    def _pattern(self, value: Any, said: str, at: str) -> Iterator[str]:
        if isinstance(value, str) and not re.search(said, value):
            yield f"{at}: {value!r} does not match {said}"

    def _minLength(self, value: Any, said: int, at: str) -> Iterator[str]:  # noqa: N802 # the keyword
        if isinstance(value, str) and len(value) < said:
            yield f"{at}: {value!r} is shorter than {said}"

    def _maxLength(self, value: Any, said: int, at: str) -> Iterator[str]:  # noqa: N802 # the keyword
        if isinstance(value, str) and len(value) > said:
            yield f"{at}: {value!r} is longer than {said}"

    def _maximum(self, value: Any, said: float, at: str) -> Iterator[str]:
        if isinstance(value, int | float) and value > said:
            yield f"{at}: {value} is above {said}"

    def _minimum(self, value: Any, said: float, at: str) -> Iterator[str]:
        if isinstance(value, int | float) and value < said:
            yield f"{at}: {value} is below {said}"
