"""Operations over HTTP: the reconciliation desk, one operation whole, look-up and resolution."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from earnest.domain.operation import Operation, OperationState
from earnest.doors.api import headers, shapes
from earnest.doors.api.cursors import instant, read_id, read_instant
from earnest.doors.api.json_bodies import json_answer
from earnest.doors.api.listings import Listing
from earnest.doors.api.parameters import OperationsQuery, ResolutionBody
from earnest.doors.api.routes import KEY_TAKEN, MINE_OR_SCOPES, VERSION_NEEDED, Answer, Routes
from earnest.doors.api.showing import show_move, show_operation, show_operation_summary
from earnest.doors.api.visit import Visit, Visiting
from earnest.engine.operations import reconciling
from earnest.engine.process.actors import Role
from earnest.store import operations, visible

routes = Routes("operations")

_WHOLE = Answer(shapes.OperationDetail, headers=("ETag",))


@routes.get(
    "/v1/operations",
    Answer(shapes.OperationSummaryPage),
    roles=(Role.OPERATOR,),
    problems=(400,),
)
async def list_operations(visit: Visiting, query: Annotated[OperationsQuery, Query()]) -> Response:
    """List the scope's operations, oldest first; with `state=unknown`, the desk."""
    listing = Listing(visit, "operations", query)
    place = await listing.place()
    after = None if place is None else (read_instant(place[0]), read_id(place[1]))
    found = await operations.listed(
        visit.engine.database, visit.actor.scope_id, query.state, after, listing.rows
    )
    by_doubt = query.state is OperationState.UNKNOWN

    def place_of(one: Operation) -> list[str]:
        at = one.unknown_since if by_doubt and one.unknown_since else one.created_at
        return [instant(at), one.operation_id.hex]

    return json_answer(await listing.page(found, show_operation_summary, place_of))


@routes.get("/v1/operations/{operation_id}", _WHOLE, roles=MINE_OR_SCOPES)
async def read_operation(visit: Visiting, operation_id: str) -> Response:
    """Read an operation with its history and what was asked about it."""
    return await _whole(visit, await visit.operation(operation_id))


@routes.post(
    "/v1/operations/{operation_id}/resolution",
    _WHOLE,
    roles=(Role.OPERATOR,),
    problems=(400, 409, 412, 413, 415, 428),
    takes=(VERSION_NEEDED, KEY_TAKEN),
)
async def resolve_operation(visit: Visiting, operation_id: str, body: ResolutionBody) -> Response:
    """Settle an operation that is in doubt, with evidence.

    `If-Match` names the version that you looked at. The same resolution again is harmless, another
    one is a conflict.
    """
    operation = await visit.operation(operation_id)
    visit.actor.require(Role.OPERATOR)
    headers.idempotency_key(visit.headers)
    verdict = reconciling.Verdict(body.outcome, body.evidence, body.note, body.receipt)
    settled = await reconciling.resolve(
        visit.engine,
        operation.scope_id,
        operation.operation_id,
        verdict,
        by=visit.actor,
        version=headers.expected_version(visit.headers),
    )
    return await _whole(visit, settled)


@routes.post(
    "/v1/operations/{operation_id}/lookup",
    _WHOLE,
    roles=(Role.OPERATOR,),
    problems=(400, 409),
    takes=(KEY_TAKEN,),
)
async def look_up_operation(visit: Visiting, operation_id: str) -> Response:
    """Ask the provider now whether it was done, and act on the answer."""
    operation = await visit.operation(operation_id)
    visit.actor.require(Role.OPERATOR)
    headers.idempotency_key(visit.headers)
    asked = await reconciling.look_up(
        visit.engine, operation.scope_id, operation.operation_id, by=visit.actor
    )
    return await _whole(visit, asked)


async def _whole(visit: Visit, operation: Operation) -> Response:
    database, scope_id = visit.engine.database, operation.scope_id
    asked = await visible.lookups(database, scope_id, [operation.operation_id])
    history = await operations.moves(database, scope_id, operation.operation_id)
    findings = await operations.findings(database, scope_id, operation.operation_id)
    body: shapes.OperationDetail = {
        **show_operation(operation, asked.get(operation.operation_id, ())),
        "history": [show_move(move) for move in history],
        "findings": [
            {"kind": one["kind"], "detail": one["detail"], "at": one["at"]} for one in findings
        ],
    }
    return json_answer(body, headers={"ETag": f'"{operation.version}"'})
