"""Sweeps over HTTP: asked for here, made by a worker; and the differences that they found."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import Field
from starlette.responses import Response

from earnest.domain import ids
from earnest.domain.sweep import Difference, DifferenceKind, DifferenceState, Sweep, SweepState
from earnest.doors.api import headers
from earnest.doors.api import shapes_of_sweeps as shapes
from earnest.doors.api.cursors import read_id
from earnest.doors.api.json_bodies import json_answer
from earnest.doors.api.listings import Listing
from earnest.doors.api.parameters import Instant, Name, PageQuery, Strict, Text
from earnest.doors.api.routes import KEY_TAKEN, VERSION_TAKEN, Answer, Routes
from earnest.doors.api.showing_sweeps import show_difference, show_sweep, show_sweep_detail
from earnest.doors.api.visit import Visit, Visiting
from earnest.engine.process.actors import Role
from earnest.engine.sweeping import requesting
from earnest.engine.sweeping.requesting import MAX_NOTE, MAY_SEE
from earnest.store.sweeps import DifferenceFilter

routes = Routes("sweeps")

_OPERATORS = (Role.OPERATOR,)
_ONE_DIFFERENCE = Answer(shapes.Difference, headers=("ETag",))


class SweepBody(Strict):
    """Which effect, and from when on. Without `since`, on from the last complete sweep; the first
    one looks back a week."""

    effect: Name
    since: Instant | None = None


class CloseBody(Strict):
    """What you found out or did about it."""

    note: Annotated[str, Field(strict=True, min_length=1, max_length=MAX_NOTE)]


class SweepsQuery(PageQuery):
    effect: Text | None = None
    state: SweepState | None = None


class DifferencesQuery(PageQuery):
    state: DifferenceState | None = None
    effect: Text | None = None
    kind: DifferenceKind | None = None


@routes.get("/v1/sweeps", Answer(shapes.SweepPage), roles=MAY_SEE, seen_by=MAY_SEE, problems=(400,))
async def list_sweeps(visit: Visiting, query: Annotated[SweepsQuery, Query()]) -> Response:
    """List the scope's sweeps, the newest first."""
    listing = Listing(visit, "sweeps", query)
    place = await listing.place()
    before = None if place is None else read_id(place[0])
    found = await requesting.list_sweeps(
        visit.engine, visit.actor, query.effect, query.state, before, listing.rows
    )
    return json_answer(await listing.page(found, show_sweep, lambda one: [one.sweep_id.hex]))


@routes.post(
    "/v1/sweeps",
    Answer(shapes.Sweep, 202, headers=("Location", "Idempotency-Replayed")),
    roles=_OPERATORS,
    seen_by=MAY_SEE,
    problems=(400, 409, 413, 415),
    takes=(KEY_TAKEN,),
)
async def request_sweep(visit: Visiting, body: SweepBody) -> Response:
    """Ask for a sweep: what a provider lists is compared with what is recorded.

    A worker makes it; read it to see how far it is. One of an effect is under way at a time.
    """
    requested = await requesting.request(
        visit.engine, visit.actor, body.effect, body.since, visit.key_of("sweeps")
    )
    shown = show_sweep(requested.sweep)
    told = {"Location": shown["links"]["self"]}
    if requested.replayed:
        told["Idempotency-Replayed"] = "true"
    return json_answer(shown, 202, told)


@routes.get("/v1/sweeps/{sweep_id}", Answer(shapes.SweepDetail), roles=MAY_SEE, seen_by=MAY_SEE)
async def read_sweep(visit: Visiting, sweep_id: str) -> Response:
    """Read a sweep: how far it is, and how much of what it found is open."""
    found = await _find(visit, sweep_id)
    counts = await requesting.open_counts(visit.engine, found)
    return json_answer(show_sweep_detail(found, counts))


@routes.get(
    "/v1/sweeps/{sweep_id}/differences",
    Answer(shapes.DifferencePage),
    roles=MAY_SEE,
    seen_by=MAY_SEE,
    problems=(400,),
)
async def list_sweep_differences(
    visit: Visiting, sweep_id: str, query: Annotated[PageQuery, Query()]
) -> Response:
    """List what a sweep found, as it stands by now, the oldest first."""
    sweep = await _find(visit, sweep_id)
    listing = Listing(visit, "sweep differences", query, sweep_id=sweep.sweep_id.hex)
    place = await listing.place()
    after = None if place is None else read_id(place[0])
    found = await requesting.differences_of(visit.engine, visit.actor, sweep, after, listing.rows)
    return json_answer(await listing.page(found, show_difference, _place))


@routes.get(
    "/v1/differences",
    Answer(shapes.DifferencePage),
    roles=MAY_SEE,
    seen_by=MAY_SEE,
    problems=(400,),
)
async def list_differences(
    visit: Visiting, query: Annotated[DifferencesQuery, Query()]
) -> Response:
    """List what sweeps of the scope found, the oldest first; with `state=open`, what nobody has
    seen to."""
    listing = Listing(visit, "differences", query)
    place = await listing.place()
    after = None if place is None else read_id(place[0])
    only = DifferenceFilter(
        query.state and query.state.value, query.effect, query.kind and query.kind.value
    )
    found = await requesting.list_differences(visit.engine, visit.actor, only, after, listing.rows)
    return json_answer(await listing.page(found, show_difference, _place))


@routes.get("/v1/differences/{difference_id}", _ONE_DIFFERENCE, roles=MAY_SEE, seen_by=MAY_SEE)
async def read_difference(visit: Visiting, difference_id: str) -> Response:
    """Read a difference."""
    wanted = ids.read("diff", difference_id)
    return _one(await requesting.find_difference(visit.engine, visit.actor, wanted))


@routes.post(
    "/v1/differences/{difference_id}/close",
    _ONE_DIFFERENCE,
    roles=_OPERATORS,
    seen_by=MAY_SEE,
    problems=(400, 409, 412, 413, 415),
    takes=(VERSION_TAKEN, KEY_TAKEN),
)
async def close_difference(visit: Visiting, difference_id: str, body: CloseBody) -> Response:
    """Close a difference that you have seen to, with a note.

    Nothing is done to records or provider by that; sweeps do not report it any more. The same
    again is harmless.
    """
    headers.idempotency_key(visit.headers)
    closed = await requesting.close(
        visit.engine,
        visit.actor,
        ids.read("diff", difference_id),
        body.note,
        headers.expected_version(visit.headers),
    )
    return _one(closed)


async def _find(visit: Visit, text: str) -> Sweep:
    return await requesting.find_sweep(visit.engine, visit.actor, ids.read("sweep", text))


def _place(one: Difference) -> list[str]:
    return [one.difference_id.hex]


def _one(found: Difference) -> Response:
    return json_answer(show_difference(found), headers={"ETag": f'"{found.version}"'})
