"""Renders an OpenAPI document as one page of HTML without scripts."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from earnest.doors.api.codes import CODES

_STYLE = """
:root{color-scheme:light dark;--line:#8884;--soft:#8882;
--quiet:color-mix(in srgb,currentColor 65%,transparent)}
body{font:14px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
code,pre{font:13px/1.5 ui-monospace,monospace}
h2{margin-top:2.5rem;text-transform:capitalize}
details{border-top:1px solid var(--line);padding:.5rem 0}
summary{cursor:pointer;display:flex;gap:.75rem;flex-wrap:wrap}
summary b{min-width:3rem}
summary span,.quiet{color:var(--quiet)}
table{border-collapse:collapse;margin:.5rem 0 1rem}
td{padding:.15rem 1rem .15rem 0;vertical-align:top}
pre{background:var(--soft);padding:.75rem;border-radius:6px;overflow:auto}
"""

_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
CONTENT_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; frame-ancestors 'none'"
)

_MAX_DEPTH = 4


def render(document: Mapping[str, Any]) -> str:
    """The whole page."""
    schemas = document["components"]["schemas"]
    info = document["info"]
    title = f"{info['title']} {info['version']}"
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width,initial-scale=1'>",
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        f"<h1>{escape(title)}</h1><p>{_prose(info['description'])}</p>",
        "<p>For programs: <a href=/openapi.json>openapi.json</a></p>",
    ]
    for noun, calls in _by_noun(document).items():
        parts.append(f"<h2>{escape(noun)}</h2>")
        parts += [_call(method, path, call, schemas) for method, path, call in calls]
    return "\n".join([*parts, "<h2>Problems</h2>", *(_problem(name) for name in CODES)])


def _problem(name: str) -> str:
    """Where the `type` of a problem leads."""
    code = CODES[name]
    return (
        f"<h3 id='problem-{name}'><code>{name}</code> {code.status}</h3>"
        f"<p>{_prose(code.title)}. {_prose(code.when)}</p><p>{_prose(code.then)}</p>"
    )


def _by_noun(document: Mapping[str, Any]) -> dict[str, list[tuple[str, str, Any]]]:
    found: dict[str, list[tuple[str, str, Any]]] = {}
    for path, methods in document["paths"].items():
        for method, call in methods.items():
            found.setdefault(call["tags"][0], []).append((method.upper(), path, call))
    return found


def _who(security: list[dict[str, list[str]]]) -> str:
    if any("signature" in one for one in security):
        return "Signed with the secret of the source; no token."
    roles = [role for one in security for role in one["token"]]
    return f"Roles: {' or '.join(roles)}." if roles else "Open to everybody."


def _call(method: str, path: str, call: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    who = _who(call.get("security", []))
    body = call.get("requestBody", {}).get("content", {}).get("application/json", {})
    return "".join(
        [
            f"<details><summary><b>{method}</b> <code>{escape(path)}</code> ",
            f"<span>{escape(call['summary'])}</span></summary>",
            f"<p>{_prose(call.get('description', ''))}</p><p class=quiet>{who}</p>",
            _table(_parameters(call)),
            f"<p>Body</p><pre>{_shape(body['schema'], schemas)}</pre>" if body else "",
            "<p>Answers</p>",
            _table(_answers(call)),
            *_good_bodies(call, schemas),
            "</details>",
        ]
    )


def _parameters(call: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for one in call.get("parameters", []):
        needed = "required" if one.get("required") else ""
        yield (
            f"<code>{escape(one['name'])}</code>",
            one["in"],
            needed,
            _prose(one.get("description", "")),
        )


def _answers(call: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for status, answer in sorted(call["responses"].items()):
        codes = answer.get("$ref", "").rpartition("/")[2].split(".")
        told = [f"<a href='#problem-{code}'>{code}</a>" for code in codes if code]
        yield escape(status), ", ".join(told) or _prose(answer.get("description", ""))


def _good_bodies(call: Mapping[str, Any], schemas: Mapping[str, Any]) -> Iterator[str]:
    for status, answer in call["responses"].items():
        schema = answer.get("content", {}).get("application/json", {}).get("schema")
        if status.startswith("2") and schema:
            yield f"<p>Body of {status}</p><pre>{_shape(schema, schemas)}</pre>"


def _shape(schema: Mapping[str, Any], schemas: Mapping[str, Any], depth: int = 0) -> str:
    """A schema in the manner of JSON: names and types instead of values."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return _shape(schemas[name], schemas, depth) if depth < _MAX_DEPTH else escape(name)
    if "anyOf" in schema:
        return " | ".join(_shape(one, schemas, depth) for one in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return " | ".join(escape(repr(value).replace("'", '"')) for value in values)
    if schema.get("type") == "array":
        return f"[{_shape(schema.get('items', {}), schemas, depth)}, …]"
    if "properties" in schema:
        return _members(schema, schemas, depth)
    return escape(str(schema.get("format") or schema.get("type") or "any"))


def _members(schema: Mapping[str, Any], schemas: Mapping[str, Any], depth: int) -> str:
    indent, needed = "  " * (depth + 1), schema.get("required", [])
    lines = [
        f"{indent}{escape(name)}{'' if name in needed else '?'}: {_shape(one, schemas, depth + 1)}"
        for name, one in schema["properties"].items()
    ]
    return "{\n" + "\n".join(lines) + "\n" + "  " * depth + "}"


def _table(rows: Iterator[tuple[str, ...]]) -> str:
    cells = ("".join(f"<td>{cell}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f"<table>{body}</table>" if body else ""


def _prose(text: str) -> str:
    """Escaped text; what stands in backquotes is code."""
    pieces = escape(text).split("`")
    return "".join(
        f"<code>{piece}</code>" if number % 2 else piece for number, piece in enumerate(pieces)
    )
