"""A server on a socket, and runs whose events the test appends through the engine.

A scripted run says what it is told to say and ends when it is told to; its first events are
`run.submitted` and `attempt.started`.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI

from earnest import App, Context
from earnest.domain import ids
from earnest.doors.api.application import build_api
from earnest.doors.api.serving import Serving, listen
from earnest.doors.api.streams import Streams, StreamSettings
from earnest.engine.inspection.readiness import Readiness
from earnest.engine.process import principals, scopes, tokens
from earnest.engine.process.access import Doorkeeper
from earnest.engine.process.engine import Engine
from earnest.engine.runs import submitting
from earnest.engine.runs.submitting import Request
from earnest.store import facts, texts
from tests.doors.streams.reading import Stream, connect

FIRST = 2
"""How many events a scripted run has when it begins to work."""

PEOPLE = {
    "member": ("demo", "ann", ["member"]),
    "member2": ("demo", "bob", ["member"]),
    "approver": ("demo", "cleo", ["approver"]),
    "operator": ("demo", "dan", ["operator"]),
    "nobody": ("demo", "fay", []),
    "other member": ("other", "ann", ["member"]),
    "other operator": ("other", "gus", ["operator"]),
}


async def issue_tokens(engine: Engine) -> dict[str, str]:
    """Makes the people, and gives each a token."""
    for scope_id in ("demo", "other"):
        await scopes.ensure_scope(engine, scope_id)
    found = {}
    for name, (scope_id, principal_id, roles) in PEOPLE.items():
        await principals.ensure_principal(engine, scope_id, principal_id, roles)
        found[name] = await tokens.issue_token(engine, scope_id, principal_id)
    return found


async def until(holds: Callable[[], bool], seconds: float = 10) -> None:
    """For what a server notices by itself, and tells nobody."""
    async with asyncio.timeout(seconds):
        while True:
            if holds():
                return
            await asyncio.sleep(0.01)


@dataclass
class Line:
    """One event to say, progress to tell, a piece of text to write, or an attempt to break off; and
    whether it was done."""

    payload: dict[str, Any] = field(default_factory=dict)
    text: str | None = None
    progress: tuple[float, float, str] | None = None
    breaks: bool = False
    said: asyncio.Event = field(default_factory=asyncio.Event)

    async def play(self, ctx: Context, key: str) -> None:
        if self.breaks:
            self.said.set()
            raise RuntimeError("the script breaks off here")
        if self.progress is not None:
            await ctx.progress(*self.progress)
        elif self.text is not None:
            await ctx.text(self.text)
            await ctx.flush_text()
        else:
            await ctx.emit("stage.said", self.payload, key=key)
        self.said.set()


@dataclass
class Scripts:
    """What the scripted runs of one app are to say; `None` ends a run."""

    lines: dict[str, asyncio.Queue[Line | None]] = field(default_factory=dict)

    def app(self) -> App:
        app = App("stage")

        @app.run("stage.scripted", retry_first="0s")
        async def scripted(ctx: Context, name: str) -> str:
            for number in itertools.count():
                line = await self.lines[name].get()
                if line is None:
                    return name
                await line.play(ctx, f"{ctx.attempt}.{number}")
            raise AssertionError("a script has no end by itself")

        return app


@dataclass
class ScriptedRun:
    engine: Engine
    run_id: uuid.UUID
    scope_id: str
    _lines: asyncio.Queue[Line | None]

    @property
    def id(self) -> str:
        return ids.show("run", self.run_id)

    async def append(self, count: int = 1, **payload: Any) -> None:
        """Returns when the events are stored."""
        await self._play([Line({"number": number, **payload}) for number in range(count)])

    async def write(self, *pieces: str) -> None:
        """Returns when the pieces are stored, each by itself."""
        await self._play([Line(text=piece) for piece in pieces])

    async def progress(self, done: float, total: float, note: str) -> None:
        """Returns when it is stored."""
        await self._play([Line(progress=(done, total, note))])

    async def break_off(self) -> None:
        """The attempt fails; another one goes on with the script."""
        await self._play([Line(breaks=True)])

    async def _play(self, lines: list[Line]) -> None:
        for line in lines:
            self._lines.put_nowait(line)
        for line in lines:
            await line.said.wait()

    async def finish(self) -> None:
        """Returns when the last event is stored."""
        self.let_end()
        await self.ends()

    def let_end(self) -> None:
        """Has the run end when it comes to it; harmless when repeated."""
        self._lines.put_nowait(None)

    async def ends(self) -> None:
        """Returns when the last event is stored, whoever ends the run."""
        await self._until(lambda event: event.final)

    async def has_text(self, sequence: int) -> None:
        """Returns when so much text is stored."""
        async with asyncio.timeout(10):
            while True:
                head = await texts.find_head(self.engine.database, self.scope_id, self.run_id)
                if head.last_sequence >= sequence:
                    return
                await asyncio.sleep(0.005)

    async def forget_before(self, seq: int) -> None:
        """What retention does."""
        async with self.engine.database.connection() as tx:
            await tx.execute(
                "DELETE FROM event WHERE scope_id = $1 AND run_id = $2 AND seq < $3",
                self.scope_id,
                self.run_id,
                seq,
            )

    async def reaches(self, seq: int) -> None:
        """Returns when the run has so many events."""
        await self._until(lambda event: event.seq >= seq)

    async def _until(self, holds: Any) -> None:
        """Looks at the table itself, whatever bells and hubs do."""
        after = 0
        async with asyncio.timeout(10):
            while True:
                found = await facts.events(
                    self.engine.database, self.scope_id, self.run_id, after, 100
                )
                if any(holds(event) for event in found):
                    return
                after = found[-1].seq if found else after
                if not found:
                    await asyncio.sleep(0.005)


async def make_run(
    engine: Engine, scripts: Scripts, who: tuple[str, str] = ("demo", "ann")
) -> ScriptedRun:
    """A run that works, and waits to be told what to say."""
    name = uuid.uuid4().hex
    lines = scripts.lines[name] = asyncio.Queue()
    made = await submitting.submit(engine, *who, Request("stage.scripted", name))
    run = ScriptedRun(engine, made.run.run_id, who[0], lines)
    await run.reaches(FIRST)
    return run


class Stage:
    """A server, people who have tokens, and the engine whose worker runs the scripts: the server's
    own, or another one of the same database."""

    def __init__(
        self,
        engine: Engine,
        scripts: Scripts,
        tokens: dict[str, str],
        serving: Serving,
        app: FastAPI,
    ) -> None:
        self.engine = engine
        self.tokens = tokens
        self.serving = serving
        self.app = app
        self.streams: Streams = app.state.streams
        self._scripts = scripts
        self._stack = AsyncExitStack()

    async def run(self, events: int = FIRST, who: tuple[str, str] = ("demo", "ann")) -> ScriptedRun:
        """A run that works, and has so many events."""
        run = await make_run(self.engine, self._scripts, who)
        await run.append(events - FIRST)
        return run

    async def epoch(self) -> str:
        return (await self.streams.life()).epoch

    def url(self, run: ScriptedRun | str, query: str = "", part: str = "events") -> str:
        run_id = run if isinstance(run, str) else run.id
        return f"{self.serving.url}/v1/runs/{run_id}/{part}{query}"

    async def open(
        self,
        run: ScriptedRun | str,
        who: str | None = "member",
        *,
        after: str | int | None = None,
        last_event_id: str | None = None,
        accept: str = "text/event-stream",
        part: str = "events",
        **more: Any,
    ) -> Stream:
        headers = {"Accept": accept}
        if who is not None:
            headers["Authorization"] = f"Bearer {self.tokens[who]}"
        if last_event_id is not None:
            headers["Last-Event-ID"] = last_event_id
        name = "after_seq" if part == "events" else "after"
        query = "" if after is None else f"?{name}={after}"
        stream = await connect(self.url(run, query, part), headers, **more)
        self._stack.callback(stream.close)
        return stream

    async def aclose(self) -> None:
        await self._stack.aclose()


@asynccontextmanager
async def serving_streams(
    served: Engine,
    working: Engine,
    scripts: Scripts,
    tokens: dict[str, str],
    settings: StreamSettings,
) -> AsyncIterator[Stage]:
    """A server of the API on a free port; stopped at the end."""
    doorkeeper = Doorkeeper(served, 0.05)
    app = build_api(served, ready=lambda: Readiness(True), doorkeeper=doorkeeper, streams=settings)
    serving = Serving(app, listen("127.0.0.1", 0))
    running = asyncio.create_task(serving.run())
    await serving.started.wait()
    stage = Stage(working, scripts, tokens, serving, app)
    try:
        yield stage
    finally:
        await stage.aclose()
        serving.stop()
        await running
