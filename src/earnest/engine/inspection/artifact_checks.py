"""Checks of artifacts: can they be stored, are their bytes there, and do scopes have room?"""

from __future__ import annotations

from datetime import timedelta

from earnest.domain.artifact import BlobKey
from earnest.domain.errors import StorageUnavailable
from earnest.engine.inspection.doctoring import Check, Finding, Patient, bad, size, span, warn, well
from earnest.store import artifacts

_SAMPLE = 200
_ROOMS = 10_000
_NEARLY = 0.9
_WAITS_LONG = timedelta(hours=1)


async def artifact_storage(patient: Patient) -> Finding:
    """Whether something can be written where this process keeps artifacts."""
    place = patient.engine.blobs
    if place is None:
        return well("this process keeps none")
    try:
        await place.probe()
    except StorageUnavailable as error:
        return bad(error.detail, "mend it, or set EARNEST_ARTIFACTS to another place")
    return well(f"{place.told} can be written to")


async def artifact_bytes(patient: Patient) -> Finding:
    """Whether bytes that artifacts name are where they were put, in full; of many, some."""
    place = patient.engine.blobs
    if place is None:
        return well("this process keeps none")
    found = await artifacts.sample(patient.engine.database, _SAMPLE)
    lost: list[BlobKey] = []
    for key, length in found:
        if await place.size(key) != length:
            lost.append(key)
    if lost:
        named = ", ".join(key.blob_id.hex for key in lost[:5])
        return bad(
            f"of {len(found)} contents, {len(lost)} are not in {place.told} as they were ({named})",
            "is it the right place? See EARNEST_ARTIFACTS and --home; else restore it",
        )
    return well(f"{len(found)} contents are there")


async def artifact_room(patient: Patient) -> Finding:
    quota = patient.engine.settings.artifact_quota
    rooms = await artifacts.rooms(patient.engine.database, "", _ROOMS, quota)
    tight = [(scope_id, room) for scope_id, room in rooms if room.used > _NEARLY * room.quota]
    if tight:
        told = ", ".join(
            f"{scope_id} ({size(room.used)} of {size(room.quota)})" for scope_id, room in tight[:10]
        )
        advice = "delete artifacts, or give more: earnest artifacts quota SCOPE SIZE"
        return warn(f"the room for artifacts is nearly full in {told}", advice)
    return well(f"{len(rooms)} scopes have artifacts, all with room left")


async def artifact_collection(patient: Patient) -> Finding:
    """Whether bytes that nobody names any more are taken away."""
    row = await patient.row("uncollected_blobs", _WAITS_LONG)
    if row["blobs"]:
        detail = f"{row['blobs']} contents wait to be removed, the first for {span(row['seconds'])}"
        return warn(
            detail, "start a worker; if one runs, see its log, or: earnest artifacts collect"
        )
    return well("nothing waits to be removed for long")


ARTIFACT_CHECKS: tuple[Check, ...] = (
    artifact_storage,
    artifact_bytes,
    artifact_room,
    artifact_collection,
)
