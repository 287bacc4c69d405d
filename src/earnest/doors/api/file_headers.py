"""The headers of files, in and out: names, digests, ranges, tags (RFC 6266, 9110, 9530)."""

from __future__ import annotations

import base64
import binascii
import re
from email.message import Message
from urllib.parse import quote

from starlette.datastructures import Headers

from earnest.domain.artifact import HASH_BYTES
from earnest.domain.errors import InvalidRequest

_DIGEST = re.compile(r"(?:^|,)\s*sha-256\s*=\s*([^,;]*)", re.IGNORECASE)
_RANGE = re.compile(r"bytes\s*=\s*(\d{0,18})-(\d{0,18})", re.IGNORECASE)
_TAG = re.compile(r'(?:W/)?("[^"]*")')


def sent_name(headers: Headers) -> str | None:
    """The name that `Content-Disposition` gives the body, without folders."""
    given = headers.get("content-disposition")
    if given is None:
        return None
    message = Message()
    message["Content-Disposition"] = given
    name = message.get_filename()
    return None if not name else name.replace("\\", "/").rpartition("/")[2]


def sent_digest(headers: Headers) -> bytes | None:
    """The SHA-256 that `Content-Digest`, `Repr-Digest` or the older `Digest` announces; other
    algorithms say nothing to us. Raises `InvalidRequest` for what is none."""
    found = set()
    for name in ("content-digest", "repr-digest", "digest"):
        match = _DIGEST.search(",".join(headers.getlist(name)))
        if match is not None:
            found.add(_decoded(match[1].strip().strip(":")))
    if len(found) > 1:
        raise InvalidRequest("the digests that were sent contradict each other")
    return found.pop() if found else None


def _decoded(text: str) -> bytes:
    try:
        digest = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        digest = b""
    if len(digest) != HASH_BYTES:
        raise InvalidRequest(
            "a digest reads `Content-Digest: sha-256=:BASE64:`, with the 32 bytes of a SHA-256"
        )
    return digest


def sent_length(headers: Headers) -> int | None:
    """The announced number of bytes. Raises `InvalidRequest` for what is no number."""
    given = headers.get("content-length")
    if given is None:
        return None
    if not (given.isascii() and given.isdigit()) or len(given) > 18:
        raise InvalidRequest("Content-Length is a number of bytes")
    return int(given)


def tag_of(sha256: bytes) -> str:
    return f'"{sha256.hex()}"'


def is_known(headers: Headers, tag: str) -> bool:
    """Whether the caller has it already (`If-None-Match`)."""
    given = ",".join(headers.getlist("if-none-match"))
    return given.strip() == "*" or tag in _TAG.findall(given)


def wanted_range(headers: Headers, tag: str, size: int) -> tuple[int, int] | None:
    """From where to before where; `None` for the whole. Several ranges, other units, and a range of
    what the caller had before (`If-Range`) are answered with the whole. Raises `Unsatisfiable`."""
    match = _RANGE.fullmatch(headers.get("range", "").strip())
    if match is None or headers.get("if-range", tag).strip() != tag:
        return None
    first, last = match[1], match[2]
    if not first and not last:
        return None
    start = int(first) if first else max(size - int(last), 0)
    end = min(int(last) + 1, size) if first and last else size
    if first and last and int(last) < start:
        return None
    if start >= size or (not first and int(last) == 0):
        raise Unsatisfiable
    return start, end


class Unsatisfiable(Exception):
    """No byte of the range is there."""


def attachment(name: str) -> str:
    """`Content-Disposition`: kept and not shown, under its name, also where that is not ASCII."""
    plain = name.encode("ascii", "replace").decode().replace("?", "_")
    plain = re.sub(r'["\\%]', "_", plain)
    if plain == name:
        return f'attachment; filename="{plain}"'
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"


def repr_digest(sha256: bytes) -> str:
    return f"sha-256=:{base64.b64encode(sha256).decode()}:"
