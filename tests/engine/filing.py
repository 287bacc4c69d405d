"""What tests of artifacts have in their hands: uploads, bytes, and looks at what is there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from earnest.domain.artifact import Artifact
from earnest.engine.artifacts import reading, storing
from earnest.engine.artifacts.storing import Upload
from earnest.engine.process.engine import Engine
from earnest.store.blobs_folder import FolderBlobs

SCOPE = "demo"
DATA = b"a picture " * 300_000  # more than two pieces


def files(place: FolderBlobs) -> list[Path]:
    """The bytes that lie there, whole or in part."""
    return [path for path in place.root.rglob("*") if path.is_file() and "belongs" not in path.name]


async def chunks(data: bytes = DATA, size: int = 70_001) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def upload(**more: Any) -> Upload:
    terms = {"scope_id": SCOPE, "principal_id": "ann", "name": "note.txt"}
    return Upload(**{**terms, "media_type": "text/plain", **more})


async def stored(engine: Engine, data: bytes = DATA, **more: Any) -> Artifact:
    return (await storing.store(engine, upload(**more), chunks(data))).artifact


async def read(engine: Engine, made: Artifact, start: int = 0, end: int | None = None) -> bytes:
    opened = await reading.open_artifact(engine, made)
    return b"".join([piece async for piece in opened.stream(start, end)])


async def blobs(engine: Engine) -> dict[str, int]:
    """How many blobs there are in each state."""
    async with engine.database.connection() as tx:
        rows = await tx.fetch("SELECT state, count(*) FROM blob GROUP BY state")
    return {row["state"]: row["count"] for row in rows}


async def used(engine: Engine, scope_id: str = SCOPE) -> int:
    async with engine.database.connection() as tx:
        found = await tx.fetchval(
            "SELECT used_bytes FROM artifact_room WHERE scope_id = $1", scope_id
        )
    return found or 0
