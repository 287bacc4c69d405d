"""A wire between a program and its server that the test can cut, at the worst moment.

It stands as a socket of its own before the server's and passes on every byte, until it is told to
lose the reply to something, or to let nobody through.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

COMMIT = b"COMMIT;\x00"
# Execute, of the unnamed portal; how many rows are wanted follows.
EXECUTE = b"E\x00\x00\x00\x09\x00"


class Wire:
    """`url` leads through the wire to the database of the url it was made for."""

    def __init__(self, url: str, folder: Path) -> None:
        query = parse_qs(urlsplit(url).query)
        port = query["port"][0]
        self._server = Path(query["host"][0]) / f".s.PGSQL.{port}"
        self._own = folder / f".s.PGSQL.{port}"
        self.url = f"{url.partition('?')[0]}?host={folder}&port={port}"
        self.lost = 0
        self._lose: bytes | None = None
        self._listener: asyncio.Server | None = None
        self._passing: set[asyncio.Task[None]] = set()
        self._hushed: list[asyncio.Event] = []

    async def __aenter__(self) -> Wire:
        await self.let_through()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cut()

    def lose_reply_to(self, message: bytes) -> None:
        """The next message with these bytes is passed on; its reply and the connection are lost."""
        self._lose = message

    async def let_through(self) -> None:
        self._own.unlink(missing_ok=True)
        self._listener = await asyncio.start_unix_server(self._connected, self._own)

    async def cut(self) -> None:
        """Cuts all that are connected, and lets nobody through until `let_through`."""
        if self._listener is not None:
            self._listener.close()
        self._own.unlink(missing_ok=True)
        for task in list(self._passing):
            task.cancel()
        await asyncio.gather(*self._passing, return_exceptions=True)

    def hush(self) -> None:
        """Those that are connected hear nothing of each other any more, and nobody tells them."""
        for hushed in self._hushed:
            hushed.set()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._passing.add(task)
        try:
            await self._pass(reader, writer)
        except asyncio.CancelledError:
            pass  # It was cut; the loop would log that as an error.
        finally:
            self._passing.discard(task)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_unix_connection(self._server)
        lost, hushed = asyncio.Event(), asyncio.Event()
        self._hushed.append(hushed)
        there = asyncio.create_task(self._there(reader, to_server, lost, hushed))
        back = asyncio.create_task(_back(from_server, writer, lost, hushed))
        try:
            await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (there, back):
                task.cancel()
            await asyncio.gather(there, back, return_exceptions=True)
            for end in (to_server, writer):
                end.close()
                with contextlib.suppress(OSError):
                    await end.wait_closed()

    async def _there(
        self,
        reader: asyncio.StreamReader,
        to_server: asyncio.StreamWriter,
        lost: asyncio.Event,
        hushed: asyncio.Event,
    ) -> None:
        while data := await reader.read(65536):
            if hushed.is_set():
                continue
            if self._lose is not None and self._lose in data:
                self._lose = None
                self.lost += 1
                lost.set()
            to_server.write(data)
            await to_server.drain()


async def _back(
    from_server: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    lost: asyncio.Event,
    hushed: asyncio.Event,
) -> None:
    while data := await from_server.read(65536):
        if hushed.is_set():
            continue
        if lost.is_set():
            return  # The server has done it and said so; nobody hears it.
        writer.write(data)
        await writer.drain()
