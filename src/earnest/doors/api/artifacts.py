"""Artifacts over HTTP: bring a file, look at it, list, delete, and the room there is for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Query, Request
from pydantic import Field
from starlette.responses import Response

from earnest.domain import ids
from earnest.domain.artifact import DEFAULT_MEDIA_TYPE, MAX_NAME, Artifact
from earnest.domain.duration import duration
from earnest.domain.errors import InvalidRequest
from earnest.doors.api import file_headers, headers
from earnest.doors.api.cursors import read_id
from earnest.doors.api.json_bodies import json_answer
from earnest.doors.api.listings import Listing
from earnest.doors.api.parameters import PageQuery, Strict, Text
from earnest.doors.api.problems import UnsupportedMediaType
from earnest.doors.api.routes import KEY_TAKEN, MINE_OR_SCOPES, Answer, Routes, told_header
from earnest.doors.api.shapes_of_artifacts import Artifact as Shape
from earnest.doors.api.shapes_of_artifacts import ArtifactPage, ArtifactQuota
from earnest.doors.api.showing import show_artifact, show_room
from earnest.doors.api.visit import Visit, Visiting
from earnest.engine.artifacts import quotas, reading, removing, storing
from earnest.engine.artifacts.attaching import Alone, Into, ToRun
from earnest.engine.artifacts.storing import Upload
from earnest.engine.process.actors import Role

routes = Routes("artifacts")

Page = Annotated[PageQuery, Query()]

IDLE = 60.0  # seconds without a byte until an upload is given up
NAMELESS = "file"
# At least a minute, at most ten years.
SPAN = (
    "^((6[0-9]|[7-9][0-9]|[1-9][0-9]{2,5})s|[1-9][0-9]{0,5}m"
    "|([1-9][0-9]{0,3}|[1-7][0-9]{4}|8[0-6][0-9]{3}|87[0-5][0-9]{2}|87600)h"
    "|([1-9][0-9]{0,2}|[12][0-9]{3}|3[0-5][0-9]{2}|36[0-4][0-9]|3650)d)$"
)

_MADE = Answer(Shape, 201, headers=("Location", "ETag", "Idempotency-Replayed"))
_TYPE = told_header("Content-Type", "What the bytes are; kept with them.")
_DISPOSITION = told_header("Content-Disposition", "Its `filename` is the name, unless `name` is.")
_DIGEST = told_header("Content-Digest", "`sha-256=:BASE64:`; what comes must have it (RFC 9530).")


class UploadQuery(Strict):
    """What is said of a file beside its bytes. `expires_in` is a span such as `12h` or `7d`."""

    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME)] | None = None
    run_id: Text | None = None
    expires_in: Annotated[str, Field(pattern=SPAN)] | None = None


class QuotaBody(Strict):
    """Bytes; null for the default."""

    quota_bytes: Annotated[int, Field(strict=True, ge=0, le=quotas.MOST)] | None


@routes.post(
    "/v1/artifacts",
    _MADE,
    roles=MINE_OR_SCOPES,
    problems=(400, 404, 409, 413, 415, 429),
    takes=(KEY_TAKEN, _TYPE, _DISPOSITION, _DIGEST),
    takes_file=True,
)
async def bring_artifact(
    visit: Visiting, request: Request, query: Annotated[UploadQuery, Query()]
) -> Response:
    """Bring a file: its bytes are the body, of any type.

    They are stored as they come; when anything is wrong, nothing of them is. With `run_id` it
    belongs to that run, which must not have ended, and is told there as `artifact.created`.
    """
    _refuse_forms(request)
    into, owner_id = await _into(visit, query.run_id)
    upload = Upload(
        scope_id=visit.actor.scope_id,
        principal_id=visit.actor.principal_id,
        owner_id=owner_id,
        name=query.name or file_headers.sent_name(visit.headers) or NAMELESS,
        media_type=visit.headers.get("content-type") or DEFAULT_MEDIA_TYPE,
        key=headers.idempotency_key(visit.headers),
        kept=None if query.expires_in is None else duration(query.expires_in),
        size=file_headers.sent_length(visit.headers),
        sha256=file_headers.sent_digest(visit.headers),
    )
    stored = await storing.store(visit.engine, upload, _body(request), into)
    told = {**_tag(stored.artifact), "Location": show_artifact(stored.artifact)["links"]["self"]}
    if stored.replayed:
        told["Idempotency-Replayed"] = "true"
    return json_answer(show_artifact(stored.artifact), 201, told)


@routes.get("/v1/artifacts", Answer(ArtifactPage), roles=MINE_OR_SCOPES, problems=(400,))
async def list_artifacts(visit: Visiting, query: Page) -> Response:
    """List artifacts, newest first: a member's own, an operator's scope's."""
    listing = Listing(visit, "artifacts", query)
    place = await listing.place()
    before = None if place is None else read_id(place[0])
    found = await reading.list_artifacts(visit.engine, visit.actor, before, listing.rows)
    return json_answer(await listing.page(found, show_artifact, _place))


