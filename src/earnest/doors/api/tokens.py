"""Tokens over HTTP: issue, list, rotate, revoke. A token's text is in one answer, once."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import Query
from pydantic import Field
from starlette.responses import Response

from earnest.domain.access import NewToken, Token
from earnest.domain.errors import InvalidRequest, NotFound
from earnest.doors.api import shapes_of_access as shapes
from earnest.doors.api.cursors import instant, read_instant
from earnest.doors.api.json_bodies import json_answer
from earnest.doors.api.listings import Listing
from earnest.doors.api.parameters import Instant, Name, PageQuery, Strict, Text
from earnest.doors.api.routes import KEY_TAKEN, Answer, Routes
from earnest.doors.api.showing import show_token
from earnest.doors.api.visit import Visiting
from earnest.engine.process import tokens
from earnest.engine.process.actors import Role
from earnest.engine.process.tokens import DEFAULT_OVERLAP, LONGEST_OVERLAP, Issued, Rotation

routes = Routes("access")

ADMINS = (Role.ADMIN,)
_ISSUED = Answer(shapes.IssuedToken, 201, headers=("Location", "Idempotency-Replayed"))
_LONGEST = int(LONGEST_OVERLAP.total_seconds())


class TokenBody(Strict):
    """A token for a principal that is there, good until `expires_at` or until it is revoked."""

    principal_id: Annotated[str, Field(strict=True, min_length=1, max_length=100)]
    name: Name | None = None
    expires_at: Instant | None = None


class RotationBody(Strict):
    """The old token ends after the overlap; the new one is good until `expires_at`, else for as
    long as the old one was made for."""

    overlap_seconds: Annotated[int, Field(strict=True, ge=0, le=_LONGEST)] = int(
        DEFAULT_OVERLAP.total_seconds()
    )
    expires_at: Instant | None = None


class TokensQuery(PageQuery):
    """`live`: only those that open something now."""

    principal_id: Text | None = None
    live: bool = False


@routes.get("/v1/tokens", Answer(shapes.TokenPage), roles=ADMINS, seen_by=ADMINS, problems=(400,))
async def list_tokens(visit: Visiting, query: Annotated[TokensQuery, Query()]) -> Response:
    """List the scope's tokens, newest first. No answer holds a token's text."""
    listing = Listing(visit, "tokens", query)
    place = await listing.place()
    before = None if place is None else (read_instant(place[0]), str(place[1]))
    found = await tokens.list_tokens(
        visit.engine, visit.actor, query.principal_id, before, listing.rows, live=query.live
    )
    return json_answer(
        await listing.page(found, show_token, lambda one: [instant(one.created_at), one.token_id])
    )


@routes.post(
    "/v1/tokens",
    _ISSUED,
    roles=ADMINS,
    seen_by=ADMINS,
    problems=(400, 409, 413, 415),
    takes=(KEY_TAKEN,),
)
async def issue_token(visit: Visiting, body: TokenBody) -> Response:
    """Issue a token. Its text, `token`, is in this answer and in no other.

    Sent again with the same key, the answer names the same token without its text.
    """
    new = NewToken(body.principal_id, body.name, expires_at=body.expires_at)
    try:
        made = await tokens.issue(visit.engine, visit.actor, new, visit.key_of("tokens"))
    except NotFound as error:
        # What a body names is no address: the caller is an admin, and may know.
        raise InvalidRequest(error.detail) from error
    return _issued(made)


@routes.get("/v1/tokens/{token_id}", Answer(shapes.Token), roles=ADMINS, seen_by=ADMINS)
async def read_token(visit: Visiting, token_id: str) -> Response:
    """Read what is known of a token."""
    return _whole(await tokens.find_token(visit.engine, visit.actor, token_id))


@routes.post(
    "/v1/tokens/{token_id}/rotate",
    _ISSUED,
    roles=ADMINS,
    seen_by=ADMINS,
    problems=(400, 409, 413, 415),
    takes=(KEY_TAKEN,),
)
async def rotate_token(
    visit: Visiting, token_id: str, body: RotationBody | None = None
) -> Response:
    """Replace a token's secret: a new token of the same principal, and an end for the old one.

    Both are good during the overlap. Idempotency keys belong to the principal and stay good.
    """
    asked = body or RotationBody()
    rotation = Rotation(timedelta(seconds=asked.overlap_seconds), asked.expires_at)
    key = visit.key_of(f"rotate {token_id}")
    return _issued(await tokens.rotate(visit.engine, visit.actor, token_id, rotation, key))


@routes.delete(
    "/v1/tokens/{token_id}",
    Answer(shapes.Token),
    roles=ADMINS,
    seen_by=ADMINS,
    problems=(409,),
)
async def revoke_token(visit: Visiting, token_id: str) -> Response:
    """Revoke a token: calls with it are refused within two seconds, its streams end within thirty.

    Harmless when repeated. Refused for the last token by which an admin could come in.
    """
    return _whole(await tokens.revoke(visit.engine, visit.actor, token_id))


def _issued(made: Issued) -> Response:
    token = show_token(made.token)
    shown = {**token, "token": made.text} if made.text else {**token}
    told = {"Location": f"/v1/tokens/{made.token.token_id}"}
    if made.replayed:
        told["Idempotency-Replayed"] = "true"
    return json_answer(shown, 201, told)


def _whole(found: Token) -> Response:
    return json_answer(show_token(found))
