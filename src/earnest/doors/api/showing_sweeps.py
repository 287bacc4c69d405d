"""Sweeps and differences as bodies."""

from __future__ import annotations

from collections.abc import Mapping

from earnest.domain import ids, sweep
from earnest.domain.sweep import DifferenceKind
from earnest.doors.api import shapes_of_sweeps as shapes


def show_sweep(found: sweep.Sweep) -> shapes.Sweep:
    path = f"/v1/sweeps/{ids.show('sweep', found.sweep_id)}"
    counts = found.counts
    return {
        "id": ids.show("sweep", found.sweep_id),
        "effect": found.effect,
        "since": found.since,
        "state": found.state,
        "why": found.why,
        "stage": found.stage,
        "counts": {
            "listed": counts.listed,
            "matched": counts.matched,
            "elsewhere": counts.elsewhere,
            "settled": counts.settled,
            "unjudged": counts.unjudged,
            "asked": counts.asked,
        },
        "listed_to": found.listed_to,
        "takes": found.takes,
        "created_by": found.created_by,
        "created_at": found.created_at,
        "started_at": found.started_at,
        "finished_at": found.finished_at,
        "links": {"self": path, "differences": f"{path}/differences"},
    }


def show_sweep_detail(
    found: sweep.Sweep, open_: Mapping[DifferenceKind, int]
) -> shapes.SweepDetail:
    return {
        **show_sweep(found),
        "open_differences": {
            "effect_without_record": open_[DifferenceKind.EFFECT_WITHOUT_RECORD],
            "record_without_effect": open_[DifferenceKind.RECORD_WITHOUT_EFFECT],
        },
    }


def show_difference(found: sweep.Difference) -> shapes.Difference:
    told = found.found
    operation = told.operation_id
    return {
        "id": ids.show("diff", found.difference_id),
        "effect": found.effect,
        "kind": told.kind,
        "why": told.why,
        "operation_id": None if operation is None else ids.show("op", operation),
        "listed_id": told.listed_id,
        "external_ref": told.external_ref,
        "happened_at": told.happened_at,
        "state": found.state,
        "found_at": found.found_at,
        "seen_at": found.seen_at,
        "ended_at": found.ended_at,
        "closed_by": found.closed_by,
        "note": found.note,
        "version": found.version,
    }