@routes.get("/v1/artifacts/{artifact_id}", Answer(Shape, headers=("ETag",)), roles=MINE_OR_SCOPES)
async def read_artifact(visit: Visiting, artifact_id: str) -> Response:
    """Read what an artifact is; its bytes are at `links.content`."""
    found = await find_artifact(visit, artifact_id)
    return json_answer(show_artifact(found), headers=_tag(found))


@routes.delete(
    "/v1/artifacts/{artifact_id}", Answer(None, 204), roles=MINE_OR_SCOPES, problems=(409,)
)
async def delete_artifact(visit: Visiting, artifact_id: str) -> Response:
    """Delete an artifact. One that belongs to a run is kept while the run goes on."""
    await removing.delete(visit.engine, visit.actor, ids.read("art", artifact_id))
    return Response(status_code=204)


@routes.get(
    "/v1/runs/{run_id}/artifacts", Answer(ArtifactPage), roles=MINE_OR_SCOPES, problems=(400,)
)
async def list_run_artifacts(visit: Visiting, run_id: str, query: Page) -> Response:
    """List the artifacts of a run, oldest first."""
    run = await visit.run(run_id)
    listing = Listing(visit, "run artifacts", query, run_id=run.run_id.hex)
    place = await listing.place()
    after = None if place is None else read_id(place[0])
    found = await reading.of_run(visit.engine, visit.sight(run), after, listing.rows)
    return json_answer(await listing.page(found, show_artifact, _place))


@routes.get(
    "/v1/artifact-quotas/{scope_id}",
    Answer(ArtifactQuota),
    roles=(Role.OPERATOR, Role.ADMIN),
    seen_by=(Role.OPERATOR, Role.ADMIN),
)
async def read_artifact_quota(visit: Visiting, scope_id: str) -> Response:
    """Read how much room a scope has for artifacts: one's own; the first scope's admins, any."""
    room = await quotas.find_room(visit.engine, visit.actor, scope_id)
    return json_answer(show_room(scope_id, room))


@routes.put(
    "/v1/artifact-quotas/{scope_id}",
    Answer(ArtifactQuota),
    roles=(Role.ADMIN,),
    seen_by=(Role.ADMIN,),
    of_first_scope=True,
    problems=(400, 413, 415),
)
async def set_artifact_quota(visit: Visiting, scope_id: str, body: QuotaBody) -> Response:
    """Set how much room a scope has for artifacts. What it has beyond that stays."""
    room = await quotas.set_quota(visit.engine, visit.actor, scope_id, body.quota_bytes)
    return json_answer(show_room(scope_id, room))


async def find_artifact(visit: Visit, text: str) -> Artifact:
    """The artifact of that id as the actor may see it. Raises `NotFound` for any other text."""
    return await reading.find(visit.engine, visit.actor, ids.read("art", text))


async def _into(visit: Visit, run_id: str | None) -> tuple[Into, str | None]:
    if run_id is None:
        return Alone(), None
    run = await visit.run(run_id)
    return ToRun(run.scope_id, run.run_id), run.principal_id


def _refuse_forms(request: Request) -> None:
    """A form would be kept with its wrapping."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in ("multipart/form-data", "application/x-www-form-urlencoded"):
        raise UnsupportedMediaType("send the file's bytes as the body, not as a form")
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise UnsupportedMediaType("bytes are kept as they come; send them without encoding")


async def _body(request: Request) -> AsyncIterator[bytes]:
    stream = request.stream()
    while True:
        try:
            async with asyncio.timeout(IDLE):
                chunk = await anext(stream, None)
        except TimeoutError:
            raise InvalidRequest(
                f"nothing more came for {IDLE:g} s; nothing was stored, send it again"
            ) from None
        if chunk is None:
            return
        yield chunk


def _place(found: Artifact) -> list[str]:
    return [found.artifact_id.hex]


def _tag(found: Artifact) -> dict[str, str]:
    return {"ETag": file_headers.tag_of(found.sha256)}
