"""`GET /v1/runs/{id}/explain`: the reasons as the contract has them."""

from __future__ import annotations

from tests.doors.api.outside import Outside

ORDER = {"order_id": "17", "amount": "471147.00"}


async def test_a_run_in_doubt_names_its_operation_and_the_call_that_settles_it(
    outside: Outside,
) -> None:
    """P3, P21: what the answer says to call is there, and opens for the one that it names."""
    run = await outside.submit("shop.refund", ORDER)
    await outside.drain()
    answer = await outside.get(run["links"]["explain"])
    assert answer.status_code == 200
    told = answer.json()
    assert (told["run_id"], told["status"]) == (run["id"], "unknown")
    (reason,) = [one for one in told["reasons"] if one["code"] == "operation_in_doubt"]
    (operation,) = reason["refs"]
    assert (operation["type"], operation["status"]) == ("operation", "unknown")
    (mover,) = reason["moved_by"]
    method, path = mover["call"].split()
    assert (method, mover["by"]) == ("POST", "operator")
    body = {"outcome": "released", "evidence": "a letter"}
    settled = await outside.call(method, path, "operator", json=body, headers={"If-Match": '"3"'})
    assert settled.status_code == 200, settled.text
    assert "471147" not in answer.text


async def test_a_run_that_waits_for_a_signal_goes_on_by_the_call_that_is_named(
    outside: Outside,
) -> None:
    run = await outside.submit("shop.wait", "paid in full")
    await outside.drain()
    told = (await outside.get(f"/v1/runs/{run['id']}/explain")).json()
    reason = told["reasons"][0]
    assert (reason["code"], reason["until"]) == ("waits_for_signal", None)
    method, path = reason["moved_by"][0]["call"].split()
    answer = await outside.call(method, path, json={"payload": 17})
    assert answer.status_code == 202
    await outside.drain()
    assert (await outside.get(f"/v1/runs/{run['id']}")).json()["output"] == 17


async def test_a_queued_run_says_that_no_worker_lives(outside: Outside) -> None:
    run = await outside.submit("shop.echo", 1)
    told = (await outside.get(f"/v1/runs/{run['id']}/explain", "operator")).json()
    assert [one["code"] for one in told["reasons"]] == ["no_worker"]
    assert told["since"] == run["created_at"]
