"""Listening: the one module of the API that knows a server.

The port is taken before anything else, so that a busy one is said in one line and nothing was
begun. Signals are the caller's business: it calls `stop`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import resource
import socket
from collections.abc import Callable, Iterator

import uvicorn
from starlette.types import ASGIApp

from earnest.domain.errors import SettingInvalid
from earnest.doors.api.connections import Connections

GRACE = 3  # seconds for answers that are on their way when the server stops
_BACKLOG = 2048
_SEND_BUFFER = 64 * 1024
_UNREAD_AFTER = 20_000  # milliseconds until a peer that acknowledges nothing is given up
_KEEP_ALIVE = 75  # seconds
_FILES = 16_384


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises `SettingInvalid` saying what to do.

    What is set on it is inherited by every connection: a small send buffer, so that a client that
    does not read is noticed, and an end to waiting for one that is gone.
    """
    if not 0 <= port <= 65_535:
        raise SettingInvalid(f"there is no port {port}; choose one from 0 to 65535")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise SettingInvalid(_why_not(error, host, port)) from error
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_AFTER)
    return listener


def address_of(listener: socket.socket) -> str:
    """The address that a listening socket answers at, such as `http://127.0.0.1:8321`."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Serving:
    """An application on a listening socket. `run` serves until `stop`; `url` is where."""

    def __init__(self, app: ASGIApp, listener: socket.socket) -> None:
        self.url = address_of(listener)
        self.started = asyncio.Event()
        self._listener = listener
        self.connections = Connections()
        config = _config(app, self.connections)
        self._server = _Server(config, self.started.set, self.connections.stop)

    async def run(self) -> None:
        """Serves; returns when it was stopped and what was on its way is answered, or cut off
        after `GRACE` seconds. Cancelled, it stops in the same way."""
        allow_many_connections()
        serving = asyncio.create_task(self._server.serve([self._listener]))
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            self.stop()
            await serving
            raise
        finally:
            self._listener.close()

    def stop(self) -> None:
        """Takes no more connections and lets `run` end. Harmless when repeated."""
        self._server.should_exit = True


async def serve(
    app: ASGIApp, host: str, port: int, *, ready: Callable[[str], None] | None = None
) -> None:
    """Serves until it is cancelled. `ready` is called with the address once requests are answered.
    Raises `SettingInvalid` when it cannot listen there."""
    serving = Serving(app, listen(host, port))
    running = asyncio.create_task(serving.run())
    try:
        await _first(running, serving.started)
        if ready is not None and serving.started.is_set():
            ready(serving.url)
        await running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def allow_many_connections() -> None:
    """Every connection is an open file, and streams stay; the usual limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _first(running: asyncio.Task[None], started: asyncio.Event) -> None:
    waiting = asyncio.create_task(started.wait())
    try:
        await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


class _Server(uvicorn.Server):
    """Says when it answers, and leaves the process's signals alone."""

    def __init__(
        self, config: uvicorn.Config, on_start: Callable[[], None], on_stop: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._on_start = on_start
        self._on_stop = on_stop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answers that stay open are told first; nobody is let in between."""
        self._on_stop()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _config(app: ASGIApp, connections: Connections) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=connections.protocol_class(),
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # nothing here believes a forwarded address
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=GRACE,
    )


def _why_not(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is taken; choose another with --port or EARNEST_PORT"
    if error.errno == errno.EACCES:
        return f"port {port} on {host} is not ours to take; choose one above 1023 with --port"
    return f"cannot listen on {host}, port {port} ({error}); look at --host or EARNEST_HOST"
