"""Reading runs and their parts: what is shown, page by page, and never more."""

from __future__ import annotations

from typing import Any

from earnest.doors.api.cursors import Cursors
from earnest.engine.process.epoch import find_epoch
from tests.doors.api.outside import Outside
from tests.doors.api.shop import Bank

ORDER = {"order_id": "17", "amount": "20.00"}
MARK = "planted-secret-93c1"


async def _all(outside: Outside, path: str, who: str = "member", limit: int = 2) -> list[Any]:
    """The items of all pages of a list."""
    joint = "&" if "?" in path else "?"
    items: list[Any] = []
    cursor = ""
    while True:
        page = (await outside.get(f"{path}{joint}limit={limit}{cursor}", who)).json()
        assert len(page["items"]) <= limit
        items += page["items"]
        if page["next_cursor"] is None:
            return items
        assert page["items"], "a page that promises more is not empty"
        cursor = f"&cursor={page['next_cursor']}"


# ---- one run -----------------------------------------------------------------------------------


async def test_a_run_shows_everything_the_contract_names(outside: Outside) -> None:
    run = await outside.submit("shop.echo", 1)
    named = """id run_id kind status version revision lineage_id conversation_id parent_run_id
        attempt input output error context labels cancel_requested last_seq created_at started_at
        finished_at links"""
    assert set(named.split()) <= set(run)


async def test_a_run_that_is_not_final_says_when_to_look_again(outside: Outside) -> None:
    run = await outside.submit("shop.echo", 1)
    path = f"/v1/runs/{run['id']}"
    assert int((await outside.get(path)).headers["retry-after"]) >= 1
    await outside.drain()
    ended = await outside.get(path)
    assert "retry-after" not in ended.headers
    assert ended.headers["etag"] == f'"{ended.json()["version"]}"' != f'"{run["version"]}"'


async def test_a_waiting_run_says_what_it_waits_for(outside: Outside) -> None:
    run = await outside.submit("shop.wait", "go")
    await outside.drain()
    answer = await outside.get(f"/v1/runs/{run['id']}")
    assert answer.json()["status"] == "waiting"
    assert answer.json()["waiting_on"][0]["name"] == "go"
    assert "retry-after" in answer.headers


async def test_the_links_of_a_run_lead_somewhere(outside: Outside) -> None:
    run = await outside.submit("shop.echo", 1)
    for name, path in run["links"].items():
        method = "POST" if name in ("cancel", "retry") else "GET"
        assert (await outside.call(method, path)).status_code in (200, 202, 409), name


# ---- lists -------------------------------------------------------------------------------------


async def test_a_list_of_runs_is_newest_first_and_complete_by_pages(outside: Outside) -> None:
    made = [(await outside.submit("shop.echo", n, key=f"k{n}"))["id"] for n in range(7)]
    assert [run["id"] for run in await _all(outside, "/v1/runs")] == made[::-1]


async def test_what_is_submitted_while_one_pages_shifts_no_page(outside: Outside) -> None:
    made = [(await outside.submit("shop.echo", n, key=f"k{n}"))["id"] for n in range(3)]
    first = (await outside.get("/v1/runs?limit=2")).json()
    await outside.submit("shop.echo", 3, key="k3")
    rest = (await outside.get(f"/v1/runs?limit=2&cursor={first['next_cursor']}")).json()
    assert [run["id"] for run in first["items"] + rest["items"]] == made[::-1]


async def test_a_page_that_ends_exactly_at_the_end_promises_no_more(outside: Outside) -> None:
    for n in range(2):
        await outside.submit("shop.echo", n, key=f"k{n}")
    assert (await outside.get("/v1/runs?limit=2")).json()["next_cursor"] is None


async def test_lists_show_neither_input_nor_output(outside: Outside, bank: Bank) -> None:
    """P21."""
    run = await outside.submit("shop.echo", {"note": MARK}, key="a")
    refund = await outside.submit("shop.refund", {**ORDER, "order_id": MARK}, key="b")
    await outside.drain()
    path = f"/v1/runs/{run['id']}"
    assert MARK in (await outside.get(path)).text
    lists = ["/v1/runs", "/v1/operations", "/v1/operations?state=unknown", f"{path}/events"]
    lists += [f"/v1/runs/{refund['id']}/events", f"{path}/attempts"]
    for listed in lists:
        assert MARK not in (await outside.get(listed, "operator")).text, listed


FILTERS = {
    "status=queued": "abc",
    "status=succeeded": "d",
    "kind=shop.order": "b",
    "lane=default": "abcd",
    "conversation_id=c-1": "b",
    "label=team:blue": "ab",
    "label=team%3Dblue": "ab",
    "label=team:blue&label=size:l": "b",
    "label=team:green": "",
    "q=ORDER": "b",
    "q=c-1": "b",
    "q=blu": "ab",
    "q=_%25": "",
    "created_after=2100-01-01T00:00:00Z": "",
    "created_before=2100-01-01T00:00:00Z": "abcd",
    "created_after=2020-01-01T00:00:00%2B02:00&kind=shop.echo": "acd",
}


