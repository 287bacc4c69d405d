"""How commands that act on a database open it: as one more user, in one scope, without a worker.

Whoever can open the database (a local operator) may do everything in it; what is done carries the
name `cli:` and the operating system's user.
"""

from __future__ import annotations

import getpass
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import typer

from earnest.domain.errors import InvalidRequest, NotFound
from earnest.doors.cli import logs
from earnest.doors.cli.loop import run_in_loop
from earnest.doors.cli.parts import Parts, Shown, Told

if TYPE_CHECKING:
    from earnest.engine.process.actors import Actor
    from earnest.engine.process.engine import Engine

T = TypeVar("T")

DEFAULT_SCOPE = "default"
_SCOPES_LISTED = 50


@dataclass(frozen=True, slots=True)
class Desk:
    """An open engine, the scope to act in, and as whom."""

    engine: Engine
    scope: str
    principal: str
    shown: Shown

    @property
    def actor(self) -> Actor:
        """Whoever opened the database itself; it may do everything in the scope."""
        from earnest.engine.process.actors import local

        return local(self.scope, self.principal)


def at_desk(
    context: typer.Context,
    told: Told,
    scope: str | None,
    act: Callable[[Desk], Awaitable[T]],
    *,
    makes_scope: bool = False,
) -> T:
    """Opens, acts, closes; returns what `act` does. `makes_scope`: the scope need not exist."""
    logs.configure(logs.LogFormat.TEXT, level=logging.ERROR)
    parts: Parts = context.obj

    async def work() -> T:
        async with _opened(parts, told, scope, makes_scope) as desk:
            return await act(desk)

    return run_in_loop(work())


def at_engine(context: typer.Context, told: Told, act: Callable[[Engine], Awaitable[T]]) -> T:
    """As `at_desk`, for what is about no scope: opens the engine alone."""
    logs.configure(logs.LogFormat.TEXT, level=logging.ERROR)
    parts: Parts = context.obj

    async def work() -> T:
        async with parts.open(told) as opened:
            return await act(opened.engine)

    return run_in_loop(work())


@asynccontextmanager
async def _opened(
    parts: Parts, told: Told, scope: str | None, makes_scope: bool
) -> AsyncIterator[Desk]:
    async with parts.open(told) as opened:
        engine = opened.engine
        chosen = await _choose_scope(engine, scope, makes_scope)
        await engine.bells.start()
        try:
            yield Desk(engine, chosen, principal(), parts.shown)
        finally:
            await engine.bells.stop()


def principal() -> str:
    try:
        return f"cli:{getpass.getuser()}"[:100]
    except (OSError, KeyError):  # no such user, and no variable names one
        return "cli"


async def _choose_scope(engine: Engine, asked: str | None, makes_scope: bool) -> str:
    """The scope asked for, else the only one, else `default`, which is made when there is none."""
    from earnest.engine.process.scopes import ensure_scope
    from earnest.store.access import has_scope, scopes

    known = await scopes(engine.database, _SCOPES_LISTED)
    if asked is None and len(known) == 1:
        return known[0]
    chosen = asked or DEFAULT_SCOPE
    if makes_scope or (not known and chosen == DEFAULT_SCOPE):
        await ensure_scope(engine, chosen, by=principal())
    elif not await has_scope(engine.database, chosen):
        there_are = ", ".join(known) or "none"
        if asked is None:
            raise InvalidRequest(f"choose a scope with --scope; there are: {there_are}")
        raise NotFound(f"there is no scope {asked[:80]!r}; there are: {there_are}")
    return chosen
