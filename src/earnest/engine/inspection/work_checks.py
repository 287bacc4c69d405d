"""Checks of the work: is there somebody for it, and does it move?"""

from __future__ import annotations

from earnest.engine.inspection.doctoring import Check, Finding, Patient, bad, span, warn, well
from earnest.store import histories

_COUNTED = 100_000
_OLD_QUEUE = 300.0
_LATE = 30.0
_LOOKED_AT = 5_000
_START_WORKER = "start a worker that has its app: earnest worker --app MODULE:ATTRIBUTE"


async def workers(patient: Patient) -> Finding:
    """Processes that take up runs: those that live, and those that ended without a word."""
    known = [one for one in await patient.workers() if one.slots]
    living = [one for one in known if one.lives]
    gone = len(known) - len(living)
    held, slots = sum(one.held for one in living), sum(one.slots for one in living)
    detail = f"{len(living)} live, with {held} of {slots} places taken"
    if not living:
        return warn("none lives", _START_WORKER)
    if gone:
        advice = "a worker takes their work over within seconds; look again"
        return warn(f"{detail}; {gone} ended without a word", advice)
    return well(detail)


async def due_runs(patient: Patient) -> Finding:
    """Runs that are due and that no living worker would take up."""
    living = await patient.living()
    rows = await patient.rows("due_by_kind", _COUNTED)
    left = [
        row
        for row in rows
        if not any(row["lane"] in one.lanes and row["kind"] in one.kinds for one in living)
    ]
    if left:
        told = ", ".join(
            f"{row['runs']} of {row['kind']} in the lane {row['lane']}, the oldest for "
            f"{span(row['seconds'])}"
            for row in left[:10]
        )
        return bad(f"no living worker takes up {told}", _START_WORKER)
    return well(f"{sum(row['runs'] for row in rows)} are due, each with a worker that knows it")


async def oldest_queued(patient: Patient) -> Finding:
    rows = await patient.rows("due_by_kind", _COUNTED)
    if not rows:
        return well("nothing is due")
    oldest = max(rows, key=lambda row: row["seconds"])
    detail = f"a run of {oldest['kind']} is due for {span(oldest['seconds'])}"
    if oldest["seconds"] > _OLD_QUEUE:
        return warn(detail, "the backlog grows: start more workers, or raise --concurrency")
    return well(detail)


async def idle_workers(patient: Patient) -> Finding:
    """Processes that are there and take up nothing: one that is stopped or whose event loop is
    blocked keeps its connection, and so seems to live. Told only of those with at least half of
    their places free, since others may be at work on a backlog."""
    free = [one for one in await patient.living() if one.held * 2 <= one.slots and one.slots]
    left = [
        row
        for row in await patient.rows("due_by_kind", _COUNTED)
        if row["seconds"] > _LATE
        and any(row["lane"] in one.lanes and row["kind"] in one.kinds for one in free)
    ]
    if left:
        oldest = max(left, key=lambda row: row["seconds"])
        detail = (
            f"a run of {oldest['kind']} is due for {span(oldest['seconds'])} though a worker with "
            "free places lives"
        )
        return warn(f"{detail}: is it stuck?", "look at its log; if it says nothing, start it anew")
    return well("none leaves lying what it could take up")


async def overdue_runs(patient: Patient) -> Finding:
    """What a living worker moves on within seconds."""
    row = await patient.row("overdue_work")
    told = []
    if row["lapsed"]:
        lapsed = span(row["lapsed_seconds"])
        told.append(f"{row['lapsed']} run past their lease, the first for {lapsed}")
    if row["asleep"]:
        asleep = span(row["asleep_seconds"])
        told.append(f"{row['asleep']} sleep past their time, the first for {asleep}")
    if row["delayed"]:
        delayed = span(row["delayed_seconds"])
        told.append(
            f"{row['delayed']} were put off and are past their time, the first for {delayed}"
        )
    if not told:
        return well("no lease has run out, no time has passed unseen")
    latest = max(row[f"{name}_seconds"] or 0 for name in ("lapsed", "asleep", "delayed"))
    level = bad if latest > _LATE else warn
    return level("; ".join(told), "a worker moves them on: start one, or look at the log of one")


async def doubts(patient: Patient) -> Finding:
    """Operations of which nobody knows whether they were done (P3)."""
    rows = await patient.rows("doubts_by_effect")
    if not rows:
        return well("no operation is in doubt")
    told = ", ".join(
        f"{row['operations']} of {row['kind']} ({row['recovery']}), the oldest for "
        f"{span(row['seconds'])}"
        for row in rows
    )
    asked = {row["kind"] for row in rows if row["recovery"] != "hold"}
    known = {kind for one in await patient.living() for kind in one.effects}
    unknown = sorted(asked - known)
    advice = "look at the desk: earnest operations list --state unknown"
    if unknown:
        return bad(told, f"no living worker can ask about {', '.join(unknown)}; {advice}")
    return warn(told, advice)


async def calls(patient: Patient) -> Finding:
    row = await patient.row("overdue_call_count", patient.engine.settings.call_grace)
    if row["calls"]:
        detail = f"{row['calls']} are on their way for longer than they may be"
        return bad(detail, "a worker puts them in doubt: start one, or look at the log of one")
    return well("none is on its way for too long")


async def kinds(patient: Patient) -> Finding:
    """Kinds that runs in flight have and that nobody knows."""
    announced = {row["name"] for row in await patient.rows("announced_kinds")}
    served = {kind for one in await patient.living() for kind in one.kinds}
    flying = await histories.in_snapshot(
        patient.engine.database, lambda tx: histories.in_flight(tx, None, 100, _LOOKED_AT)
    )
    in_flight = {run.kind for run in flying}
    never = sorted(in_flight - announced - served)
    if never:
        advice = "its code was renamed, removed or never started: bring it back, or cancel the runs"
        return bad(f"runs in flight are of kinds that nobody announced: {', '.join(never)}", advice)
    idle = sorted(in_flight - served)
    if idle:
        return warn(f"no living worker knows {', '.join(idle)}", _START_WORKER)
    return well(f"{len(in_flight)} are in flight, each known to a living worker")


WORK_CHECKS: tuple[Check, ...] = (
    workers,
    kinds,
    due_runs,
    oldest_queued,
    idle_workers,
    overdue_runs,
    calls,
    doubts,
)
