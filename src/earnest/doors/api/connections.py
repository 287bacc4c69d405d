"""The connections under a server's requests, for answers that stay open.

ASGI has no word for a connection that must go although its peer does not read, nor for a server
that is about to stop. The server's protocol class puts a `Connection` beside each request, in
`scope["extensions"]`; under another server it is missing, and then nothing can be cut off or known.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from earnest.doors.api.incoming import IncomingProtocol

NAME = "earnest.connection"
HURRIED = 1.0
"""Seconds for what is unsent when the server stops."""

_AT_ONCE = struct.pack("ii", 1, 0)


class Connection:
    """One connection of a caller. Without a transport it can do nothing."""

    def __init__(self, transport: asyncio.Transport | None = None) -> None:
        self._transport = transport
        self._stopping = False
        self._on_stop: Callable[[], None] = lambda: None
        self._timer: asyncio.TimerHandle | None = None

    def abort(self) -> bool:
        """Ends the connection now: what is unsent here and in the kernel is dropped. False where
        that cannot be done."""
        if self._transport is None:
            return False
        found: socket.socket | None = self._transport.get_extra_info("socket")
        if found is not None and not self._transport.is_closing():
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        self._transport.abort()
        return True

    @property
    def is_known(self) -> bool:
        return self._transport is not None

    def unsent(self) -> int:
        """How many bytes wait here for the peer to read."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def abort_in(self, seconds: float) -> None:
        """Ends it then if it has not ended by itself."""
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(HURRIED if self._stopping else seconds, self.abort)

    def when_stopping(self, tell: Callable[[], None]) -> None:
        """Calls `tell` when the server begins to stop; at once if it does already."""
        self._on_stop = tell
        if self._stopping:
            tell()

    def stop(self) -> None:
        self._stopping = True
        self._on_stop()
        if self._timer is not None:
            self.abort_in(HURRIED)

    def lost(self) -> None:
        self._transport = None
        self._on_stop = lambda: None
        if self._timer is not None:
            self._timer.cancel()


def connection_of(scope: Scope) -> Connection:
    """The connection that a request came by."""
    found = scope.get("extensions", {}).get(NAME)
    return found if isinstance(found, Connection) else Connection()


class Connections:
    """The open connections of one server."""

    def __init__(self) -> None:
        self._open: set[Connection] = set()

    def open_now(self) -> list[Connection]:
        return list(self._open)

    def stop(self) -> None:
        """Tells them all that the server stops."""
        for connection in list(self._open):
            connection.stop()

    def protocol_class(self) -> type[asyncio.Protocol]:
        """The class for `uvicorn.Config(http=...)` whose connections are kept here."""
        open_ = self._open

        class KnownProtocol(IncomingProtocol):
            def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
                super().connection_made(transport)
                self.connection = Connection(transport)
                self.app = _beside(self.app, self.connection)
                open_.add(self.connection)

            def connection_lost(self, exc: Exception | None) -> None:
                super().connection_lost(exc)
                open_.discard(self.connection)
                self.connection.lost()

        return KnownProtocol


def _beside(app: ASGIApp, connection: Connection) -> ASGIApp:
    async def with_connection(scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("extensions", {})[NAME] = connection
        await app(scope, receive, send)

    return with_connection
