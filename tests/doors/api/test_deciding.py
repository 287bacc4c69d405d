"""Cancel, retry, signal: what came of it is told truthfully, and once decided stays decided."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from earnest.engine.attempts.working import Worker
from earnest.engine.process.doorbells import MOVED
from tests.doors.api.outside import Outside
from tests.doors.api.shop import Bank

ORDER = {"order_id": "17", "amount": "20.00"}


async def _cancel(outside: Outside, run: dict[str, Any], who: str = "member") -> tuple[int, Any]:
    answer = await outside.post(f"/v1/runs/{run['id']}/cancel", who)
    body = answer.json()
    assert answer.headers["etag"] == f'"{body["run"]["version"]}"'
    assert body["run_id"] == body["run"]["id"] == run["id"]
    return answer.status_code, body


# ---- cancel ------------------------------------------------------------------------------------


async def test_a_queued_run_is_cancelled_and_cancelling_it_again_says_the_same(
    outside: Outside,
) -> None:
    """P20."""
    run = await outside.submit("shop.echo", 1)
    for _ in range(2):
        status, body = await _cancel(outside, run)
        assert (status, body["outcome"], body["run"]["status"]) == (200, "cancelled", "cancelled")
    await outside.drain()
    assert (await outside.get(f"/v1/runs/{run['id']}")).json()["attempt"] == 0


async def test_a_run_that_has_ended_is_too_late_to_cancel(outside: Outside) -> None:
    """P20; never a conflict."""
    run = await outside.submit("shop.echo", 1)
    await outside.drain()
    status, body = await _cancel(outside, run)
    assert (status, body["outcome"], body["run"]["status"]) == (200, "too_late", "succeeded")


async def test_a_running_run_is_asked_and_then_stops(outside: Outside) -> None:
    """P20: until it has stopped nobody says that it has."""
    run = await outside.submit("shop.sleep")
    worker = Worker(outside.engine, keeper=False)
    working = asyncio.create_task(worker.run())
    path = f"/v1/runs/{run['id']}"
    try:
        await _until(outside, path, "running")
        status, body = await _cancel(outside, run)
        assert (status, body["outcome"], body["run"]["status"]) == (202, "requested", "running")
        assert body["run"]["cancel_requested"]
        await _until(outside, path, "cancelled")
    finally:
        worker.stop()
        await working


async def test_a_run_in_doubt_is_cancelled_and_its_operation_stays_on_the_desk(
    outside: Outside,
) -> None:
    run = await outside.submit("shop.refund", ORDER)
    await outside.drain()
    status, body = await _cancel(outside, run)
    assert (status, body["outcome"], body["run"]["status"]) == (200, "cancelled", "cancelled")
    desk = (await outside.get("/v1/operations?state=unknown", "operator")).json()["items"]
    assert [operation["run_id"] for operation in desk] == [run["id"]]


async def test_an_operator_cancels_for_a_member_and_the_history_says_who(outside: Outside) -> None:
    run = await outside.submit("shop.wait", "go")
    await outside.drain()
    await _cancel(outside, run, "operator")
    events = (await outside.get(f"/v1/runs/{run['id']}/events")).json()["items"]
    (asked,) = [event for event in events if event["type"] == "run.cancel_requested"]
    assert asked["payload"]["by"] == "dan"


async def _until(outside: Outside, path: str, status: str) -> None:
    async with asyncio.timeout(10):
        while (await outside.get(path)).json()["status"] != status:
            await outside.engine.bells.wait(MOVED, timedelta(milliseconds=50))


# ---- retry -------------------------------------------------------------------------------------


async def _failed(outside: Outside, key: str = "k") -> dict[str, Any]:
    run = await outside.submit("shop.fail", "no luck", key=key)
    await outside.drain()
    found: dict[str, Any] = (await outside.get(f"/v1/runs/{run['id']}")).json()
    assert found["status"] == "failed"
    return found


async def test_a_retry_is_a_new_run_and_the_old_one_does_not_change(outside: Outside) -> None:
    """P22."""
    old = await _failed(outside)
    answer = await outside.post(f"/v1/runs/{old['id']}/retry")
    new = answer.json()
    assert answer.status_code == 202
    assert answer.headers["location"] == f"/v1/runs/{new['id']}"
    assert new["id"] != old["id"]
    assert (new["revision"], new["retry_of"], new["lineage_id"]) == (2, old["id"], old["id"])
    assert new["input"] == old["input"]
    assert (await outside.get(f"/v1/runs/{old['id']}")).json() == old


async def test_a_retry_with_a_key_is_done_once(outside: Outside) -> None:
    """P7, P22."""
    old = await _failed(outside)
    headers = {"Idempotency-Key": "again"}
    answers = [await outside.post(f"/v1/runs/{old['id']}/retry", headers=headers) for _ in range(3)]
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert ["idempotency-replayed" in answer.headers for answer in answers] == [False, True, True]


async def test_a_key_used_for_a_submit_is_not_good_for_a_retry(outside: Outside) -> None:
    old = await _failed(outside, key="k")
    answer = await outside.post(f"/v1/runs/{old['id']}/retry", headers={"Idempotency-Key": "k"})
    assert (answer.status_code, answer.json()["code"]) == (409, "idempotency_conflict")


async def test_a_lineage_has_one_active_run(outside: Outside) -> None:
    """P22; also when eight people retry at once."""
    old = await _failed(outside)
    path = f"/v1/runs/{old['id']}/retry"
    answers = await asyncio.gather(*(outside.post(path) for _ in range(8)))
    assert sorted(answer.status_code for answer in answers) == [202] + [409] * 7
    assert {a.json()["code"] for a in answers if a.status_code == 409} == {"conflict"}


async def test_a_run_that_is_active_or_has_succeeded_is_not_retried(outside: Outside) -> None:
    run = await outside.submit("shop.echo", 1)
    for _ in range(2):
        answer = await outside.post(f"/v1/runs/{run['id']}/retry")
        assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
        await outside.drain()


async def test_a_run_whose_operation_is_in_doubt_is_not_retried(outside: Outside) -> None:
    """The money may have moved: it must be settled first."""
    run = await outside.submit("shop.refund", ORDER)
    await outside.drain()
    await _cancel(outside, run)
    answer = await outside.post(f"/v1/runs/{run['id']}/retry")
    told = answer.json()
    assert (answer.status_code, told["code"], told["reason"]) == (409, "conflict", "under_review")
    (operation_id,) = told["operation_ids"]
    assert (await outside.get(f"/v1/operations/{operation_id}")).json()["state"] == "unknown"


async def test_what_was_submitted_is_not_sent_again_unless_the_caller_insists(
    outside: Outside,
) -> None:
    """P22: a member who retries without a thought does not pay twice."""
    run = await outside.submit("shop.refund", ORDER)
    await outside.drain()
    await _cancel(outside, run)
    (operation,) = (await outside.get(f"/v1/runs/{run['id']}/operations")).json()["items"]
    verdict = {"outcome": "submitted", "receipt": {"id": "r-1"}, "evidence": "the statement"}
    settled = await outside.post(
        f"/v1/operations/{operation['id']}/resolution",
        "operator",
        json=verdict,
        headers={"If-Match": f'"{operation["version"]}"'},
    )
    assert settled.status_code == 200, settled.text
    path = f"/v1/runs/{run['id']}/retry"
    bodies: list[dict[str, Any]] = [{}, {"json": {}}, {"json": {"repeat_submitted": False}}]
    for body in bodies:
        told = (await outside.post(path, **body)).json()
        assert (told["status"], told["code"]) == (409, "conflict")
        assert told["operation_ids"] == [operation["id"]]
        assert '"repeat_submitted": true' in told["detail"]
    assert (await outside.post(path, json={"repeat_submitted": "yes"})).status_code == 400
    insisted = await outside.post(path, json={"repeat_submitted": True})
    assert (insisted.status_code, insisted.json()["revision"]) == (202, 2)


# ---- signals -----------------------------------------------------------------------------------


async def test_a_signal_wakes_the_run_that_waits_for_it(outside: Outside) -> None:
    run = await outside.submit("shop.wait", "go/on")
    await outside.drain()
    path = f"/v1/runs/{run['id']}"
    answer = await outside.post(f"{path}/signals/go%2Fon", json={"payload": {"ok": [True]}})
    assert answer.status_code == 404, "a slash ends a name in a path"
    run = await outside.submit("shop.wait", "gö on", key="b")
    await outside.drain()
    path = f"/v1/runs/{run['id']}"
    answer = await outside.post(f"{path}/signals/g%C3%B6%20on", json={"payload": {"ok": [True]}})
    assert answer.status_code == 202
    assert answer.json() == {"run_id": run["id"], "name": "gö on", "number": 1}
    await outside.drain()
    assert (await outside.get(path)).json()["output"] == {"ok": [True]}


async def test_a_signal_with_a_key_is_stored_once(outside: Outside) -> None:
    run = await outside.submit("shop.wait", "go")
    path = f"/v1/runs/{run['id']}/signals/go"
    headers = {"Idempotency-Key": "s"}
    numbers = [
        (await outside.post(path, json={"payload": 1}, headers=headers)).json()["number"]
        for _ in range(2)
    ]
    assert numbers == [1, 1]
    assert (await outside.post(path)).json()["number"] == 2
    other = await outside.post(path, json={"payload": 2}, headers=headers)
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_conflict")


async def test_a_run_that_has_ended_takes_no_signal(outside: Outside) -> None:
    run = await outside.submit("shop.echo", 1)
    await outside.drain()
    answer = await outside.post(f"/v1/runs/{run['id']}/signals/go")
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")


async def test_a_signal_that_cannot_be_kept_is_refused(outside: Outside) -> None:
    run = await outside.submit("shop.wait", "go")
    refused: list[tuple[str, Any]] = [
        ("go", {"payload": "x" * 16_384}),
        ("go", {"surprise": 1}),
        ("go", [1]),
        ("x" * 201, {}),
        ("%00", {}),
    ]
    for name, body in refused:
        answer = await outside.post(f"/v1/runs/{run['id']}/signals/{name}", json=body)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), name


async def test_two_keys_are_refused_wherever_a_key_is_taken(outside: Outside) -> None:
    run = await outside.submit("shop.refund", ORDER)
    await outside.drain()
    (operation,) = (await outside.get(f"/v1/runs/{run['id']}/operations")).json()["items"]
    keys = [("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
    verdict = {"outcome": "released", "evidence": "the bank's letter"}
    for path, body in (
        (f"/v1/runs/{run['id']}/cancel", None),
        (f"/v1/runs/{run['id']}/retry", None),
        (f"/v1/runs/{run['id']}/signals/go", {}),
        (f"/v1/operations/{operation['id']}/resolution", verdict),
        (f"/v1/operations/{operation['id']}/lookup", None),
    ):
        answer = await outside.post(path, "operator", json=body, headers=keys)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), path


async def test_cancelling_after_the_bank_answered_shows_what_was_paid(
    outside: Outside, bank: Bank
) -> None:
    """P20: what was submitted before the end is listed."""
    bank.silent = False
    run = await outside.submit("shop.refund", ORDER)
    await outside.drain()
    assert (await _cancel(outside, run))[1]["outcome"] == "too_late"
    (operation,) = (await outside.get(f"/v1/runs/{run['id']}/operations")).json()["items"]
    assert operation["state"] == "submitted"
