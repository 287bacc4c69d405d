"""Fixtures of the API's tests: an application in process, with people of two scopes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import timedelta

import pytest
import structlog

from earnest.doors.api.application import build_api
from earnest.doors.api.streams import StreamSettings
from earnest.engine.inspection.readiness import Readiness
from earnest.engine.process import access
from earnest.engine.process.access import Doorkeeper
from earnest.engine.process.actors import local
from earnest.engine.process.engine import Engine
from earnest.engine.process.principals import Standing, ensure_principal, set_principal
from earnest.engine.process.scopes import ensure_scope
from earnest.engine.process.tokens import issue_token, revoke_token
from tests.doors.api.outside import Outside
from tests.doors.api.shop import Bank, make_shop

PEOPLE = {
    "member": ("demo", "ann", ["member"]),
    "member2": ("demo", "bob", ["member"]),
    "approver": ("demo", "cleo", ["approver"]),
    "operator": ("demo", "dan", ["operator"]),
    "admin": ("demo", "eve", ["admin"]),
    "nobody": ("demo", "fay", []),
    "other member": ("other", "ann", ["member"]),
    "other operator": ("other", "gus", ["operator"]),
    "other admin": ("other", "hal", ["admin"]),
}


@pytest.fixture(scope="session", autouse=True)
def _plain_log() -> None:
    """One line for each entry, so that a test can read what was logged."""
    line = structlog.processors.KeyValueRenderer(key_order=["event"])
    structlog.configure(processors=[structlog.processors.add_log_level, line])


@pytest.fixture
def bank() -> Bank:
    return Bank()


@pytest.fixture
def engine(make_engine: Callable[..., Engine], bank: Bank) -> Engine:
    return make_engine(make_shop(bank), resend_waits=())


@pytest.fixture
async def tokens(engine: Engine) -> dict[str, str]:
    """As `issue_all`."""
    return await issue_all(engine)


async def issue_all(engine: Engine) -> dict[str, str]:
    """A token for everyone, and four that open nothing: `revoked`, `expired`, `malformed`, and that
    of somebody who is `disabled`."""
    found = {}
    for scope_id in ("demo", "other"):
        await ensure_scope(engine, scope_id)
    for name, (scope_id, principal_id, roles) in PEOPLE.items():
        await ensure_principal(engine, scope_id, principal_id, roles)
        found[name] = await issue_token(engine, scope_id, principal_id)
    found["revoked"] = await issue_token(engine, "demo", "ann")
    await revoke_token(engine, "demo", access.read_token(found["revoked"])[0])
    found["expired"] = await issue_token(engine, "demo", "ann", good_for=timedelta(0))
    found["malformed"] = found["member"][:-1]
    await ensure_principal(engine, "demo", "ida", ["member"])
    found["disabled"] = await issue_token(engine, "demo", "ida")
    disabled = Standing(frozenset(), disabled=True)
    await set_principal(engine, local("demo"), "ida", disabled, 1)
    return found


@pytest.fixture
async def outside(engine: Engine, tokens: dict[str, str]) -> AsyncIterator[Outside]:
    at_once = StreamSettings(shortest=timedelta(0), longest=timedelta(0))
    app = build_api(
        engine,
        ready=lambda: Readiness(True),
        doorkeeper=Doorkeeper(engine, 60),
        streams=at_once,  # whoever calls in process is given an answer when it has ended
    )
    async with Outside(app, engine, tokens) as caller:
        yield caller