async def test_filters_narrow_a_list(outside: Outside) -> None:
    await outside.submit("shop.echo", 1, key="d")
    await outside.drain()
    await outside.submit("shop.echo", 1, key="a", labels={"team": "blue"})
    labels = {"team": "blue", "size": "l"}
    await outside.submit("shop.order", ORDER, key="b", conversation_id="c-1", labels=labels)
    await outside.submit("shop.echo", 1, key="c")
    names = await _names(outside)
    for query, found in FILTERS.items():
        shown = [names[run["id"]] for run in await _all(outside, f"/v1/runs?{query}")]
        assert "".join(sorted(shown)) == found, query


async def _names(outside: Outside) -> dict[str, str]:
    """What each run was submitted under, by its id."""
    from earnest.domain import ids

    async with outside.engine.database.connection() as tx:
        rows = await tx.fetch("SELECT run_id, idempotency_key FROM run")
    return {ids.show("run", row["run_id"]): row["idempotency_key"] for row in rows}


# ---- cursors -----------------------------------------------------------------------------------


async def _a_cursor(outside: Outside) -> str:
    for n in range(2):
        await outside.submit("shop.echo", n, key=f"k{n}")
    cursor: str = (await outside.get("/v1/runs?limit=1")).json()["next_cursor"]
    return cursor


async def test_a_cursor_opens_only_the_list_it_came_from(outside: Outside) -> None:
    """P12: another filter, another list, another principal, another scope."""
    cursor = await _a_cursor(outside)
    assert (await outside.get(f"/v1/runs?cursor={cursor}")).status_code == 200
    for path, who in (
        ("/v1/runs?status=queued&", "member"),
        ("/v1/runs?kind=shop.echo&", "member"),
        ("/v1/operations?", "operator"),
        ("/v1/runs?", "member2"),
        ("/v1/runs?", "operator"),
        ("/v1/runs?", "other member"),
    ):
        answer = await outside.get(f"{path}cursor={cursor}", who)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), (path, who)


async def test_a_cursor_that_was_not_given_out_is_refused(outside: Outside) -> None:
    cursor = await _a_cursor(outside)
    forged = [cursor[:n] + ("A" if cursor[n] != "A" else "B") + cursor[n + 1 :] for n in (0, 25)]
    others = ["", "x", cursor[:-2], cursor + "AA", "%00" + cursor, "%C3%A4", "A" * 5000]
    for text in forged + others:
        answer = await outside.get(f"/v1/runs?cursor={text}")
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), text


async def test_a_page_may_change_its_limit(outside: Outside) -> None:
    cursor = await _a_cursor(outside)
    assert len((await outside.get(f"/v1/runs?limit=9&cursor={cursor}")).json()["items"]) == 1


async def test_every_process_reads_the_cursors_of_every_other(outside: Outside) -> None:
    listing = {"list": "runs"}
    one, other = Cursors(outside.engine.database), Cursors(outside.engine.database)
    assert await other.read(listing, await one.write(listing, ["place"])) == ["place"]


# ---- parts -------------------------------------------------------------------------------------


async def test_events_are_read_in_order_without_a_gap(outside: Outside) -> None:
    run = await outside.submit("shop.many", 5)
    await outside.drain()
    path = f"/v1/runs/{run['id']}/events"
    events = await _all(outside, path)
    head = (await outside.get(f"/v1/runs/{run['id']}")).json()["last_seq"]
    assert [event["seq"] for event in events] == list(range(1, head + 1))
    assert (events[0]["type"], events[-1]["type"]) == ("run.submitted", "run.succeeded")
    assert [event["seq"] for event in events if event.get("final")] == [head]
    assert {event["run_id"] for event in events} == {run["id"]}


async def test_events_go_on_after_a_number(outside: Outside) -> None:
    run = await outside.submit("shop.echo", 1)
    await outside.drain()
    path = f"/v1/runs/{run['id']}/events"
    page = (await outside.get(f"{path}?after_seq=1")).json()
    assert page["items"][0]["seq"] == 2
    assert (page["head_seq"], page["minimum_retained_seq"]) == (page["items"][-1]["seq"], 1)
    at_the_end = (await outside.get(f"{path}?after_seq={page['head_seq']}")).json()
    assert (at_the_end["items"], at_the_end["next_cursor"]) == ([], None)


