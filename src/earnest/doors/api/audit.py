"""The audit over HTTP: who did what, for admins."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import Field
from starlette.responses import Response

from earnest.doors.api import shapes_of_access as shapes
from earnest.doors.api.cursors import read_id
from earnest.doors.api.json_bodies import json_answer
from earnest.doors.api.listings import Listing
from earnest.doors.api.parameters import Instant, PageQuery, Text
from earnest.doors.api.routes import Answer, Routes
from earnest.doors.api.showing import show_audit_entry
from earnest.doors.api.visit import Visiting
from earnest.engine.process import auditing
from earnest.engine.process.actors import Role
from earnest.store.audit import AuditFilter

routes = Routes("access")

_ADMINS = (Role.ADMIN,)


class AuditQuery(PageQuery):
    """Filters narrow together. `subject` is written as in the answers: `run_01…`, `principal ann`,
    `token 4x…`, `scope demo`."""

    action: Annotated[Text | None, Field(examples=["run.cancelled"])] = None
    subject: Text | None = None
    principal_id: Text | None = None
    created_after: Instant | None = None
    created_before: Instant | None = None


@routes.get("/v1/audit", Answer(shapes.AuditPage), roles=_ADMINS, seen_by=_ADMINS, problems=(400,))
async def list_audit(visit: Visiting, query: Annotated[AuditQuery, Query()]) -> Response:
    """List what people decided and changed in the scope, newest first."""
    listing = Listing(visit, "audit", query)
    place = await listing.place()
    before = None if place is None else read_id(place[0])
    only = AuditFilter(
        query.action, query.subject, query.principal_id, query.created_after, query.created_before
    )
    found = await auditing.entries(visit.engine, visit.actor, only, before, listing.rows)
    return json_answer(await listing.page(found, show_audit_entry, lambda one: [one.audit_id.hex]))
