"""What handlers wrote for people, over HTTP: by page, of one attempt, and nowhere else (P21)."""

from __future__ import annotations

from typing import Any

from earnest import Context
from earnest.engine.process.engine import Engine
from earnest.engine.process.kinds import RunKind
from tests.doors.api.outside import Outside

SAID = "the customer is called Ann Smith"


def add_writer(engine: Engine) -> None:
    async def write(ctx: Context, count: int) -> None:
        for number in range(count):
            ctx.log(f"{SAID} {number}", number=number)
        if ctx.attempt == 1:
            raise RuntimeError("again")

    engine.kinds.add(make_kind("shop.write", write))


def make_kind(name: str, handler: Any) -> RunKind[Any, Any]:
    from earnest import App

    app = App("writers")
    app.run(name, retry_first="0s")(handler)
    return app.kinds[name]


async def test_lines_are_listed_by_page_and_attempt(outside: Outside, engine: Engine) -> None:
    add_writer(engine)
    run = await outside.submit("shop.write", 3)
    await outside.drain()
    path = f"/v1/runs/{run['id']}/logs"
    found: list[dict[str, Any]] = []
    query: dict[str, Any] = {"limit": 4}
    while True:
        page = (await outside.get(path, params=query)).json()
        found += page["items"]
        if page["next_cursor"] is None:
            break
        query = {"limit": 4, "cursor": page["next_cursor"]}
    assert [(one["attempt"], one["number"]) for one in found] == [
        (attempt, number) for attempt in (1, 2) for number in (1, 2, 3)
    ]
    assert found[1]["message"] == f"{SAID} 1"
    assert (found[1]["fields"], page["left_out"]) == ({"number": 1}, 0)
    second = (await outside.get(path, params={"attempt": 2})).json()["items"]
    assert second == found[3:]
    assert (await outside.get(path, params={"attempt": 0})).status_code == 400


async def test_lines_are_in_no_list_and_no_event(outside: Outside, engine: Engine) -> None:
    """P21."""
    add_writer(engine)
    run = await outside.submit("shop.write", 1)
    await outside.drain()
    for path in ("/v1/runs", "/v1/events", *(f"/v1/runs/{run['id']}{part}" for part in PARTS)):
        assert SAID not in (await outside.get(path)).text, path
    assert (await outside.get(f"/v1/runs/{run['id']}/logs", "member2")).status_code == 404
    assert SAID in (await outside.get(f"/v1/runs/{run['id']}/logs", "operator")).text


PARTS = ("", "/events", "/attempts", "/steps", "/explain")
