"""Filing: the files that a handler makes and reads.

One that was made is remembered like a step. It is stored before its run tells of it, and both in
one transaction under the fence: an attempt that lost its lease adds none (P5).
"""

from __future__ import annotations

import mimetypes
from dataclasses import dataclass
from typing import Any

from earnest.domain import canonical, ids
from earnest.domain.artifact import DEFAULT_MEDIA_TYPE, ArtifactRef
from earnest.domain.duration import Duration, duration
from earnest.engine.artifacts import reading, storing
from earnest.engine.artifacts.attaching import ByAttempt, remembered
from earnest.engine.artifacts.reading import OpenArtifact
from earnest.engine.artifacts.sources import Data, chunks_of
from earnest.engine.artifacts.storing import Upload
from earnest.engine.attempts.recalling import Recalling, kept_beside_steps


@dataclass(eq=False)
class Filing(Recalling):
    """What an attempt does with files."""

    async def artifact(
        self,
        name: str,
        data: Data,
        *,
        media_type: str | None = None,
        kept: Duration | None = None,
        key: str | None = None,
    ) -> ArtifactRef:
        """Stores bytes, a file or what an async iterator gives as an artifact of the run, once
        however many attempts pass here. Without `media_type` it goes by the name. It stays as long
        as its run; with `kept`, so long after it was made, and to the end of the run at least.
        Raises `QuotaExceeded`, `PayloadTooLarge`, `StorageUnavailable`; then nothing is stored."""
        chunks = chunks_of(data)
        kind = media_type or mimetypes.guess_type(name)[0] or DEFAULT_MEDIA_TYPE
        own = kept_beside_steps("artifact", self._name("artifact", name, key))
        digest = canonical.digest(canonical.encode([name, kind]))
        known = await self._remembered(own, digest)
        if known is not None:
            return _as_ref(known.result)
        await self.flush_text()
        self._check_open()
        upload = Upload(
            scope_id=self.scope_id,
            principal_id=self.claimed.principal_id,
            name=name,
            media_type=kind,
            kept=None if kept is None else duration(kept),
        )
        lease = self.engine.settings.lease
        into = ByAttempt(self.claimed, own, digest, lease, self.lease.valid)
        stored = await storing.store(self.engine, upload, chunks, into)
        return _as_ref(remembered(stored.artifact))

    async def open_artifact(self, artifact: ArtifactRef | str) -> OpenArtifact:
        """The bytes of an artifact, by what `artifact` returned or by its id: of this run, or any
        other that the run's principal may see. Raises `NotFound`."""
        self._check_open()
        shown = artifact.id if isinstance(artifact, ArtifactRef) else artifact
        return await reading.open_for_run(
            self.engine, self.scope_id, self.claimed.principal_id, ids.read("art", shown)
        )


def _as_ref(told: dict[str, Any]) -> ArtifactRef:
    return ArtifactRef(
        id=told["artifact_id"],
        name=told["name"],
        media_type=told["media_type"],
        size=told["size"],
        sha256=told["sha256"],
    )
