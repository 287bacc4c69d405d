"""Principals over HTTP: who acts in the scope, and with which roles."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import ConfigDict, Field
from starlette.responses import Response

from earnest.domain.access import Principal
from earnest.doors.api import headers
from earnest.doors.api import shapes_of_access as shapes
from earnest.doors.api.json_bodies import json_answer
from earnest.doors.api.listings import Listing
from earnest.doors.api.parameters import PageQuery, Strict
from earnest.doors.api.routes import VERSION_NEEDED, Answer, Routes
from earnest.doors.api.showing import show_principal
from earnest.doors.api.visit import Visiting
from earnest.engine.process import principals
from earnest.engine.process.actors import Role
from earnest.engine.process.principals import Standing

routes = Routes("access")

ADMINS = (Role.ADMIN,)
_WHOLE = Answer(shapes.Principal, headers=("ETag",))


class StandingBody(Strict):
    """How the principal shall stand: with exactly these roles; or disabled, without any."""

    model_config = ConfigDict(
        json_schema_extra={
            "if": {"properties": {"disabled": {"const": True}}, "required": ["disabled"]},
            "then": {"properties": {"roles": {"maxItems": 0}}},
        }
    )

    roles: Annotated[list[Role], Field(max_length=len(Role))]
    disabled: Annotated[bool, Field(strict=True)] = False


@routes.get(
    "/v1/principals", Answer(shapes.PrincipalPage), roles=ADMINS, seen_by=ADMINS, problems=(400,)
)
async def list_principals(visit: Visiting, query: Annotated[PageQuery, Query()]) -> Response:
    """List the scope's principals by name."""
    listing = Listing(visit, "principals", query)
    place = await listing.place()
    after = None if place is None else str(place[0])
    found = await principals.list_principals(visit.engine, visit.actor, after, listing.rows)
    return json_answer(await listing.page(found, show_principal, lambda one: [one.principal_id]))


@routes.get("/v1/principals/{principal_id}", _WHOLE, roles=ADMINS, seen_by=ADMINS)
async def read_principal(visit: Visiting, principal_id: str) -> Response:
    """Read a principal."""
    return _whole(await principals.find_principal(visit.engine, visit.actor, principal_id))


@routes.put(
    "/v1/principals/{principal_id}",
    _WHOLE,
    roles=ADMINS,
    seen_by=ADMINS,
    problems=(400, 409, 412, 413, 415, 428),
    takes=(VERSION_NEEDED,),
)
async def set_principal(visit: Visiting, principal_id: str, body: StandingBody) -> Response:
    """Make a principal, change its roles, or disable it.

    `If-Match` names the version that you looked at, of one that is there. To ask for what is so
    already is harmless. Refused when nobody would be left to rule the scope.
    """
    wanted = Standing(frozenset(body.roles), body.disabled)
    version = headers.expected_version(visit.headers)
    return _whole(
        await principals.set_principal(visit.engine, visit.actor, principal_id, wanted, version)
    )


def _whole(found: Principal) -> Response:
    return json_answer(show_principal(found), headers={"ETag": f'"{found.version}"'})
