"""Gauges as rows: what is counted when somebody asks for the metrics."""

from __future__ import annotations

from dataclasses import dataclass

from earnest.store.database import Database, Record

COUNTED = 100_000
"""What may be many is counted no further."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """One number; `labels` in the order of its metric."""

    labels: tuple[str, ...]
    value: float


@dataclass(frozen=True, slots=True)
class Gauges:
    """All of them, as they were in one moment."""

    unknown: list[Gauge]
    unknown_oldest: list[Gauge]
    queued: list[Gauge]
    queued_oldest: list[Gauge]
    running: list[Gauge]
    approvals: list[Gauge]
    dead_letters: list[Gauge]
    differences: list[Gauge]
    artifact_bytes: list[Gauge]


async def read(database: Database) -> Gauges:
    unknown = await database.fetch("gauge_unknown")
    queued = [one for one in await database.fetch("gauge_queued", COUNTED) if one["lane"]]
    return Gauges(
        unknown=_gauges(unknown, "effect"),
        unknown_oldest=_gauges(unknown, "effect", value="oldest"),
        queued=_gauges(queued, "lane"),
        queued_oldest=_gauges(queued, "lane", value="oldest"),
        running=_gauges(await database.fetch("gauge_running"), "lane"),
        approvals=_gauges(await database.fetch("gauge_approvals", COUNTED)),
        dead_letters=_gauges(await database.fetch("gauge_dead_letters", COUNTED)),
        differences=_gauges(await database.fetch("gauge_differences"), "effect", "kind"),
        artifact_bytes=_gauges(await database.fetch("gauge_artifacts")),
    )


def _gauges(rows: list[Record], *labels: str, value: str = "value") -> list[Gauge]:
    return [
        Gauge(tuple(str(row[label]) for label in labels), max(float(row[value] or 0), 0.0))
        for row in rows
    ]
