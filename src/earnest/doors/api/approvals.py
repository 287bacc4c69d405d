"""Approvals over HTTP: what waits for a decision, one of them, and the decision."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from earnest.domain import ids
from earnest.domain.approval import Approval
from earnest.domain.errors import ApprovalExpired, ProposalChanged
from earnest.domain.run import Run
from earnest.doors.api import headers, shapes
from earnest.doors.api.cursors import instant, read_id, read_instant
from earnest.doors.api.json_bodies import json_answer
from earnest.doors.api.listings import Listing
from earnest.doors.api.parameters import ApprovalsQuery, DecisionBody
from earnest.doors.api.routes import KEY_TAKEN, LOOKED_AT, Answer, Routes
from earnest.doors.api.showing import show_approval, show_run_summary
from earnest.doors.api.visit import Visit, Visiting
from earnest.engine.approvals import deciding, reading
from earnest.engine.approvals.asking import DECIDERS
from earnest.engine.process.actors import Role

routes = Routes("approvals")

_SEEN_BY = (Role.MEMBER, *DECIDERS)
_WHOLE = Answer(shapes.Approval, headers=("ETag",))


@routes.get(
    "/v1/approvals",
    Answer(shapes.ApprovalPage),
    roles=_SEEN_BY,
    problems=(400,),
)
async def list_approvals(visit: Visiting, query: Annotated[ApprovalsQuery, Query()]) -> Response:
    """List approvals, oldest first; with `status=pending`, what waits for a decision.

    An approver sees what is addressed to its role, an operator the scope's, a member what its own
    runs asked for.
    """
    listing = Listing(visit, "approvals", query, roles=sorted(visit.actor.roles))
    place = await listing.place()
    after = None if place is None else (read_instant(place[0]), read_id(place[1]))
    found = await reading.list_approvals(
        visit.engine, visit.actor, query.status, after, listing.rows
    )
    of_runs = await reading.runs_of(visit.engine, visit.actor.scope_id, found)

    def show(one: Approval) -> shapes.Approval:
        return _shown(one, of_runs[one.run_id])

    return json_answer(await listing.page(found, show, _place_of))


@routes.get("/v1/approvals/{approval_id}", _WHOLE, roles=_SEEN_BY, seen_by=_SEEN_BY)
async def read_approval(visit: Visiting, approval_id: str) -> Response:
    """Read an approval: exactly what was asked for, of whom, and what was decided."""
    found = await reading.find_approval(visit.engine, visit.actor, ids.read("apr", approval_id))
    return await _whole(visit, found)


@routes.post(
    "/v1/approvals/{approval_id}/decision",
    Answer(shapes.Approval, headers=("ETag", "Idempotency-Replayed")),
    roles=DECIDERS,
    seen_by=_SEEN_BY,
    problems=(400, 409, ApprovalExpired, ProposalChanged, 412, 413, 415, 428),
    takes=(LOOKED_AT, KEY_TAKEN),
)
async def decide_approval(visit: Visiting, approval_id: str, body: DecisionBody) -> Response:
    """Decide about exactly what you looked at: `digest` names it, `If-Match` its version.

    It needs the role that the approval is addressed to. The same decision again is harmless,
    whatever its `If-Match`; the other one is a conflict, as is one that comes too late
    (`approval_expired`), about something else (`proposal_changed`), or about a run that has ended.
    """
    decided = await deciding.decide(
        visit.engine,
        visit.actor,
        ids.read("apr", approval_id),
        deciding.Verdict(body.decision, body.digest, body.note),
        version=headers.expected_version(visit.headers),
        key=headers.idempotency_key(visit.headers),
    )
    return await _whole(visit, decided.approval, replayed=decided.replayed)


async def _whole(visit: Visit, found: Approval, *, replayed: bool = False) -> Response:
    of_runs = await reading.runs_of(visit.engine, found.scope_id, [found])
    told = {"ETag": f'"{found.version}"'}
    if replayed:
        told["Idempotency-Replayed"] = "true"
    return json_answer(_shown(found, of_runs[found.run_id]), headers=told)


def _shown(found: Approval, run: Run) -> shapes.Approval:
    return {**show_approval(found), "run": show_run_summary(run)}


def _place_of(one: Approval) -> list[str]:
    return [instant(one.requested_at), one.approval_id.hex]
