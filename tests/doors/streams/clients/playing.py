"""One case with one client: a server of its own, a relay before it, and a run that tells."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from earnest.doors.api.streams import StreamSettings
from earnest.engine.attempts.working import Worker
from earnest.engine.process.engine import Engine
from earnest.engine.process.settings import EngineSettings
from earnest.store.database import Database
from tests.doors.streams.clients.drivers import Client, Driver, Seen
from tests.doors.streams.clients.relay import Fault, Relay
from tests.doors.streams.stage import (
    FIRST,
    ScriptedRun,
    Scripts,
    Stage,
    issue_tokens,
    serving_streams,
)

SETS_NO_FIRST_ID = "a browser's `EventSource` names a last id only when it comes again"
STAYS_AWAY = "it does not come again by itself"
GIVES_UP = "it closes for good when a connection breaks before there is an answer"


class NotApplicable(Exception):
    """The client is not made for what the case asks of it; says why."""


@dataclass
class House:
    """A database with a worker that runs scripts, and people who have tokens."""

    engine: Engine
    scripts: Scripts
    tokens: dict[str, str]

    def serve(self, settings: StreamSettings) -> AbstractAsyncContextManager[Stage]:
        """A server of its own on a free port."""
        return serving_streams(self.engine, self.engine, self.scripts, self.tokens, settings)


@asynccontextmanager
async def open_house(url: str) -> AsyncIterator[House]:
    scripts = Scripts()
    app = scripts.app()
    settings = replace(EngineSettings(), drain=timedelta(0), poll=timedelta(milliseconds=50))
    async with Database(url, size=8, patience=5) as database:
        engine = Engine(database, settings=settings)
        engine.kinds = app.kinds
        worker = Worker(engine, keeper=False)
        working = asyncio.create_task(worker.run())
        await worker.ready.wait()
        try:
            yield House(engine, scripts, await issue_tokens(engine))
        finally:
            for lines in scripts.lines.values():
                lines.put_nowait(None)  # a script that goes on would keep the worker
            worker.stop()
            await working
            await engine.bells.stop()


@dataclass
class Play:
    """What a scenario is played with."""

    house: House
    client: Client
    driver: Driver
    stage: Stage
    _stack: AsyncExitStack
    _runs: list[ScriptedRun] = field(default_factory=list)

    async def run(self, events: int = FIRST) -> ScriptedRun:
        """A run of `member`, which ends with the play."""
        made = await self.stage.run(events)
        self._runs.append(made)
        return made

    async def follow(
        self,
        run: ScriptedRun | None,
        *faults: Fault,
        after: str | int | None = None,
        last_event_id: str | None = None,
        who: str | None = "member",
        token: str | None = None,
        part: str = "events",
    ) -> tuple[Seen, Relay]:
        """Has the client follow the run, or without one the feed. Raises `NotApplicable`."""
        if last_event_id is not None and not self.client.names_first_id:
            raise NotApplicable(SETS_NO_FIRST_ID)
        token = token or (None if who is None else self.stage.tokens[who])
        sent, added = (token, None) if self.client.sends_token else (None, token)
        relay = Relay(self.stage.serving.url, list(faults), added)
        await self._stack.enter_async_context(relay)
        name = "after_seq" if part == "events" else "after"
        query = "" if after is None else f"?{name}={after}"
        path = f"/v1/runs/{run.id}/{part}{query}" if run else "/v1/events?cursor=now"
        following = self.driver.follow(relay.url + path, sent, last_event_id)
        return await self._stack.enter_async_context(following), relay

    def require_coming_again(self) -> None:
        """Raises `NotApplicable` where the client does not."""
        if not self.client.comes_again:
            raise NotApplicable(STAYS_AWAY)

    def end_runs(self) -> None:
        for run in self._runs:
            run.let_end()


@asynccontextmanager
async def playing(
    house: House, client: Client, driver: Driver, **settings: Any
) -> AsyncIterator[Play]:
    """A play on a server with those settings of its streams."""
    chosen = StreamSettings(**settings)
    async with house.serve(chosen) as stage, AsyncExitStack() as stack:
        play = Play(house, client, driver, stage, stack)
        try:
            yield play
        finally:
            play.end_runs()
