"""A program of somebody else's on the same database: it logs in with a role of its own, keeps rows
of its own, and submits runs from SQL. Fixtures import it; it is no test itself."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
import pytest
from pydantic import BaseModel

from earnest import App, Context
from earnest.domain import ids
from earnest.domain.run import Run
from earnest.engine.attempts.working import Worker
from earnest.engine.process import announcing, database_roles, principals, scopes
from earnest.engine.process.engine import Engine
from earnest.engine.runs import submitting
from earnest.engine.runs.submitting import Request
from earnest.store import runs

SCOPE = "demo"
PRINCIPAL = "shop"
SUBMIT = "SELECT earnest.submit($1, $2, $3, $4)"


class Order(BaseModel):
    order: int
    gift: bool = False


def make_app() -> App:
    app = App("shop")

    @app.run("order.ship")
    async def ship(ctx: Context, order: Order) -> str:
        return f"shipped {order.order}"

    @app.run("echo")
    async def echo(ctx: Context, value: Any) -> Any:
        return value

    @app.run(
        "report.make", lane="reports", max_attempts=7, deadline="3d", on_unknown="fail", pure=True
    )
    async def report(ctx: Context, value: Any) -> Any:
        return value

    return app


@dataclass
class SqlShop:
    """One engine with a worker that the test drives, and the role `role` that submits as the
    principal `shop` of the scope `demo`."""

    engine: Engine
    worker: Worker
    role: str

    @property
    def url(self) -> str:
        """The database's address for the shop's own role."""
        return self.url_for(self.role)

    def url_for(self, role: str) -> str:
        _, _, rest = self.engine.database.url.partition("@")
        return f"postgresql://{role}@{rest}"

    @asynccontextmanager
    async def connected(self, role: str | None = None) -> AsyncIterator[asyncpg.Connection]:
        connection = await asyncpg.connect(self.url_for(role or self.role))
        try:
            yield connection
        finally:
            await connection.close()

    @asynccontextmanager
    async def as_owner(self) -> AsyncIterator[asyncpg.Connection]:
        async with self.engine.database.connection() as connection:
            yield connection

    async def add_role(self) -> str:
        """Another database role, which may do nothing yet."""
        role = f"shop_{uuid.uuid4().hex[:12]}"
        async with self.as_owner() as owner:
            await owner.execute(f"CREATE ROLE {role} LOGIN")
        return role

    async def submit(self, kind: str, input: Any, key: str | None = None, **more: Any) -> Run:
        """Submits from Python, as the same principal."""
        request = Request(kind, input, key, **more)
        return (await submitting.submit(self.engine, SCOPE, PRINCIPAL, request)).run

    async def submit_sql(self, kind: str, input: Any, key: str | None = None) -> str:
        """Submits from SQL in a transaction that does nothing else."""
        async with self.connected() as connection:
            return await submitted(connection, kind, input, key)

    async def find(self, run_id: str) -> Run:
        run = await runs.find(self.engine.database, SCOPE, ids.read("run", run_id))
        assert run is not None, "it was submitted"
        return run

    async def exists(self, run_id: str) -> bool:
        run = await runs.find(self.engine.database, SCOPE, ids.read("run", run_id))
        return run is not None

    async def count(self) -> int:
        return await self.value("SELECT count(*) FROM run")

    async def value(self, statement: str, *arguments: Any) -> Any:
        async with self.as_owner() as owner:
            return await owner.fetchval(statement, *arguments)


async def submitted(
    connection: asyncpg.Connection, kind: str, input: Any, key: str | None = None
) -> str:
    """The id of a run submitted on this connection, in whatever transaction it has."""
    found: str = await connection.fetchval(SUBMIT, SCOPE, kind, json.dumps(input), key)
    return found


async def open_shop(engine: Engine) -> SqlShop:
    """Makes scope, principal, role and mapping, and announces the engine's kinds."""
    shop = SqlShop(engine, Worker(engine, keeper=False), "")
    await scopes.ensure_scope(engine, SCOPE)
    await principals.ensure_principal(engine, SCOPE, PRINCIPAL, ["member"])
    shop.role = await shop.add_role()
    await database_roles.map_role(engine, shop.role, SCOPE, PRINCIPAL)
    await announcing.announce(engine)
    return shop


@pytest.fixture
async def shop(make_engine: Callable[..., Engine]) -> SqlShop:
    return await open_shop(make_engine(make_app()))