async def test_a_number_that_is_not_kept_any_more_or_not_reached_asks_to_resync(
    outside: Outside,
) -> None:
    """P9."""
    run = await outside.submit("shop.many", 9)
    await outside.drain()
    path = f"/v1/runs/{run['id']}"
    head = (await outside.get(path)).json()["last_seq"]
    async with outside.engine.database.connection() as tx:
        await tx.execute("DELETE FROM event WHERE seq < 10")
    for after in (0, 1, 8, head + 1, 2**63 - 1):
        answer = await outside.get(f"{path}/events?after_seq={after}")
        told = answer.json()
        assert (answer.status_code, told["code"]) == (410, "resync_required")
        assert (told["after_seq"], told["minimum_retained_seq"]) == (after, 10)
        assert told["head_seq"] == told["snapshot"]["last_seq"] == head
    kept = (await outside.get(f"{path}/events?after_seq=9")).json()["items"]
    assert [event["seq"] for event in kept] == list(range(10, head + 1))


async def test_a_number_that_is_none_is_refused(outside: Outside) -> None:
    run = await outside.submit("shop.echo", 1)
    for after in ("-1", "x", "1.5", "", str(2**63), "0x1"):
        answer = await outside.get(f"/v1/runs/{run['id']}/events?after_seq={after}")
        told = (answer.status_code, answer.json()["errors"][0]["pointer"])
        assert told == (400, "/after_seq"), after


async def test_a_number_may_carry_its_epoch_and_is_not_taken_for_one_of_another(
    outside: Outside,
) -> None:
    """P9."""
    run = await outside.submit("shop.echo", 1)
    await outside.drain()
    path = f"/v1/runs/{run['id']}/events"
    epoch = await find_epoch(outside.engine)
    page = await outside.get(f"{path}?after_seq={epoch}-2")
    assert page.json()["items"][0]["seq"] == 3
    foreign = await outside.get(f"{path}?after_seq=abc-2")
    assert (foreign.status_code, foreign.json()["after_seq"]) == (410, 2)


async def test_a_run_of_which_no_event_is_kept_does_not_look_as_if_it_had_none(
    outside: Outside,
) -> None:
    """P9."""
    run = await outside.submit("shop.echo", 1)
    await outside.drain()
    path = f"/v1/runs/{run['id']}"
    head = (await outside.get(path)).json()["last_seq"]
    async with outside.engine.database.connection() as tx:
        await tx.execute("DELETE FROM event")
    answer = await outside.get(f"{path}/events")
    assert (answer.status_code, answer.json()["minimum_retained_seq"]) == (410, head + 1)
    assert (await outside.get(f"{path}/events?after_seq={head}")).json()["items"] == []


async def test_who_takes_any_form_is_given_a_page(outside: Outside) -> None:
    run = await outside.submit("shop.echo", 1)
    answer = await outside.get(f"/v1/runs/{run['id']}/events", headers={"Accept": "*/*"})
    assert answer.headers["content-type"] == "application/json"


async def test_attempts_steps_and_operations_are_listed_in_order(
    outside: Outside, bank: Bank
) -> None:
    many = await outside.submit("shop.many", 5, key="a")
    failed = await outside.submit("shop.fail", "no luck", key="b")
    bank.silent = False
    paid = await outside.submit("shop.refund", ORDER, key="c")
    await outside.drain()
    steps = await _all(outside, f"/v1/runs/{many['id']}/steps")
    assert [step["name"] for step in steps] == [f"step {n}" for n in range(5)]
    assert steps[3]["result"] == "3 costs 20.00"
    (attempt,) = await _all(outside, f"/v1/runs/{failed['id']}/attempts")
    assert (attempt["number"], attempt["outcome"]) == (1, "failed")
    assert attempt["id"].startswith("att_")
    (operation,) = await _all(outside, f"/v1/runs/{paid['id']}/operations")
    assert (operation["state"], operation["request"]) == ("submitted", ORDER)
    assert operation["receipt"]["id"] == operation["external_ref"]
    assert operation["run_id"] == paid["id"]


async def test_the_events_of_a_retry_and_of_a_parent_name_other_runs_as_outside(
    outside: Outside,
) -> None:
    """The caller checks that no answer holds an id in its inner form."""
    failed = await outside.submit("shop.fail", "no luck", key="a")
    parent = await outside.submit("shop.parent", 2, key="b")
    await outside.drain()
    retried = (await outside.post(f"/v1/runs/{failed['id']}/retry")).json()
    for run in (failed, parent, retried):
        events = await _all(outside, f"/v1/runs/{run['id']}/events", limit=100)
        assert events[0]["type"] == "run.submitted"
    assert failed["id"] in str(await _all(outside, f"/v1/runs/{retried['id']}/events"))


async def test_a_failed_run_says_why(outside: Outside) -> None:
    run = await outside.submit("shop.fail", "no luck")
    await outside.drain()
    found = (await outside.get(f"/v1/runs/{run['id']}")).json()
    assert found["status"] == "failed"
    assert "no luck" in found["error"]["detail"]
