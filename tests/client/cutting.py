"""A way to a server on which connections break after some bytes, by a seed: in the middle of a
request, of an answer, or of a stream."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

_AT_ONCE = struct.pack("ii", 1, 0)


class CuttingWay:
    """Stands before the server at `upstream`. Each connection is given by `budget` how many bytes
    pass, both ways together, until it is reset; or, where the way is `silent`, passes nothing more.
    `cut` counts those that were."""

    def __init__(
        self,
        upstream: str,
        seed: int,
        budget: Callable[[random.Random], int],
        *,
        silent: bool = False,
    ) -> None:
        self._upstream = urlsplit(upstream)
        self._random = random.Random(seed)
        self._budget = budget
        self._silent = silent
        self._open: set[asyncio.Task[None]] = set()
        self.cut = 0
        self.url = ""

    async def __aenter__(self) -> CuttingWay:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def break_all(self) -> None:
        """Ends the connections that are open now."""
        for task in self._open:
            task.cancel()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._pass(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        left = [self._budget(self._random)]
        try:
            with suppress(OSError):
                host, port = self._upstream.hostname, self._upstream.port
                back, forth = await asyncio.open_connection(host, port)
                ends.append(forth)
                ways = [self._copy(reader, forth, left), self._copy(back, writer, left)]
                tasks = [asyncio.create_task(way) for way in ways]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            self.cut += left[0] <= 0 and not self._silent
            for end in ends:
                _reset(end) if left[0] <= 0 else end.close()

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: list[int]
    ) -> None:
        while left[0] > 0 and (data := await reader.read(65_536)):
            writer.write(data[: left[0]])
            left[0] -= len(data)
            await writer.drain()
        if self._silent and left[0] <= 0:
            self.cut += len(left) == 1  # one of the two ways counts
            left.append(0)
            await asyncio.get_running_loop().create_future()


def _reset(writer: asyncio.StreamWriter) -> None:
    """What was passed is delivered first, as far as the peer has read it."""
    found: socket.socket | None = writer.get_extra_info("socket")
    if found is not None and not writer.is_closing():
        with suppress(OSError):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
    writer.transport.abort()
