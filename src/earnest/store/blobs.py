"""Where the bytes of artifacts are: one protocol, and the place that a setting names.

A place keeps bytes under names and knows nothing else; which of them are somebody's is the
database's to say. There are two kinds of place: a folder (`blobs_folder.py`), and a bucket
(`blobs_bucket.py`).
"""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from earnest.domain.artifact import BlobKey
from earnest.domain.errors import EarnestError, SettingInvalid

FOLDER = "artifacts"
_SCOPE = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
_PATH = re.compile(rf"({_SCOPE.pattern})/([0-9a-f]{{2}})/([0-9a-f]{{32}})")


class BlobMissing(EarnestError):
    """Stored bytes are not where they were put."""

    code = "blob_missing"


@dataclass(frozen=True, slots=True)
class Listed:
    """Something that lies in a place. `key` is `None` for what nobody here would have put there.
    `modified_at` is the place's own word."""

    path: str
    key: BlobKey | None
    modified_at: datetime


class Blobs(Protocol):
    """A place for bytes. What it cannot do now raises `StorageUnavailable`, and then nothing was
    done by halves."""

    @property
    def told(self) -> str:
        """Where it is, for people; without secrets."""

    async def write(self, key: BlobKey, pieces: AsyncIterable[bytes]) -> None:
        """Stores all pieces, or nothing: whatever `pieces` raises is raised on, and a reader never
        sees a part. Once it returns, the bytes survive a loss of power."""

    def read(self, key: BlobKey, start: int, end: int) -> AsyncIterator[bytes]:
        """The bytes from `start` to before `end`, in chunks. Raises `BlobMissing`."""

    async def remove(self, key: BlobKey) -> None:
        """Takes the bytes away, also of a write that was broken off. Harmless when repeated."""

    async def size(self, key: BlobKey) -> int | None:
        """How many bytes there are; `None` for nothing."""

    def pages(self) -> AsyncIterator[list[Listed]]:
        """All that lies there, page by page."""

    async def remove_listed(self, found: Listed) -> None:
        """Takes away what a listing told of. Harmless when repeated."""

    async def mark(self, name: str) -> None:
        """Leaves an empty thing of that name. Harmless when repeated."""

    async def marks(self, prefix: str) -> list[str]:
        """The names of marks that begin so."""

    async def probe(self) -> None:
        """Writes, reads and removes something small. Raises `StorageUnavailable`."""


def path_of(key: BlobKey) -> str:
    """Where a blob lies in any place, such as `demo/3f/018f…3f`. Raises for a scope whose name is
    no name of a folder; such scopes have no artifacts."""
    if not _SCOPE.fullmatch(key.scope_id):
        raise SettingInvalid(f"the scope {key.scope_id[:80]!r} cannot have artifacts")
    name = key.blob_id.hex
    # The end of a name is random; its beginning is the time.
    return f"{key.scope_id}/{name[-2:]}/{name}"


def key_at(path: str) -> BlobKey | None:
    """Whose bytes lie at a path; `None` if none of ours would."""
    match = _PATH.fullmatch(path)
    if match is None or match[3][-2:] != match[2]:
        return None
    return BlobKey(match[1], uuid.UUID(hex=match[3]))


def open_blobs(setting: str | None, home: Path) -> Blobs:
    """The place that a setting names: nothing for the folder under `home`, a folder's path, or
    `s3://bucket/prefix`. Nothing is made or asked before its first use. Raises `SettingInvalid`."""
    if setting and setting.startswith("s3://"):
        from earnest.store.blobs_bucket import open_bucket

        return open_bucket(setting)
    if setting and "://" in setting:
        raise SettingInvalid(
            f"EARNEST_ARTIFACTS is {setting.partition('://')[0]}://…; write s3://bucket/prefix or "
            "the path of a folder"
        )
    from earnest.store.blobs_folder import FolderBlobs

    return FolderBlobs(Path(setting).expanduser() if setting else home / FOLDER)
