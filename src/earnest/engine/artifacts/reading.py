"""Reading: an artifact as somebody may see it, and its bytes, each piece checked before it leaves.

Bytes rot, and places lose them. A piece whose hash is not the stored one is not handed out: the
reading ends there, the log says so, and a doctor finds it.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass

from earnest.domain import ids
from earnest.domain.artifact import PIECE_BYTES, Artifact, BlobKey, Content
from earnest.domain.errors import EarnestError, NotFound
from earnest.engine.artifacts.measuring import in_pieces
from earnest.engine.artifacts.places import place_of
from earnest.engine.process.actors import Actor
from earnest.engine.process.engine import Engine
from earnest.engine.process.logs import get_logger
from earnest.store import artifacts
from earnest.store.blobs import BlobMissing
from earnest.store.visible import Sight

log = get_logger("earnest.artifacts")


class ArtifactDamaged(EarnestError):
    """The stored bytes are not those that were brought."""

    code = "artifact_damaged"


async def find(engine: Engine, actor: Actor, artifact_id: uuid.UUID) -> Artifact:
    """The artifact, if it is the actor's or the actor is an operator. Raises `NotFound`."""
    found = await artifacts.find(engine.database, actor.scope_id, artifact_id, actor.sees_only())
    if found is None:
        raise NotFound("no such artifact, or not this actor's to see")
    return found


async def list_artifacts(
    engine: Engine, actor: Actor, before: uuid.UUID | None, limit: int
) -> list[Artifact]:
    """A page of what the actor may see, newest first."""
    return await artifacts.listed(engine.database, actor.scope_id, actor.sees_only(), before, limit)


async def of_run(
    engine: Engine, sight: Sight, after: uuid.UUID | None, limit: int
) -> list[Artifact]:
    """A page of a run's, oldest first; none where the run may not be seen."""
    return await artifacts.of_run(engine.database, sight, after, limit)


@dataclass(frozen=True, slots=True)
class OpenArtifact:
    """An artifact whose bytes can be read, any number of times."""

    engine: Engine
    artifact: Artifact
    key: BlobKey
    content: Content

    async def read(self) -> bytes:
        """All of it; for what is known to be small."""
        return b"".join([piece async for piece in self.stream()])

    async def stream(self, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """The bytes from `start` to before `end`. Raises `ArtifactDamaged` instead of a piece that
        is not what was stored, and `NotFound` if the artifact was deleted meanwhile."""
        end = self.content.size if end is None else min(end, self.content.size)
        if start >= end:
            return
        number = start // PIECE_BYTES
        at = number * PIECE_BYTES
        until = min(-(-end // PIECE_BYTES) * PIECE_BYTES, self.content.size)
        try:
            async for piece in in_pieces(place_of(self.engine).read(self.key, at, until)):
                await self._check(piece, number)
                yield piece[max(start - at, 0) : end - at]
                number, at = number + 1, at + len(piece)
        except BlobMissing as error:
            raise await self._missing(error) from error
        if at < until:
            raise self._damaged("it is shorter than it was", number)

    async def _check(self, piece: bytes, number: int) -> None:
        found = await asyncio.to_thread(lambda: hashlib.sha256(piece).digest())
        if found != self.content.piece_hash(number):
            raise self._damaged("it has changed", number)

    async def _missing(self, error: BlobMissing) -> EarnestError:
        asked = (self.artifact.scope_id, self.artifact.artifact_id)
        if await artifacts.find(self.engine.database, *asked) is None:
            return NotFound("the artifact was deleted")
        return self._damaged(error.detail, 0)

    def _damaged(self, why: str, number: int) -> ArtifactDamaged:
        shown = ids.show("art", self.artifact.artifact_id)
        log.warning("artifact.damaged", artifact_id=shown, why=why, at=number * PIECE_BYTES)
        return ArtifactDamaged(f"the bytes of {shown} are damaged: {why}")


async def open_artifact(engine: Engine, found: Artifact) -> OpenArtifact:
    """Its bytes as they were stored. Raises `NotFound` if it was deleted meanwhile."""
    content = await artifacts.content(engine.database, found.scope_id, found.artifact_id)
    if content is None:
        raise NotFound("the artifact was deleted")
    return OpenArtifact(engine, found, *content)


async def open_for_run(
    engine: Engine, scope_id: str, principal_id: str, artifact_id: uuid.UUID
) -> OpenArtifact:
    """As a run's handler may read it: what its principal may see. Raises `NotFound`."""
    found = await artifacts.find_for_run(engine.database, scope_id, artifact_id, principal_id)
    if found is None:
        raise NotFound(
            f"{ids.show('art', artifact_id)} is not there, or not the run's principal's to read"
        )
    return await open_artifact(engine, found)
