"""The headers that a caller steers with, read strictly: keys, versions, traces, wanted media."""

from __future__ import annotations

import re

from starlette.datastructures import Headers

from earnest.domain.errors import InvalidRequest, PreconditionRequired

MAX_KEY = 255

_QUOTED = re.compile(r'"((?:[^"\\]|\\["\\])*)"')
_VERSION = re.compile(r'"?([0-9]{1,9})"?')
_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)


def idempotency_key(headers: Headers) -> str | None:
    """The key, bare or quoted: `order-17` and `"order-17"` are the same one. Raises
    `InvalidRequest` for two headers, an empty or a too long key."""
    given = headers.getlist("idempotency-key")
    if not given:
        return None
    if len(given) > 1:
        raise InvalidRequest("there are two Idempotency-Key headers; send one")
    key = _unquoted(given[0].strip())
    if not 1 <= len(key) <= MAX_KEY or not (key.isascii() and key.isprintable()):
        raise InvalidRequest(f"Idempotency-Key has 1 to {MAX_KEY} printable characters of ASCII")
    return key


def required_key(headers: Headers) -> str:
    """As `idempotency_key`; raises `InvalidRequest` without one."""
    key = idempotency_key(headers)
    if key is None:
        raise InvalidRequest(
            "Idempotency-Key is needed: choose a key for this request, and send the same key when "
            "you send it again"
        )
    return key


def expected_version(headers: Headers) -> int | None:
    """The version that `If-Match` names, `None` without one; -1 for a tag that no version has.
    Raises `PreconditionRequired` for `*`, which names none."""
    given = headers.getlist("if-match")
    if not given:
        return None
    if len(given) > 1:
        raise InvalidRequest("there are two If-Match headers; send one")
    if given[0].strip() == "*":
        raise PreconditionRequired("If-Match must name the version that you looked at, not `*`")
    match = _VERSION.fullmatch(given[0].strip())
    return int(match[1]) if match else -1


def traceparent(headers: Headers) -> str | None:
    """The caller's trace (W3C Trace Context); a malformed one is as good as none."""
    given = headers.getlist("traceparent")
    return given[0] if len(given) == 1 and _TRACEPARENT.fullmatch(given[0]) else None


def wants_stream(headers: Headers) -> bool:
    return any("text/event-stream" in given.lower() for given in headers.getlist("accept"))


def _unquoted(text: str) -> str:
    if not text.startswith('"'):
        return text
    match = _QUOTED.fullmatch(text)
    if match is None:
        raise InvalidRequest("Idempotency-Key begins with a quote and does not end with one")
    return re.sub(r"\\(.)", r"\1", match[1])
