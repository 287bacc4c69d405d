"""The bodies of answers about artifacts; see `shapes.py`."""

from __future__ import annotations

from datetime import datetime

from typing_extensions import TypedDict


class ArtifactLinks(TypedDict):
    self: str
    content: str
    run: str | None


class Artifact(TypedDict):
    """A file. `sha256` is in hexadecimal digits, and the `ETag` of its content; `expires_at` is
    null for one that stays as long as its run."""

    id: str
    name: str
    media_type: str
    size: int
    sha256: str
    run_id: str | None
    created_at: datetime
    expires_at: datetime | None
    links: ArtifactLinks


class ArtifactPage(TypedDict):
    items: list[Artifact]
    next_cursor: str | None


class ArtifactQuota(TypedDict):
    """The room of a scope; equal bytes count once. `is_default`: nobody set it."""

    scope_id: str
    used_bytes: int
    quota_bytes: int
    is_default: bool
