"""What the authorisation matrix asks for: one real thing for each parameter of a path, and for each
route that takes a body one that means something.

Whoever adds a route with a parameter of its own adds a maker here, and what the route is sent; the
rest of the matrix is generated. What is made belongs to `member`, who is called ann, in the scope
`demo`.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from earnest.domain import ids
from earnest.engine.process import principals
from earnest.engine.process.access import read_token
from earnest.engine.process.actors import Role
from earnest.engine.process.tokens import issue_token
from tests.doors.api.outside import Outside

Maker = Callable[[Outside], Awaitable[str]]
Route = tuple[str, str]

ORDER = {"order_id": "17", "amount": "20.00"}
WEBHOOK = {"url": "https://example.com/hooks", "types": ["*"]}
MAKERS: dict[str, Maker] = {}
"""By parameter: makes a new thing in the scope `demo` and returns its id."""

NAMES = {"name": "go", "source": "bank"}
"""Parameters that are no ids: any text is one."""

NOWHERE: dict[str, str] = {
    "run_id": "run",
    "operation_id": "op",
    "artifact_id": "art",
    "approval_id": "apr",
    "webhook_id": "sink",
    "delivery_id": "dlv",
    "sweep_id": "sweep",
    "difference_id": "diff",
}
"""Parameters that are TypeIDs, with their prefix: what is malformed has no other answer."""

BODIES: dict[Route, Any] = {
    ("POST", "/v1/runs"): {"kind": "shop.echo", "input": 1},
    ("POST", "/v1/runs/{run_id}/signals/{name}"): {"payload": 1},
    ("POST", "/v1/operations/{operation_id}/resolution"): {
        "outcome": "released",
        "evidence": "a letter",
    },
    ("POST", "/v1/differences/{difference_id}/close"): {"note": "seen to"},
    ("POST", "/v1/sweeps"): {"effect": "shop.opaque"},
    ("POST", "/v1/tokens"): {"principal_id": "ann"},
    ("POST", "/v1/webhooks"): WEBHOOK,
    ("PATCH", "/v1/webhooks/{webhook_id}"): {"state": "paused"},
    ("PUT", "/v1/principals/{principal_id}"): {"roles": ["member"]},
    ("PUT", "/v1/artifact-quotas/{scope_id}"): {"quota_bytes": 1_000_000},
}
MORE: dict[Route, dict[str, Any]] = {
    ("POST", "/v1/artifacts"): {
        "content": b"bytes",
        "params": {"name": "a.bin"},
        "headers": {"Content-Type": "application/octet-stream"},
    },
}
"""What else a request needs."""

SEEN_BY = {"approval_id": {Role.MEMBER, Role.OPERATOR, Role.APPROVER}}
"""Where a thing is addressed to one role: who sees the sample, of all whom the rule names."""

OPENED_BY = {("POST", "/v1/approvals/{approval_id}/decision"): {Role.APPROVER}}
"""And which role may do something with it."""

MAKES: dict[Route, int] = {("PUT", "/v1/principals/{principal_id}"): 412}
"""What makes a thing under the name that the path gives it: each scope has names of its own, and
where there is none yet no version was looked at."""

OPENS_WITH: dict[Route, int] = {
    ("POST", "/v1/runs/{run_id}/retry"): 409,  # in doubt: it must be settled first
    ("POST", "/v1/operations/{operation_id}/lookup"): 409,  # a provider that cannot be asked
    ("POST", "/v1/sweeps"): 400,  # a provider that cannot be listed
}
"""What whoever may do it hears, where the sample does not let it succeed."""

VERSIONS = {"operation_id": 3, "principal_id": 1, "approval_id": 1, "difference_id": 1}
"""The version of a new thing, for `If-Match`."""


def sample(parameter: str) -> Callable[[Maker], Maker]:
    def keep(maker: Maker) -> Maker:
        MAKERS[parameter] = maker
        return maker

    return keep


@sample("run_id")
async def a_run_in_doubt(outside: Outside) -> str:
    run = await outside.submit("shop.refund", ORDER, key=uuid.uuid4().hex)
    await outside.drain()
    return str(run["id"])


@sample("operation_id")
async def an_operation_in_doubt(outside: Outside) -> str:
    run_id = await a_run_in_doubt(outside)
    (operation,) = (await outside.get(f"/v1/runs/{run_id}/operations")).json()["items"]
    return str(operation["id"])


@sample("artifact_id")
async def an_artifact(outside: Outside) -> str:
    more = MORE["POST", "/v1/artifacts"]
    made = await outside.post("/v1/artifacts", "member", **more)
    assert made.status_code == 201, made.text
    return str(made.json()["id"])


@sample("approval_id")
async def an_approval(outside: Outside) -> str:
    run = await outside.submit("shop.ask", "a refund", key=uuid.uuid4().hex)
    await outside.drain()
    pending = (await outside.get("/v1/approvals", params={"limit": 100})).json()["items"]
    (found,) = [one["id"] for one in pending if one["run_id"] == run["id"]]
    return str(found)


@sample("token_id")
async def a_token(outside: Outside) -> str:
    return read_token(await issue_token(outside.engine, "demo", "ann"))[0]


@sample("principal_id")
async def a_principal(outside: Outside) -> str:
    name = f"p-{uuid.uuid4().hex}"
    await principals.ensure_principal(outside.engine, "demo", name, ["approver"])
    return name


@sample("webhook_id")
async def a_webhook(outside: Outside) -> str:
    made = await outside.post("/v1/webhooks", "admin", json=WEBHOOK)
    assert made.status_code == 201, made.text
    return str(made.json()["id"])


@sample("delivery_id")
async def a_dead_letter(outside: Outside) -> str:
    sent = await outside.post(f"/v1/webhooks/{await a_webhook(outside)}/test", "admin")
    async with outside.engine.database.connection() as tx:
        await tx.execute("UPDATE delivery SET state = 'dead', ended_at = clock()")
    return str(sent.json()["id"])


@sample("source_name")
async def a_source(outside: Outside) -> str:
    body = _new_source()
    made = await outside.post("/v1/inbox-sources", "admin", json=body)
    assert made.status_code == 201, made.text
    return body["name"]


def _new_source() -> dict[str, str]:
    """Names of sources are shared by all scopes."""
    return {"name": f"s-{uuid.uuid4().hex[:20]}"}


@sample("sweep_id")
async def a_sweep(outside: Outside) -> str:
    return ids.show("sweep", await _put_sweep(outside))


async def _put_sweep(outside: Outside) -> uuid.UUID:
    sweep_id = ids.new_id()
    async with outside.engine.database.connection() as tx:
        await tx.execute(
            "INSERT INTO sweep (scope_id, sweep_id, effect, since, state, created_by, created_at, "
            "finished_at) VALUES ('demo', $1, 'shop.opaque', clock(), 'complete', 'olga', clock(), "
            "clock())",
            sweep_id,
        )
    return sweep_id


@sample("difference_id")
async def a_difference(outside: Outside) -> str:
    difference_id = ids.new_id()
    async with outside.engine.database.connection() as tx:
        await tx.execute(
            "INSERT INTO sweep_difference (scope_id, difference_id, effect, kind, why, subject, "
            "happened_at, state, found_at, seen_at) VALUES ('demo', $1, 'shop.opaque', "
            "'effect_without_record', 'no_operation', $2, clock(), 'open', clock(), clock())",
            difference_id, difference_id.hex,
        )  # fmt: skip
    return ids.show("diff", difference_id)


@sample("scope_id")
async def the_scope(outside: Outside) -> str:
    return "demo"


async def request_of(
    outside: Outside, route: Route, who: str | None, parameters: dict[str, str]
) -> dict[str, Any]:
    """How the route is asked, by whoever asks."""
    more = MORE.get(route, {})
    method, path = route
    headers = {**more.get("headers", {})}
    for parameter, version in VERSIONS.items():
        if f"{{{parameter}}}" in path and method != "GET":
            headers["If-Match"] = f'"{version}"'
    if route == ("POST", "/v1/runs"):
        headers["Idempotency-Key"] = f"key of {who}"
    body = {} if "content" in more else {"json": await _body(outside, route, parameters)}
    return {**body, **more, "headers": headers}


async def _body(outside: Outside, route: Route, parameters: dict[str, str]) -> Any:
    if route == ("POST", "/v1/scopes"):
        return {"id": f"s-{uuid.uuid4().hex[:20]}"}
    if route == ("POST", "/v1/approvals/{approval_id}/decision"):
        asked = await outside.get(f"/v1/approvals/{parameters['approval_id']}")
        return {"decision": "approve", "digest": asked.json().get("digest", "x" * 64)}
    if route == ("POST", "/v1/inbox-sources"):
        return _new_source()
    return BODIES.get(route)
