"""An interface's documentation as one HTML page, made from its OpenAPI document. Pure.

Invariant: the page is self-contained (no script, no other host) and reads well in light and dark. It shows every path,
field and response of the document. Its examples are built from those of the document.

The parts of an OpenAPI 3.1 document are made from the structs that decode and encode. A struct's docstring describes
its schema, and its lines under `Attributes:` the properties.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from inspect import cleandoc
from typing import Any, Final
from urllib.parse import quote

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


def refusals(texts: Mapping[int, str], name: str, media_type: str = MEDIA_TYPE) -> dict[str, Any]:
    """Return the refusals by status: their meaning, and a body of the named schema."""
    answers: dict[str, Any] = {}
    for status, text in sorted(texts.items()):
        answers[str(status)] = {"description": text, "content": {media_type: {"schema": reference(name)}}}
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


_HOST: Final = re.compile(r"[A-Za-z0-9.-]{1,255}(?::[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](?::[0-9]{1,5})?")
_KEY: Final = '-H "Authorization: Bearer $KEY"'

_STYLE: Final = """
:root { color-scheme: light dark; --text: #1c2024; --dim: #5b6470; --ground: #fff; --raised: #f4f5f7;
  --line: #d9dde2; --accent: #0b5cad; --good: #136c3a; --bad: #a3261c }
@media (prefers-color-scheme: dark) { :root { --text: #e4e7eb; --dim: #9aa4b1; --ground: #14171a; --raised: #1d2125;
  --line: #33393f; --accent: #79b8ff; --good: #6fcf97; --bad: #ff9a8f } }
body { margin: 0 auto; max-width: 54rem; padding: 2rem 1.25rem 4rem; background: var(--ground); color: var(--text);
  font: 16px/1.55 system-ui, sans-serif }
h1 { font-size: 1.7rem; margin: 0 } h2 { margin: 2.5rem 0 .5rem; font-size: 1.2rem } h3 { font-size: 1rem }
code, pre, .method { font-family: ui-monospace, monospace; font-size: .9em }
pre { background: var(--raised); border: 1px solid var(--line); border-radius: 6px; padding: .8rem 1rem;
  overflow-x: auto }
.scroll { overflow-x: auto } table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .4rem .9rem .4rem 0; border-bottom: 1px solid var(--line) }
th { color: var(--dim); font-weight: 600; font-size: .85rem } td:first-child { white-space: nowrap }
a { color: var(--accent) } .dim { color: var(--dim) } .method { color: var(--accent); font-weight: 700 }
.good { color: var(--good) } .bad { color: var(--bad) }
"""


def render(document: Document, host: str | None, fallback: str) -> str:
    """Render the page. Parameters have an `example` where the path's example needs them.

    The examples name `host`, `name:port` as the client sent it; `fallback` where that is not a host.
    """
    base = f"http://{host if host and _HOST.fullmatch(host) else fallback}"
    info = document["info"]
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(info['title'])}</title><style>{_STYLE}</style></head><body>",
        f'<h1>{escape(info["title"])}</h1><p class="dim">Version {escape(info["version"])}',
        '· <a href="openapi.json">OpenAPI document</a></p>',
        f"<p>{escape(info['description'])}</p>",
    ]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parts += _operation(path, method, operation, base)
    for name, schema in document["components"]["schemas"].items():
        parts += _schema(name, schema)
    parts.append("</body></html>")
    return "\n".join(parts)


def _operation(path: str, method: str, operation: dict[str, Any], base: str) -> Iterator[str]:
    yield f'<h2 id="{escape(operation["operationId"])}"><span class="method">{method.upper()}</span> '
    yield f"<code>{escape(path)}</code></h2><p>{escape(operation['summary'])}</p>"
    body, secured = operation.get("requestBody"), bool(operation.get("security"))
    if body is not None:
        content = body["content"][MEDIA_TYPE]
        schema = content["schema"]
        links = " or ".join(_link(each["$ref"]) for each in schema.get("oneOf", [schema]))
        yield f"<p>Body: {links}. {escape(body['description'])}</p>"
        for title, example in content["examples"].items():
            shown = _curl_post(base + path, example["value"], secured=secured)
            yield f"<h3>Example: {escape(title)}</h3><pre>{escape(shown)}</pre>"
    parameters = operation.get("parameters", [])
    if parameters:
        rows = [_parameter(item) for item in parameters]
        yield _table(("parameter", "in", "type", "required", "meaning"), rows)
    if body is None:
        yield f"<h3>Example</h3><pre>{escape(_curl_get(base + path, parameters, secured=secured))}</pre>"
    yield "<h3>Answers</h3>"
    yield _answers(operation["responses"])


def _parameter(item: dict[str, Any]) -> tuple[str, ...]:
    schema = item["schema"]
    meaning = _meaning({**schema, "description": item["description"]})
    if "default" in schema:
        meaning += f" {escape(str(schema['default']))} if not sent."
    required = "yes" if item.get("required") else "no"
    return escape(item["name"]), item["in"], _type(schema), required, meaning


def _curl_get(url: str, parameters: Sequence[dict[str, Any]], *, secured: bool) -> str:
    query = []
    for item in parameters:
        value = quote(str(item.get("example", "")), safe=":,")
        if item["in"] == "path":
            url = url.replace(f"{{{item['name']}}}", value)
        elif "example" in item:
            query.append(f"{item['name']}={value}")
    key = f"{_KEY} " if secured else ""
    return f"curl {key}'{url}?{'&'.join(query)}'" if query else f"curl {key}'{url}'"


def _curl_post(url: str, value: dict[str, Any], *, secured: bool) -> str:
    body = json.dumps(value, indent=2)
    key = f"{_KEY} \\\n  " if secured else ""
    return f"curl -i {url} \\\n  {key}-H 'Content-Type: application/json' \\\n  -d '{body}'"


def _answers(responses: dict[str, Any]) -> str:
    rows = []
    for status, response in responses.items():
        kind = "good" if status.startswith("2") else "bad"
        (body,) = response["content"].values()
        schema = body["schema"]["$ref"]
        headers = ", ".join(response.get("headers", {}))
        rows.append(
            f'<tr><td class="{kind}"><code>{escape(status)}</code></td><td>{escape(response["description"])}</td>'
            f"<td>{_link(schema)}</td><td>{escape(headers)}</td></tr>"
        )
    head = "<tr><th>status</th><th>meaning</th><th>body</th><th>headers</th></tr>"
    return f'<div class="scroll"><table>{head}{"".join(rows)}</table></div>'


def _schema(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield f'<h2 id="{escape(name)}">{escape(name)}</h2>'
    if "properties" not in schema:
        yield f"<p>{_meaning(schema)}</p>"
        return
    yield f"<p>{escape(schema['description'])}</p>"
    required = schema.get("required", ())
    rows = [
        (escape(field), _type(shape), "yes" if field in required else "no", _meaning(shape))
        for field, shape in schema["properties"].items()
    ]
    yield _table(("field", "type", "required", "meaning"), rows)


def _meaning(shape: dict[str, Any]) -> str:
    parts = [shape.get("description", "")]
    values = shape.get("enum", ())
    if values:
        parts.append(f"{'Always' if len(values) == 1 else 'One of:'} {', '.join(map(str, values))}.")
    for least, most, unit in (("minimum", "maximum", ""), ("minLength", "maxLength", " characters")):
        bounds = [f"{text} {shape[key]}" for text, key in (("at least", least), ("at most", most)) if key in shape]
        if bounds:
            parts.append(f"{', '.join(bounds).capitalize()}{unit}.")
    return escape(" ".join(part for part in parts if part))


def _type(shape: dict[str, Any]) -> str:
    """Return a schema's type as HTML, with links to the schemas it refers to."""
    if not shape:
        return "any"
    if "anyOf" in shape:
        return " or ".join(_type(item) for item in shape["anyOf"])
    if "$ref" in shape:
        return _link(shape["$ref"])
    if "items" in shape:
        return f"array of {_type(shape['items'])}"
    return escape(str(shape.get("type", "string")))


def _link(reference: str) -> str:
    name = escape(reference.rpartition("/")[2])
    return f'<a href="#{name}">{name}</a>'


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Build a table from cells that are HTML already."""
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    lines = "".join(
        f"<tr><td><code>{first}</code></td>{''.join(f'<td>{cell}</td>' for cell in rest)}</tr>" for first, *rest in rows
    )
    return f'<div class="scroll"><table><tr>{head}</tr>{lines}</table></div>'
