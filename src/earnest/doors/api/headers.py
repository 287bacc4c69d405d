"""The headers that a caller steers with, read strictly: keys, versions, places, traces, wanted
media. What is said once and comes twice is refused (`one`)."""

from __future__ import annotations

import re

from starlette.datastructures import Headers

from earnest.domain.errors import InvalidRequest, PreconditionRequired

MAX_KEY = 255

_QUOTED = re.compile(r'"((?:[^"\\]|\\["\\])*)"')
_RANGE = re.compile(r'(?:[^,"]|"(?:[^"\\]|\\.)*")+')
_WEIGHT = re.compile(r"0(\.[0-9]{0,3})?|1(\.0{0,3})?")
_VERSION = re.compile(r'"?([0-9]{1,9})"?')
_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)


def one(headers: Headers, name: str) -> str | None:
    """The header's value. Raises `InvalidRequest` for two: nobody knows which was meant."""
    given = headers.getlist(name)
    if len(given) > 1:
        raise InvalidRequest(f"there are two {name} headers; send one")
    return given[0] if given else None


def last_event_id(headers: Headers) -> str | None:
    """The place that a client names by itself when it comes again. Raises `InvalidRequest`."""
    return one(headers, "Last-Event-ID")


def idempotency_key(headers: Headers) -> str | None:
    """The key, bare or quoted: `order-17` and `"order-17"` are the same one. Raises
    `InvalidRequest` for two headers, an empty or a too long key."""
    given = one(headers, "Idempotency-Key")
    if given is None:
        return None
    key = _unquoted(given.strip())
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
    given = one(headers, "If-Match")
    if given is None:
        return None
    if given.strip() == "*":
        raise PreconditionRequired("If-Match must name the version that you looked at, not `*`")
    match = _VERSION.fullmatch(given.strip())
    return int(match[1]) if match else -1


def traceparent(headers: Headers) -> str | None:
    """The caller's trace (W3C Trace Context); a malformed one is as good as none."""
    given = headers.getlist("traceparent")
    return given[0] if len(given) == 1 and _TRACEPARENT.fullmatch(given[0]) else None


def wants_stream(headers: Headers) -> bool:
    """Whether a stream is rather wanted than a page (RFC 9110, *Accept*). Wanted alike, it is the
    stream for who names it, and the page for who takes anything."""
    ranges = [_range(one) for given in headers.getlist("accept") for one in _RANGE.findall(given)]
    stream, named = _quality(ranges, "text", "event-stream")
    page, _ = _quality(ranges, "application", "json")
    return stream > 0 and (stream > page or (stream == page and named))


def _range(text: str) -> tuple[str, float]:
    """A media range without its parameters, and its quality; one that cannot be is not wanted."""
    media, *parameters = (part.strip().lower() for part in text.split(";"))
    weights = [part.removeprefix("q=") for part in parameters if part.startswith("q=")]
    if not weights:
        return media, 1.0
    return media, float(weights[0]) if _WEIGHT.fullmatch(weights[0]) else 0.0


def _quality(ranges: list[tuple[str, float]], main: str, sub: str) -> tuple[float, bool]:
    """How much a media type is wanted: what the closest range says. And whether that names it."""
    for media in (f"{main}/{sub}", f"{main}/*", "*/*"):
        found = [quality for named, quality in ranges if named == media]
        if found:
            return max(found), media.endswith(sub)
    return 0.0, False


def _unquoted(text: str) -> str:
    if not text.startswith('"'):
        return text
    match = _QUOTED.fullmatch(text)
    if match is None:
        raise InvalidRequest("Idempotency-Key begins with a quote and does not end with one")
    return re.sub(r"\\(.)", r"\1", match[1])
