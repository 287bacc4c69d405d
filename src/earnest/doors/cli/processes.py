"""`earnest serve` and `earnest worker`: the processes that stay.

    home ─▶ database ─▶ migrations ─▶ recovery ─▶ ready ─ signal ─▶ drain ─▶ end

A port is taken before anything else is touched, so that a busy one leaves nothing half done. The
API answers as soon as the database is open; `/readyz` says 503 until recovery is finished, and
again while draining. One line on standard output says when the process is ready.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from earnest.domain.errors import SettingInvalid
from earnest.doors.cli import logs, memory
from earnest.doors.cli.loop import run_in_loop
from earnest.doors.cli.options import (
    Apps,
    Concurrency,
    DatabaseUrl,
    Drain,
    Home,
    Host,
    Json,
    Log,
    MetricsPort,
    Port,
    StopWithStdin,
    told,
)
from earnest.doors.cli.parts import Parts, Told
from earnest.doors.cli.stopping import Stopping, stop_with_stdin

if TYPE_CHECKING:
    from earnest.engine.attempts.working import Worker
    from earnest.engine.inspection.readiness import Readiness
    from earnest.engine.process.engine import Engine

PORT = 8321


@dataclass(frozen=True, slots=True)
class Announcement:
    """The line that says that a process is ready."""

    as_json: bool

    def __call__(self, **facts: Any) -> None:
        pid = os.getpid()
        if self.as_json:
            typer.echo(json.dumps({"ready": True, "pid": pid, **facts}))
        else:
            typer.echo(f"ready: {facts.get('url', 'worker')} (pid {pid})")


def add_to(program: typer.Typer) -> None:
    program.command("serve")(serve)
    program.command("worker")(work)


def serve(  # noqa: PLR0913, PLR0917 - a command's parameters are its options
    context: typer.Context,
    host: Host = "127.0.0.1",
    port: Port = PORT,
    home: Home = None,
    database_url: DatabaseUrl = None,
    app: Apps = None,
    worker: Annotated[
        bool, typer.Option("--worker/--no-worker", help="Whether this process also runs work.")
    ] = True,
    concurrency: Concurrency = None,
    drain: Drain = None,
    log: Log = logs.LogFormat.TEXT,
    as_json: Json = False,
    follow_stdin: StopWithStdin = False,
) -> None:
    """Serve the API and run work until SIGTERM or SIGINT; a second signal ends it at once."""
    _prepare(log, follow_stdin)
    asked = told(home, database_url, app, makes=True, concurrency=concurrency, drain_seconds=drain)
    parts: Parts = context.obj
    run_in_loop(_serve(parts, asked, (host, port), worker, Announcement(as_json)))


def work(  # noqa: PLR0913, PLR0917 - a command's parameters are its options
    context: typer.Context,
    home: Home = None,
    database_url: DatabaseUrl = None,
    app: Apps = None,
    concurrency: Concurrency = None,
    drain: Drain = None,
    host: Host = "127.0.0.1",
    metrics_port: MetricsPort = None,
    log: Log = logs.LogFormat.TEXT,
    as_json: Json = False,
    follow_stdin: StopWithStdin = False,
) -> None:
    """Run work until SIGTERM or SIGINT; a second signal ends it at once."""
    _prepare(log, follow_stdin)
    asked = told(home, database_url, app, makes=True, concurrency=concurrency, drain_seconds=drain)
    where = None if metrics_port is None else (host, metrics_port)
    run_in_loop(_work_alone(context.obj, asked, where, Announcement(as_json)))


def _prepare(log: logs.LogFormat, follow_stdin: bool) -> None:
    from earnest.testing import crashing

    logs.configure(log)
    crashing.install_from_environment()
    if follow_stdin:
        stop_with_stdin()


async def _serve(
    parts: Parts, asked: Told, where: tuple[str, int], works: bool, announce: Announcement
) -> None:
    with closing(parts.listen(*where)) as listener, Stopping() as stopping:
        async with parts.open(asked) as opened:
            worker = opened.worker() if works else None

            server = parts.serve(opened.engine, listener, partial(_readiness, worker, stopping))
            stopping.when_hurried(server.stop)
            answering = asyncio.create_task(server.run())
            try:
                await _first_of(server.started.wait(), answering)
                await _until_stopped(
                    opened.engine, worker, stopping, answering, lambda: announce(url=server.url)
                )
            finally:
                server.stop()
                await answering


def _readiness(worker: Worker | None, stopping: Stopping) -> Readiness:
    from earnest.engine.inspection.readiness import Readiness

    if stopping.asked.is_set():
        return Readiness(ready=False, reason="draining")
    if worker is not None and not worker.ready.is_set():
        return Readiness(ready=False, reason="recovering")
    return Readiness(ready=True)


async def _work_alone(
    parts: Parts, asked: Told, where: tuple[str, int] | None, announce: Announcement
) -> None:
    with _port(parts, where) as listener, Stopping() as stopping:
        async with parts.open(asked) as opened:
            worker, engine = opened.worker(), opened.engine
            if listener is None:
                await _until_stopped(engine, worker, stopping, None, announce)
                return
            ready = partial(_readiness, worker, stopping)
            server = parts.serve_metrics(engine, listener, ready)
            answering = asyncio.create_task(server.run())
            try:
                tell = partial(announce, metrics_url=f"{server.url}/metrics")
                await _until_stopped(engine, worker, stopping, answering, tell)
            finally:
                server.stop()
                await answering


@contextmanager
def _port(parts: Parts, where: tuple[str, int] | None) -> Iterator[socket.socket | None]:
    """Taken before anything else is touched, like the API's."""
    if where is None:
        yield None
        return
    try:
        listener = parts.listen(*where)
    except SettingInvalid as error:
        told = error.detail.replace("--port or EARNEST_PORT", "--metrics-port")
        raise SettingInvalid(told) from error
    with closing(listener):
        yield listener


async def _until_stopped(
    engine: Engine,
    worker: Worker | None,
    stopping: Stopping,
    beside: asyncio.Task[None] | None,
    announce: Callable[[], None],
) -> None:
    """Works (or, without a worker, only rings bells) until a stop is asked or something ends that
    should not, and drains."""
    from earnest.engine.process import announcing

    memory.settle()
    if worker is None:
        await announcing.announce(engine)
        await engine.bells.start()
        announce()
        await _first_of(stopping.asked.wait(), beside)
        await engine.bells.stop()
        return
    stopping.when_hurried(worker.hurry)
    working = asyncio.create_task(worker.run())
    await _first_of(worker.ready.wait(), stopping.asked.wait(), working, beside)
    if worker.ready.is_set() and not stopping.asked.is_set():
        announce()
    await _first_of(stopping.asked.wait(), working, beside)
    worker.stop()
    await working


async def _first_of(*things: Coroutine[Any, Any, Any] | asyncio.Task[None] | None) -> None:
    """Until one of these has ended. Tasks that were given go on, the rest is given up."""
    given = {thing for thing in things if isinstance(thing, asyncio.Task)}
    made = {asyncio.create_task(thing) for thing in things if asyncio.iscoroutine(thing)}
    await asyncio.wait(given | made, return_when=asyncio.FIRST_COMPLETED)
    for task in made:
        task.cancel()
    await asyncio.gather(*made, return_exceptions=True)
