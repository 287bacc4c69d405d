"""An artifact: a file that a run made or that somebody brought, known by its content.

Its content is kept once for each scope, as a *blob*; artifacts of the same bytes share it. A blob
is `arriving` while its bytes are on their way, `stored` once an artifact names it, and `discarded`
from the moment on that none does: its bytes are removed then, and its name is never used again.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from earnest.domain.canonical import storable
from earnest.domain.errors import InvalidRequest

PIECE_BYTES = 1024 * 1024
"""Content is written, checked and read in pieces of this size; only the last one is smaller."""
HASH_BYTES = 32
MAX_ARTIFACT_BYTES = 5 * 1024**3
DEFAULT_QUOTA = 10 * 1024**3
"""Bytes of a scope that nobody gave another quota."""
KEPT = timedelta(days=30)
"""How long an artifact that belongs to no run is kept, unless it is said otherwise."""
KEY_KEPT = timedelta(hours=24)
"""So long after its making an artifact's idempotency key is remembered, if it is deleted before."""

MAX_NAME = 255
MAX_MEDIA_TYPE = 200
DEFAULT_MEDIA_TYPE = "application/octet-stream"

_WORD = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
_PARAMETER = rf'{_WORD}=(?:{_WORD}|"(?:[ !#-\[\]-~]|\\[ -~])*")'
_MEDIA_TYPE = re.compile(rf"{_WORD}/{_WORD}(?:[ \t]*;[ \t]*(?:{_PARAMETER})?)*")


class BlobState(StrEnum):
    ARRIVING = "arriving"
    STORED = "stored"
    DISCARDED = "discarded"


@dataclass(frozen=True, slots=True)
class BlobKey:
    """The name of stored bytes; it is given once and never again."""

    scope_id: str
    blob_id: uuid.UUID


@dataclass(frozen=True, slots=True)
class Content:
    """What bytes are: their number, the SHA-256 of all of them, and one after the other those of
    each piece, so that also a part can be checked before it is handed out."""

    size: int
    sha256: bytes
    pieces: bytes

    def piece_hash(self, number: int) -> bytes:
        return self.pieces[number * HASH_BYTES : (number + 1) * HASH_BYTES]


@dataclass(frozen=True, slots=True)
class Artifact:
    """`principal_id` brought it; `owner_id` is who its run belongs to, and who brought it where
    there is no run. `expires_at`: never before its run has ended; `None`: as long as its run."""

    scope_id: str
    artifact_id: uuid.UUID
    run_id: uuid.UUID | None
    principal_id: str
    owner_id: str
    name: str
    media_type: str
    size: int
    sha256: bytes
    created_at: datetime
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class ArtifactRef:
    """What a handler has of an artifact, and may put into outputs and inputs: `id` is the TypeID,
    `sha256` in hexadecimal digits."""

    id: str
    name: str
    media_type: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Room:
    """How much of a scope's room is taken. `given`: somebody set its quota; else it is the
    default's."""

    used: int
    quota: int
    given: bool

    @property
    def left(self) -> int:
        return max(self.quota - self.used, 0)


def checked_name(name: str) -> str:
    """The name. Raises `InvalidRequest` for what is no name of a file."""
    fits = 1 <= len(name) <= MAX_NAME and storable(name) and name.isprintable()
    if not fits or "/" in name or "\\" in name or name in (".", ".."):
        raise InvalidRequest(
            f"an artifact's name has 1 to {MAX_NAME} printable characters and no slash"
        )
    return name


def checked_media_type(media_type: str) -> str:
    """The media type as it is kept. Raises `InvalidRequest` for what is none."""
    told = media_type.strip()
    if len(told) > MAX_MEDIA_TYPE or not _MEDIA_TYPE.fullmatch(told):
        raise InvalidRequest(
            "a media type looks like image/png or text/plain; charset=utf-8, and has at most "
            f"{MAX_MEDIA_TYPE} characters"
        )
    essence, mark, rest = told.partition(";")
    return essence.strip().lower() + mark + rest
