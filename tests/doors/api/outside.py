"""A caller from outside, who holds every answer against the contract.

Each answer must be one that the OpenAPI document declares (see `contract`); each refusal must be a
problem. A test that gets an undeclared answer fails, whatever it looks for.
"""

from __future__ import annotations

import re
from typing import Any, cast

import httpx2
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.routing import Match

from earnest.engine.attempts.working import Worker
from earnest.engine.process.engine import Engine
from tests.doors.api.contract import Contract

URL = "http://earnest.test"

_BARE_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

_CONTRACT: list[Contract] = []
"""It is the same for every application, and takes a moment to make."""


class Outside:
    """Calls the application as one of the people whose tokens it has; as nobody without `who`."""

    def __init__(self, app: FastAPI, engine: Engine, tokens: dict[str, str]) -> None:
        self.app = app
        self.engine = engine
        self.tokens = tokens
        transport = httpx2.ASGITransport(app)
        self._client = httpx2.AsyncClient(transport=transport, base_url=URL)

    async def __aenter__(self) -> Outside:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def call(
        self,
        method: str,
        path: str,
        who: str | None = "member",
        *,
        headers: Any = None,
        **more: Any,
    ) -> httpx2.Response:
        sent = httpx2.Headers(headers)
        if who is not None:
            sent["Authorization"] = f"Bearer {self.tokens[who]}"
        answer = await self._client.request(method, path, headers=sent, **more)
        hold_against_contract(self.app, method, answer)
        return answer

    async def get(self, path: str, who: str | None = "member", **more: Any) -> httpx2.Response:
        return await self.call("GET", path, who, **more)

    async def post(self, path: str, who: str | None = "member", **more: Any) -> httpx2.Response:
        return await self.call("POST", path, who, **more)

    async def submit(
        self, kind: str, input: Any = None, who: str = "member", key: str = "", **more: Any
    ) -> dict[str, Any]:
        """Submits a run that must be accepted; returns its body."""
        body = {"kind": kind, "input": input, **more}
        headers = {"Idempotency-Key": key or f"key-{id(body)}-{kind}"}
        answer = await self.post("/v1/runs", who, json=body, headers=headers)
        assert answer.status_code == 202, answer.text
        return cast("dict[str, Any]", answer.json())

    async def drain(self) -> None:
        """Runs everything that is due."""
        await Worker(self.engine, keeper=False).drain_once()


def hold_against_contract(app: FastAPI, method: str, answer: httpx2.Response) -> None:
    assert answer.headers["x-request-id"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert not _BARE_ID.search(answer.text), "ids are TypeIDs outside"
    if answer.status_code >= 400 and method != "HEAD":
        _hold_problem(answer)
    route = _route(app, method, answer.request.url.path)
    if route is None:
        assert answer.status_code in (401, 404, 405)
        return
    faults = contract_of(app).faults(
        method, route.path, answer.status_code, answer.headers, answer.content
    )
    assert not faults, "\n".join(faults)


def contract_of(app: FastAPI) -> Contract:
    if not _CONTRACT:
        _CONTRACT.append(Contract(app.openapi()))
    return _CONTRACT[0]


def _hold_problem(answer: httpx2.Response) -> None:
    """What the document cannot say, and what holds for paths that it does not know."""
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["cache-control"] == "no-store"
    body = answer.json()
    assert body["status"] == answer.status_code
    assert body["type"] == f"/docs#problem-{body['code']}"
    assert body["request_id"] == answer.headers["x-request-id"]


def _route(app: FastAPI, method: str, path: str) -> APIRoute | None:
    scope = {"type": "http", "method": method, "path": path, "headers": []}
    for route in app.routes:
        if isinstance(route, APIRoute) and route.matches(scope)[0] is Match.FULL:
            return route
    return None
