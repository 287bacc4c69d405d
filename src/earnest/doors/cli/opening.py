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

from earnest.domain.errors import InvalidRequest, NotFound
from earnest.doors.cli import logs
from earnest.doors.cli.answering import Answering
from earnest.doors.cli.loop import run_in_loop
from earnest.doors.cli.parts import Parts, Shown, Told

if TYPE_CHECKING:
    from earnest.engine.process.actors import Actor
    from earnest.engine.process.engine import Engine

T = TypeVar("T")

DEFAULT_SCOPE = "default"
_SCOPES_LISTED = 50


@dataclass(frozen=True, slots=True)
class Lobby(Answering):
    """An open engine before a scope is chosen, and who came in."""

    engine: Engine
    principal: str
    shown: Shown

    def actor_in(self, scope: str) -> Actor:
        """Whoever opened the database itself; it may do everything in any scope."""
        from earnest.engine.process.actors import local

        return local(scope, self.principal)


@dataclass(frozen=True, slots=True)
class Desk(Lobby):
    """An open engine and the scope to act in."""

    scope: str

    @property
    def actor(self) -> Actor:
        return self.actor_in(self.scope)


@dataclass(frozen=True, slots=True)
class Opening(Answering):
    """What a command's shared options came to. Nothing is open yet."""

    parts: Parts
    told: Told
    scope: str | None = None

    def at_desk(self, act: Callable[[Desk], Awaitable[T]], *, makes_scope: bool = False) -> T:
        """Opens, acts, closes; returns what `act` does. `makes_scope`: the scope need not exist."""

        async def at_lobby(lobby: Lobby) -> T:
            async with _desk(lobby, self.scope, makes_scope) as desk:
                return await act(desk)

        return self.in_lobby(at_lobby)

    def in_lobby(self, act: Callable[[Lobby], Awaitable[T]]) -> T:
        """As `at_desk`, for what is about no scope."""
        logs.configure(logs.LogFormat.TEXT, level=logging.ERROR)

        async def work() -> T:
            async with self.parts.open(self.told) as opened:
                return await act(Lobby(self.as_json, opened.engine, _principal(), self.parts.shown))

        return run_in_loop(work())


@asynccontextmanager
async def _desk(lobby: Lobby, scope: str | None, makes_scope: bool) -> AsyncIterator[Desk]:
    engine = lobby.engine
    chosen = await _choose_scope(lobby, scope, makes_scope)
    await engine.bells.start()
    try:
        yield Desk(lobby.as_json, engine, lobby.principal, lobby.shown, chosen)
    finally:
        await engine.bells.stop()


def _principal() -> str:
    try:
        return f"cli:{getpass.getuser()}"[:100]
    except (OSError, KeyError):  # no such user, and no variable names one
        return "cli"


async def _choose_scope(lobby: Lobby, asked: str | None, makes_scope: bool) -> str:
    """The scope asked for, else the only one, else `default`, which is made when there is none."""
    from earnest.engine.process.scopes import ensure_scope
    from earnest.store.access import has_scope, scopes

    engine = lobby.engine
    known = await scopes(engine.database, _SCOPES_LISTED)
    if asked is None and len(known) == 1:
        return known[0]
    chosen = asked or DEFAULT_SCOPE
    if makes_scope or (not known and chosen == DEFAULT_SCOPE):
        await ensure_scope(engine, chosen, by=lobby.principal)
    elif not await has_scope(engine.database, chosen):
        there_are = ", ".join(known) or "none"
        if asked is None:
            raise InvalidRequest(f"choose a scope with --scope; there are: {there_are}")
        raise NotFound(f"there is no scope {asked[:80]!r}; there are: {there_are}")
    return chosen
