"""Dropping the connection of a caller without an answer.

ASGI has no word for this, so the server's protocol class tells us each connection's transport when
it is made, and the address of the caller, which ASGI does have, leads back to it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol


class Connections:
    """The open connections of one server, by the caller's address."""

    def __init__(self) -> None:
        self._transports: dict[tuple[str, int], asyncio.Transport] = {}

    def protocol_class(self) -> type[asyncio.Protocol]:
        """The protocol class for `uvicorn.Config(http=...)` whose connections are listed here."""
        transports = self._transports

        class ListedProtocol(H11Protocol):
            def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
                super().connection_made(transport)
                if self.client is not None:
                    transports[self.client] = transport

            def connection_lost(self, exc: Exception | None) -> None:
                super().connection_lost(exc)
                if self.client is not None:
                    transports.pop(self.client, None)

        return ListedProtocol

    def abort(self, client: Any) -> None:
        """Close the caller's connection now, unsent bytes included; nothing if it is gone."""
        transport = self._transports.get(tuple(client)) if client else None
        if transport is not None:
            transport.abort()


class Drop(Response):
    """Instead of an answer: the connection is closed."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connections: Connections | None = scope["app"].state.connections
        if connections is None:
            raise ConnectionAbortedError("dropped by a fault rule; there is no connection to close")
        connections.abort(scope["client"])
        while (await receive())["type"] != "http.disconnect":
            pass  # if we returned before the server noticed, it would try to answer 500 itself
