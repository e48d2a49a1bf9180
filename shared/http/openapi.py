"""Parts of an OpenAPI 3.1 document, made from the structs that decode and encode. Pure.

Invariant: a struct's docstring describes its schema, and its lines under `Attributes:` the properties.
"""

from collections.abc import Iterable, Mapping
from inspect import cleandoc
from typing import Any, Final

import msgspec

Document = dict[str, Any]

VERSION: Final = "3.1.0"
MEDIA_TYPE: Final = "application/json"
RETRY_AFTER: Final = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}}
WWW_AUTHENTICATE: Final = {"WWW-Authenticate": {"description": "Bearer.", "schema": {"type": "string"}}}
_REFERENCE: Final = "#/components/schemas/{name}"


def schemas(structs: Iterable[type[msgspec.Struct]]) -> dict[str, Any]:
    """Return the schemas of structs and of the types they contain, by name, as msgspec gives them."""
    return msgspec.json.schema_components(structs, ref_template=_REFERENCE)[1]


def reference(name: str) -> dict[str, str]:
    return {"$ref": _REFERENCE.format(name=name)}


def content(name: str) -> dict[str, Any]:
    """Return a JSON body of that schema."""
    return {MEDIA_TYPE: {"schema": reference(name)}}


def refusals(texts: Mapping[int, str], name: str) -> dict[str, Any]:
    """Return the refusals by status: their meaning, and a body of the named schema."""
    answers: dict[str, Any] = {}
    for status, text in sorted(texts.items()):
        answers[str(status)] = {"description": text, "content": content(name)}
        if status in {429, 503, 504}:  # temporary
            answers[str(status)]["headers"] = RETRY_AFTER
        elif status == 401:
            answers[str(status)]["headers"] = WWW_AUTHENTICATE
    return answers


def describe_attributes(schema: dict[str, Any]) -> None:
    """Move a docstring's attributes to the properties that they describe."""
    summary, _, attributes = cleandoc(schema["description"]).partition("\n\nAttributes:\n")
    schema["description"] = " ".join(summary.split())
    properties = schema["properties"]
    current: list[str] = []
    for line in attributes.splitlines():
        names, colon, text = line.strip().partition(": ")
        known = [name for name in names.split(", ") if name in properties]
        if colon and known:
            current = known
            for name in current:
                properties[name] = {**properties[name], "description": text}
        else:
            for name in current:
                properties[name]["description"] += " " + line.strip()
