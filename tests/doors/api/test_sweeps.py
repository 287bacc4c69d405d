"""Sweeps over HTTP: asked for, followed, read page by page, and what they found is closed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from earnest import Effect, Listed
from earnest.engine.process.engine import Engine
from earnest.engine.sweeping.sweeping import SweepSettings, take_and_sweep
from tests.doors.api.outside import Outside

PATH = "/v1/sweeps"
EFFECT = {"effect": "api.listed"}


class Planted(Effect[dict[str, str], dict[str, str]]):
    """Lists so many things that nobody asked for."""

    kind = "api.listed"
    count = 0

    async def submit(self, call: Any, request: dict[str, str]) -> dict[str, str]:
        return {"id": "r"}

    async def list_since(self, time: datetime) -> AsyncIterator[Listed]:
        for number in range(self.count):
            yield Listed(at=datetime.now(UTC), external_ref=f"r-{number}")


@pytest.fixture
def planted(engine: Engine) -> Planted:
    effect = Planted()
    engine.effects[effect.kind] = effect
    return effect


async def swept(outside: Outside, engine: Engine) -> dict[str, Any]:
    asked = await outside.post(PATH, "operator", json=EFFECT)
    assert asked.status_code == 202, asked.text
    assert await take_and_sweep(engine, SweepSettings(lag=timedelta(0)))
    found: dict[str, Any] = (await outside.get(asked.headers["Location"], "operator")).json()
    return found


async def test_a_sweep_is_asked_for_made_and_read_by_page(
    outside: Outside, engine: Engine, planted: Planted
) -> None:
    planted.count = 5
    done = await swept(outside, engine)
    assert (done["state"], done["counts"]["listed"], done["created_by"]) == ("complete", 5, "dan")
    assert done["open_differences"] == {"effect_without_record": 5, "record_without_effect": 0}
    found, query = [], {"limit": 2}
    while True:
        page = (await outside.get(done["links"]["differences"], "operator", params=query)).json()
        found += page["items"]
        if page["next_cursor"] is None:
            break
        query = {"limit": 2, "cursor": page["next_cursor"]}
    assert sorted(one["external_ref"] for one in found) == [f"r-{number}" for number in range(5)]
    listed = (await outside.get(PATH, "admin", params={"state": "complete"})).json()["items"]
    assert [one["id"] for one in listed] == [done["id"]]
    other = await outside.get("/v1/differences", "other operator")
    assert other.json()["items"] == []


async def test_the_same_key_asks_for_one_sweep(outside: Outside, planted: Planted) -> None:
    """P7."""
    headers = {"Idempotency-Key": "nightly"}
    first = await outside.post(PATH, "operator", json=EFFECT, headers=headers)
    again = await outside.post(PATH, "operator", json=EFFECT, headers=headers)
    assert (first.json()["id"], first.json()["state"]) == (again.json()["id"], "queued")
    assert again.headers["Idempotency-Replayed"] == "true"
    changed = {**EFFECT, "since": "2026-01-01T00:00:00Z"}
    other = await outside.post(PATH, "operator", json=changed, headers=headers)
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_conflict")
    under_way = await outside.post(PATH, "operator", json=EFFECT)
    assert under_way.status_code == 409
    assert first.json()["id"] in under_way.json()["detail"]


async def test_a_difference_is_closed_once_with_a_note(
    outside: Outside, engine: Engine, planted: Planted
) -> None:
    planted.count = 1
    await swept(outside, engine)
    open_ = {"state": "open"}
    [found] = (await outside.get("/v1/differences", "operator", params=open_)).json()["items"]
    path = f"/v1/differences/{found['id']}"
    stale = {"If-Match": '"7"'}
    body = {"note": "the old till"}
    answer = await outside.post(f"{path}/close", "operator", json=body, headers=stale)
    assert answer.status_code == 412
    fresh = {"If-Match": (await outside.get(path, "operator")).headers["ETag"]}
    for _ in range(2):
        answer = await outside.post(f"{path}/close", "operator", json=body, headers=fresh)
        assert (answer.status_code, answer.json()["closed_by"]) == (200, "dan")
    answer = await outside.post(f"{path}/close", "operator", json={"note": "another"})
    assert answer.status_code == 409
    audit = {"action": "difference.closed"}
    [entry] = (await outside.get("/v1/audit", "admin", params=audit)).json()["items"]
    assert entry["subject"] == found["id"]
    assert (await outside.get("/v1/differences", "operator", params=open_)).json()["items"] == []


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"effect": "nobody.knows"}, "is known here"),
        ({"effect": "shop.opaque"}, "list_since"),
        ({"effect": "api.listed", "since": "2999-01-01T00:00:00Z"}, "future"),
        ({"effect": "api.listed", "since": "yesterday"}, "2026-01-31"),
        ({"effect": ""}, "effect"),
    ],
)
async def test_what_cannot_be_swept_is_refused(
    outside: Outside, planted: Planted, body: dict[str, Any], told: str
) -> None:
    answer = await outside.post(PATH, "operator", json=body)
    assert answer.status_code == 400
    assert told in answer.text
