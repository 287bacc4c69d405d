"""A receiver of webhooks at the far end of a real socket: it counts what came, verifies it with the
Standard Webhooks project's own library, and answers as the test says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from standardwebhooks.webhooks import Webhook


@dataclass(frozen=True)
class Got:
    """One request as it came."""

    headers: Mapping[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def told(self) -> Any:
        return json.loads(self.body)

    def verify(self, secret: str) -> Any:
        """Raises unless it was signed with this secret."""
        return Webhook(secret).verify(self.body, dict(self.headers))


@dataclass
class Receiver:
    """Answers `status` with `headers`, after `release` is set where there is one."""

    status: int = 204
    headers: dict[str, str] = field(default_factory=dict)
    release: asyncio.Event | None = None
    got: list[Got] = field(default_factory=list)
    url: str = ""
    _came: asyncio.Condition = field(default_factory=asyncio.Condition)
    _server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/hooks"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        if self.release is not None:
            self.release.set()

    async def until(self, count: int, seconds: float = 20) -> list[Got]:
        """Returns when so many requests have come."""
        async with asyncio.timeout(seconds), self._came:
            await self._came.wait_for(lambda: len(self.got) >= count)
        return self.got

    async def answer(self, got: Got) -> int:
        """The status of the answer; others may do something first."""
        return self.status

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await self._answer(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lines = [line.split(": ", 1) for line in head.split("\r\n")[1:] if line]
        headers = {name.lower(): value for name, value in lines}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        got = Got(headers, body)
        async with self._came:
            self.got.append(got)
            self._came.notify_all()
        if self.release is not None:
            await self.release.wait()
        status = await self.answer(got)
        more = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        writer.write(f"HTTP/1.1 {status} X\r\n{more}content-length: 0\r\n\r\n".encode())
        await writer.drain()
