"""Scopes over HTTP: for the admins of the first scope."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import Field
from starlette.responses import Response

from earnest.doors.api import shapes_of_access as shapes
from earnest.doors.api.json_bodies import json_answer
from earnest.doors.api.listings import Listing
from earnest.doors.api.parameters import PageQuery, Strict
from earnest.doors.api.routes import KEY_TAKEN, Answer, Routes
from earnest.doors.api.showing import show_scope
from earnest.doors.api.visit import Visiting
from earnest.engine.process import scopes
from earnest.engine.process.actors import Role

routes = Routes("access")

ADMINS = (Role.ADMIN,)


class ScopeBody(Strict):
    """A new scope, and the name of its first admin, where it shall have one now."""

    id: Annotated[str, Field(strict=True, pattern="^[a-z0-9][a-z0-9_.-]{0,62}$")]
    admin: Annotated[str | None, Field(strict=True, min_length=1, max_length=100)] = None


@routes.get(
    "/v1/scopes",
    Answer(shapes.ScopePage),
    roles=ADMINS,
    seen_by=ADMINS,
    of_first_scope=True,
    problems=(400,),
)
async def list_scopes(visit: Visiting, query: Annotated[PageQuery, Query()]) -> Response:
    """List all scopes by name."""
    listing = Listing(visit, "scopes", query)
    place = await listing.place()
    after = None if place is None else str(place[0])
    found = await scopes.list_scopes(visit.engine, visit.actor, after, listing.rows)
    return json_answer(await listing.page(found, show_scope, lambda one: [one.scope_id]))


@routes.post(
    "/v1/scopes",
    Answer(shapes.MadeScope, 201, headers=("Idempotency-Replayed",)),
    roles=ADMINS,
    seen_by=ADMINS,
    of_first_scope=True,
    problems=(400, 409, 413, 415),
    takes=(KEY_TAKEN,),
)
async def create_scope(visit: Visiting, body: ScopeBody) -> Response:
    """Make a scope; with `admin`, also its first admin and a token for it, which is in this answer
    and in no other."""
    made = await scopes.create_scope(
        visit.engine, visit.actor, body.id, admin=body.admin, asked=visit.key_of("scopes")
    )
    scope = show_scope(made.scope)
    shown = {**scope, "token": made.token} if made.token else {**scope}
    told = {"Idempotency-Replayed": "true"} if made.replayed else {}
    return json_answer(shown, 201, told)
