"""Writes `docs/api-contract.md` and `docs/problems.md` from the OpenAPI document and the code.

    python -m scripts.contract_docs

What they say stands in the code: the docstrings of routes and shapes, the sentences of fields,
headers, codes and events. A test fails while the files are not what this would write.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from earnest.domain import errors
from earnest.domain.event import ENGINE_TYPES
from earnest.doors.api.answers import HEADERS
from earnest.doors.api.application import build_api
from earnest.doors.api.codes import CODES
from earnest.doors.api.events_told import EVENTS
from earnest.doors.api.problems import code_of
from earnest.engine.inspection.readiness import Readiness
from earnest.engine.process.engine import Engine
from earnest.store.database import Database

DOCS = Path(__file__).parents[1] / "docs"

HEAD = """# The API's contract

Made by `python -m scripts.contract_docs` from the code; do not edit. The same as a document for
programs: `/openapi.json` (OpenAPI 3.1). What a problem's code means: [problems.md](problems.md).
Who may do what: [who-may-do-what.md](who-may-do-what.md).

## Conventions

* Send `Authorization: Bearer ern_…`. JSON in and out, in UTF-8; a body has at most 1 MiB, is nested
  at most 100 levels deep, and holds no name twice, no NaN, no NUL and no half of a surrogate pair.
  Members and query parameters that the call does not know are refused.
* Ids are TypeIDs, such as `run_01m8pfskc6e458xvnxgwdfa6sq`. Times are RFC 3339 in UTC, with `Z`.
  Spans whose name does not say otherwise are in seconds, sizes in bytes.
* Every answer has `X-Request-Id`: yours, if it has 1 to 128 letters, digits, `.`, `_` or `-`.
* A refusal is `application/problem+json` (RFC 9457). Decide by `code`; it is out of a closed list.
  Every call may answer 413, 500 and 503; every call with a token 400 and 401.
* `Idempotency-Key`, bare or quoted, at most 255 characters: sent again with the same key and body,
  a request is done once, and the answer has `Idempotency-Replayed: true`. Another body: 409
  `idempotency_conflict`. Keys belong to the principal; they live as long as what was made.
* `ETag` is the version, and the body has it as `version`. `If-Match` names the version that you
  looked at: missing where two may decide is 428, stale is 412.
* Lists: `limit` from 1 to 100, 50 without; `cursor` is the `next_cursor` of the page before and is
  good for that list, its filters and whoever sees the same. `next_cursor` is null at the end.
* `traceparent` (W3C Trace Context) is kept with the run and given to its attempts; a malformed one
  is as good as none.
* `HEAD` and `OPTIONS` are answered only where they are listed; else 405 with `Allow`.
* A stream is `text/event-stream` with LF alone. `retry:` says when to come again after it ends.
  Clients pass over frames and members that they do not know.
