"""Runs over HTTP: submit, list, read, cancel, retry, signal."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from earnest.domain import ids
from earnest.domain.run import CancelOutcome, Run, RunStatus
from earnest.doors.api import headers, shapes
from earnest.doors.api.cursors import read_id
from earnest.doors.api.json_bodies import json_answer
from earnest.doors.api.listings import Listing
from earnest.doors.api.parameters import (
    RetryBody,
    RunsQuery,
    SignalBody,
    SubmitBody,
    read_labels,
)
from earnest.doors.api.routes import (
    KEY_NEEDED,
    KEY_TAKEN,
    MINE_OR_SCOPES,
    TRACE_TAKEN,
    Answer,
    Routes,
)
from earnest.doors.api.showing import run_path, show_explanation, show_run, show_run_summary
from earnest.doors.api.visit import Visiting
from earnest.engine.inspection import explaining
from earnest.engine.runs import cancelling, reading, retrying, signalling, submitting
from earnest.engine.runs.submitting import Submitted
from earnest.store.runs import RunFilter

routes = Routes("runs")

_SUBMITTED = Answer(shapes.Run, 202, headers=("Location", "ETag", "Idempotency-Replayed"))
_SOON, _LATER = 1, 5  # seconds


@routes.post(
    "/v1/runs",
    _SUBMITTED,
    roles=MINE_OR_SCOPES,
    problems=(400, 409, 413, 415),
    takes=(KEY_NEEDED, TRACE_TAKEN),
)
async def submit_run(visit: Visiting, body: SubmitBody) -> Response:
    """Submit a run: the same key and request give the same run.

    The run can be read when this answers. `Idempotency-Key` is required; a key belongs to who asks,
    and lives as long as its run.
    """
    key = headers.required_key(visit.headers)
    request = submitting.Request(
        kind=body.kind,
        input=body.input,
        key=key,
        lane=body.lane,
        priority=body.priority,
        not_before=body.not_before,
        conversation_id=body.conversation_id,
        context=body.context,
        labels=body.labels,
        traceparent=headers.traceparent(visit.headers),
        fingerprint_of=visit.sent,
    )
    actor = visit.actor
    return _submitted(
        await submitting.submit(visit.engine, actor.scope_id, actor.principal_id, request)
    )


@routes.get("/v1/runs", Answer(shapes.RunPage), roles=MINE_OR_SCOPES, problems=(400,))
async def list_runs(visit: Visiting, query: Annotated[RunsQuery, Query()]) -> Response:
    """List runs, newest first: a member's own, an operator's scope's."""
    listing = Listing(visit, "runs", query)
    only = RunFilter(
        status=query.status,
        kind=query.kind,
        lane=query.lane,
        conversation_id=query.conversation_id,
        labels=read_labels(query.label),
        created_after=query.created_after,
        created_before=query.created_before,
        search=query.q,
    )
    place = await listing.place()
    before = None if place is None else read_id(place[0])
    found = await reading.list_runs(visit.engine, visit.actor, only, before, listing.rows)
    return json_answer(await listing.page(found, show_run_summary, lambda run: [run.run_id.hex]))


@routes.get(
    "/v1/runs/{run_id}",
    Answer(shapes.Run, headers=("ETag", "Retry-After")),
    roles=MINE_OR_SCOPES,
)
async def read_run(visit: Visiting, run_id: str) -> Response:
    """Read a run. `Retry-After` says when to look again while it is not final."""
    run = await visit.run(run_id)
    told = _tag(run)
    if not run.final:
        soon = run.status in (RunStatus.QUEUED, RunStatus.RUNNING)
        told["Retry-After"] = str(_SOON if soon else _LATER)
    return json_answer(show_run(run), headers=told)


@routes.get(
    "/v1/runs/{run_id}/explain",
    Answer(shapes.Explanation),
    roles=MINE_OR_SCOPES,
)
async def explain_run(visit: Visiting, run_id: str) -> Response:
    """Say why a run is not moving, and what would move it.

    One answer from one state of the database. Whoever may see the run may ask; what a reason names
    under `moved_by` may need another role.
    """
    sight = reading.sight(visit.actor, ids.read("run", run_id))
    return json_answer(show_explanation(await explaining.explain(visit.engine, sight)))


@routes.post(
    "/v1/runs/{run_id}/cancel",
    Answer(shapes.Cancelled, 202, {200: "It is cancelled, or it was too late"}, ("ETag",)),
    roles=MINE_OR_SCOPES,
    problems=(400,),
    takes=(KEY_TAKEN,),
)
async def cancel_run(visit: Visiting, run_id: str) -> Response:
    """Cancel a run, and be told what came of it.

    202 `requested`: it is running and was asked to stop; what it has already sent to the outside
    is let finish. 200 `cancelled`: it does not run any more. 200 `too_late`: it had ended.
    """
    headers.idempotency_key(visit.headers)
    run = await visit.run(run_id)
    done = await cancelling.cancel(visit.engine, run.scope_id, run.run_id, visit.actor)
    body: shapes.Cancelled = {
        "outcome": done.outcome,
        "run_id": ids.show("run", run.run_id),
        "run": show_run(done.run),
    }
    status = 202 if done.outcome is CancelOutcome.REQUESTED else 200
    return json_answer(body, status, _tag(done.run))


@routes.post(
    "/v1/runs/{run_id}/retry",
    _SUBMITTED,
    roles=MINE_OR_SCOPES,
    problems=(400, 409, 413, 415),
    takes=(KEY_TAKEN,),
)
async def retry_run(visit: Visiting, run_id: str, body: RetryBody | None = None) -> Response:
    """Retry a run that ended badly: a new run of the same lineage, its next revision.

    Refused while a run of the lineage is active or one of its operations is in doubt. A new
    revision sends its own operations: where one of the lineage, or of the runs that it asked for,
    was submitted, 409 `conflict` names it in `operation_ids`, and `{"repeat_submitted": true}`
    insists.
    """
    key = headers.idempotency_key(visit.headers)
    run = await visit.run(run_id)
    repeat = body is not None and body.repeat_submitted
    new = await retrying.retry(
        visit.engine,
        run.scope_id,
        run.run_id,
        by=visit.actor,
        key=key,
        repeat_submitted=repeat,
    )
    return _submitted(new)


@routes.post(
    "/v1/runs/{run_id}/signals/{name}",
    Answer(shapes.SignalStored, 202),
    roles=MINE_OR_SCOPES,
    problems=(400, 409, 413, 415),
    takes=(KEY_TAKEN,),
)
async def signal_run(
    visit: Visiting, run_id: str, name: str, body: SignalBody | None = None
) -> Response:
    """Send a run a signal; it wakes if it waits for it."""
    key = headers.idempotency_key(visit.headers)
    run = await visit.run(run_id)
    payload = None if body is None else body.payload
    number = await signalling.signal(
        visit.engine,
        run.scope_id,
        run.run_id,
        name,
        payload,
        by=visit.actor.principal_id,
        key=key,
    )
    stored: shapes.SignalStored = {
        "run_id": ids.show("run", run.run_id),
        "name": name,
        "number": number,
    }
    return json_answer(stored, 202)


def _submitted(made: Submitted) -> Response:
    told = {**_tag(made.run), "Location": run_path(made.run.run_id)}
    if made.replayed:
        told["Idempotency-Replayed"] = "true"
    return json_answer(show_run(made.run), 202, told)


def _tag(run: Run) -> dict[str, str]:
    return {"ETag": f'"{run.version}"'}
