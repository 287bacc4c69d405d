"""What an answer is made of beside its body, for the OpenAPI document: headers and problems.

Every answer with the same header, and every refusal with the same codes, is the same component of
the document.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from earnest.doors.api.codes import CODES, type_of

MEDIA_TYPE = "application/problem+json"
REQUEST_ID = "0b9f7f8c6f4e4c5d9d3a1c2e3f405162"

_OPTIONAL = frozenset({"Idempotency-Replayed", "Retry-After", "Content-Range"})
_TEXT = {"type": "string"}
_TAG = {"type": "string", "pattern": '^"[^"]+"$', "examples": ['"3"']}

HEADERS: dict[str, tuple[str, dict[str, Any]]] = {
    "X-Request-Id": (
        "Names the request in our logs: the caller's own, where it sent a sane one.",
        {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,128}$", "examples": [REQUEST_ID]},
    ),
    "ETag": ("The version, quoted: what `If-Match` names. Of a file: its SHA-256.", _TAG),
    "Location": (
        "The path of what was made.",
        {
            "type": "string",
            "pattern": "^/v1/",
            "examples": ["/v1/runs/run_01m8pfskc6e458xvnxgwdfa6sq"],
        },
    ),
    "Idempotency-Replayed": (
        "There, and `true`, when this request was done before.",
        {"type": "string", "const": "true"},
    ),
    "Retry-After": (
        "Seconds after which it is worth while to come again.",
        {"type": "integer", "minimum": 0, "examples": [2]},
    ),
    "WWW-Authenticate": ("How to come in.", {**_TEXT, "examples": ['Bearer realm="earnest"']}),
    "Content-Range": (
        "Which bytes these are, of how many.",
        {**_TEXT, "examples": ["bytes 0-9/42"]},
    ),
    "Content-Disposition": (
        "An attachment, under the name of the file.",
        {**_TEXT, "examples": ['attachment; filename="letter.pdf"']},
    ),
    "Repr-Digest": ("The SHA-256 of the whole file (RFC 9530).", _TEXT),
    "Accept-Ranges": ("Ranges of bytes may be asked for.", {"type": "string", "const": "bytes"}),
}
"""What each header says, and its schema. There are no others but those of the transport."""

_OF_STATUS = {401: "WWW-Authenticate", 429: "Retry-After", 503: "Retry-After", 416: "Content-Range"}
"""What a refusal brings along by its status."""


def header_components() -> dict[str, Any]:
    return {
        name: {"description": text, "required": name not in _OPTIONAL, "schema": schema}
        for name, (text, schema) in HEADERS.items()
    }


def headers(names: Iterable[str]) -> dict[str, Any]:
    """References to these headers and to the one that every answer has."""
    told = dict.fromkeys(("X-Request-Id", *names))
    return {name: {"$ref": f"#/components/headers/{name}"} for name in told}


def by_status(codes: Iterable[str]) -> dict[int, list[str]]:
    """The codes under each status, in the order of their list."""
    wanted, found = set(codes), defaultdict(list)
    for name, code in CODES.items():
        if name in wanted:
            found[code.status].append(name)
    return dict(sorted(found.items()))


def problem_name(codes: list[str]) -> str:
    return ".".join(codes)


def problem_component(codes: list[str]) -> dict[str, Any]:
    """The answer that tells one of these codes, all of one status."""
    status = CODES[codes[0]].status
    shape = "ResyncProblem" if codes == ["resync_required"] else "Problem"
    narrowed = {"code": {"enum": codes}, "status": {"const": status}}
    schema = {
        "allOf": [{"$ref": f"#/components/schemas/{shape}"}, {"properties": narrowed}],
    }
    shown = {code: {"value": example(code)} for code in codes}
    return {
        "description": "; ".join(f"`{code}`: {CODES[code].title}" for code in codes),
        "headers": headers([_OF_STATUS[status]] if status in _OF_STATUS else []),
        "content": {MEDIA_TYPE: {"schema": schema, "examples": shown}},
    }


def example(code: str) -> dict[str, Any]:
    told = CODES[code]
    shown = {
        "type": type_of(code),
        "title": told.title,
        "status": told.status,
        "detail": told.when,
        "instance": "/v1/runs/run_01m8pfskc6e458xvnxgwdfa6sq",
        "code": code,
        "request_id": REQUEST_ID,
    }
    return {**shown, **_MORE.get(code, {})}


_MORE: dict[str, dict[str, Any]] = {
    "invalid_request": {
        "errors": [
            {
                "in": "body",
                "pointer": "/priority",
                "detail": "Input should be less than or equal to 1000",
                "code": "less_than_equal",
            }
        ]
    },
    "resync_required": {"after_seq": 1, "minimum_retained_seq": 10, "head_seq": 42},
}