"""


def document() -> dict[str, Any]:
    """The OpenAPI document; it takes no database to make it."""
    engine = Engine(Database("postgresql://nowhere"))
    made: dict[str, Any] = build_api(engine, ready=lambda: Readiness(True)).openapi()
    return made


# ---- the contract --------------------------------------------------------------------------------


def contract_page(told: dict[str, Any]) -> str:
    parts = [HEAD, "## Headers of answers", "", *_header_rows(), ""]
    for noun, calls in _by_noun(told).items():
        parts += [f"## Calls: {noun}", ""]
        for method, path, call in calls:
            parts += [*_call(method, path, call, told), ""]
    parts += ["## Events", "", *_event_rows(), "", "## Shapes", ""]
    for name, schema in told["components"]["schemas"].items():
        parts += [*_shape(name, schema), ""]
    return "\n".join(parts).rstrip() + "\n"


def _header_rows() -> Iterator[str]:
    yield from ("| header | |", "| --- | --- |")
    for name, (text, _) in HEADERS.items():
        yield f"| `{name}` | {text} |"


def _by_noun(told: dict[str, Any]) -> dict[str, list[tuple[str, str, Any]]]:
    found: dict[str, list[tuple[str, str, Any]]] = {}
    for path, methods in told["paths"].items():
        for method, call in methods.items():
            found.setdefault(call["tags"][0], []).append((method.upper(), path, call))
    return dict(sorted(found.items()))


def _call(method: str, path: str, call: dict[str, Any], told: dict[str, Any]) -> Iterator[str]:
    yield from (f"### {method} {path}", "", f"{call['summary']}.", "")
    if call.get("description"):
        yield from (call["description"].strip(), "")
    yield from (_who(call.get("security", [])), "")
    if call.get("parameters"):
        yield from ("| sent | in | type | |", "| --- | --- | --- | --- |")
        for one in call["parameters"]:
            needed = "Needed. " if one.get("required") and one["in"] != "path" else ""
            text = f"{needed}{one.get('description', '')}"
            yield f"| `{one['name']}` | {one['in']} | {_type(one['schema'])} | {text} |"
        yield ""
    if "requestBody" in call:
        yield from (_body(call["requestBody"]), "")
    yield from ("| answer | body, codes | headers |", "| --- | --- | --- |")
    for status, answer in call["responses"].items():
        yield f"| {status} | {_answer(answer, told)} | {_headers(answer, told)} |"
    yield from _frames(call)


def _who(security: list[dict[str, list[str]]]) -> str:
    if any("signature" in one for one in security):
        return "No token: signed with the secret of the source (Standard Webhooks)."
    roles = [f"`{role}`" for one in security for role in one["token"]]
    return f"Opened by {' or '.join(roles)}." if roles else "Open to everybody."


def _body(body: dict[str, Any]) -> str:
    (media, content), *_ = body["content"].items()
    needed = "" if body.get("required") else ", which may be left out"
    shown = _type(content.get("schema", {})) if media == "application/json" else f"`{media}`"
    return f"Body: {shown}{needed}. {body.get('description', '')}".strip()


def _answer(answer: dict[str, Any], told: dict[str, Any]) -> str:
    if "$ref" in answer:
        codes = answer["$ref"].rpartition("/")[2].split(".")
        return ", ".join(f"[`{code}`](problems.md#{code})" for code in codes)
    shown = [
        _type(content.get("schema", {})) if media == "application/json" else f"`{media}`"
        for media, content in answer.get("content", {}).items()
    ]
    return f"{answer['description']}: {', or '.join(shown)}" if shown else answer["description"]


def _headers(answer: dict[str, Any], told: dict[str, Any]) -> str:
    if "$ref" in answer:
        answer = told["components"]["responses"][answer["$ref"].rpartition("/")[2]]
    return ", ".join(f"`{name}`" for name in answer["headers"] if name != "X-Request-Id")


def _frames(call: dict[str, Any]) -> Iterator[str]:
    for answer in call["responses"].values():
        content = answer.get("content", {}).get("text/event-stream")
        if content is not None:
            yield from ("", "Frames of the stream:", "")
            yield from ("| event | id | data | |", "| --- | --- | --- | --- |")
            for name, frame in content["x-frames"].items():
                shown = "(no `event:` line)" if name == "message" else f"`{name}`"
                has_id = "a place to go on from" if frame["id"] else ""
                yield f"| {shown} | {has_id} | {_type(frame['data'])} | {frame['description']} |"
            yield from ("", "```text", content["example"].rstrip(), "```")


# ---- shapes --------------------------------------------------------------------------------------


def _shape(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield from (f"### {name}", "")
    if schema.get("description"):
        yield from (schema["description"], "")
    if "properties" not in schema:
        yield f"{_type(schema)}."
        return
    yield from ("| field | type | |", "| --- | --- | --- |")
    for field, part in schema["properties"].items():
        sometimes = "" if field in schema.get("required", ()) else "May be missing. "
        default = f" Without it: `{json.dumps(part['default'])}`." if part.get("default") else ""
        yield f"| `{field}` | {_type(part)} | {sometimes}{part.get('description', '')}{default} |"


_BOUNDS = {
    "minimum": "from {}", "maximum": "to {}", "minLength": "at least {} characters",
    "maxLength": "at most {} characters", "minItems": "at least {}", "maxItems": "at most {}",
    "format": "{}",
}  # fmt: skip


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(one) for one in schema["anyOf"]))
    if "const" in schema or "enum" in schema:
        values = schema.get("enum", [schema.get("const")])
        return ", ".join(f"`{json.dumps(value)}`" for value in values)
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}{_bounds(schema)}"
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_type(schema['additionalProperties'])}"
    return f"{schema.get('type', 'any JSON')}{_bounds(schema)}"


def _bounds(schema: dict[str, Any]) -> str:
    told = [text.format(schema[key]) for key, text in _BOUNDS.items() if key in schema]
    if "pattern" in schema:
        told.append(f"`{schema['pattern']}`".replace("|", "\\|"))
    return f" ({', '.join(told)})" if told else ""


def _event_rows() -> Iterator[str]:
    yield from ("| type | when | payload |", "| --- | --- | --- |")
    for name, (when, members) in EVENTS.items():
        shown = ", ".join("…" if one == "*" else f"`{one}`" for one in members)
        yield f"| `{name}` | {when} | {shown} |"
    later = sorted(ENGINE_TYPES - set(EVENTS))
    yield from (
        "",
        f"Kept for the engine, and not told yet: {', '.join(f'`{one}`' for one in later)}.",
    )
    yield "Apps add types of their own, dotted too. A `?` marks what is not always there."


# ---- problems ------------------------------------------------------------------------------------


PROBLEMS = """# Problems

Made by `python -m scripts.contract_docs` from the code; do not edit. Every refusal is a document
like this (RFC 9457), with the media type `application/problem+json`:

```json
{example}
```

`code` is stable and out of the list below; `type` leads to its explanation on the server that told
it. `detail` is for people and may change. `reason` is a finer code where there is one.
"""


def problems_page(told: dict[str, Any]) -> str:
    shown = told["components"]["responses"]["invalid_request"]["content"]
    example = shown["application/problem+json"]["examples"]["invalid_request"]["value"]
    parts = [PROBLEMS.format(example=json.dumps(example, indent=2, ensure_ascii=False))]
    for name, code in CODES.items():
        parts += [f"## {name}", "", f"{code.status}: {code.title}.", "", code.when, "", code.then]
        if code.members:
            parts += ["", f"Members: {', '.join(f'`{one}`' for one in code.members)}."]
        parts.append("")
    return "\n".join([*parts, *_reasons()])


def _reasons() -> Iterator[str]:
    yield from ("## Finer reasons", "", "| reason | under | |", "| --- | --- | --- |")
    for error in sorted(_finer(errors.EarnestError), key=lambda one: one.code):
        yield f"| `{error.code}` | [`{code_of(error)}`](#{code_of(error)}) | {error.title()}. |"
    yield ""


def _finer(error: type[errors.EarnestError]) -> Iterator[type[errors.EarnestError]]:
    """Errors of the engine that a caller may hear under a code of the list."""
    for one in error.__subclasses__():
        told = one.__module__ == errors.__name__ and one.status < 500
        if told and one.code not in CODES:
            yield one
        yield from _finer(one)


def pages() -> dict[Path, str]:
    told = document()
    return {
        DOCS / "api-contract.md": contract_page(told),
        DOCS / "problems.md": problems_page(told),
    }


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
