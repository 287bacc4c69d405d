"""The lines that the drivers written in Python speak, as those for Node do.

In: `{"open": name, "url", "token", "last_event_id", "names"}` or `{"close": name}`. Out:
`{"ready": version}`, then `{"stream": name, "saw": "open" | "event" | "away" | "closed", …}`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

Asked = dict[str, Any]
Tell = Callable[[dict[str, Any]], None]
Follow = Callable[[Asked, Tell], Awaitable[None]]


def say(line: dict[str, Any]) -> None:
    os.write(1, json.dumps(line).encode() + b"\n")


async def speak(version: str, follow: Follow) -> None:
    """Follows each stream that is asked for, until it is to be closed. Returns at the end of the
    input."""
    following: dict[str, asyncio.Task[None]] = {}
    reader = await _input()
    say({"ready": version})
    while line := await reader.readline():
        asked: Asked = json.loads(line)
        if "close" in asked:
            following.pop(asked["close"]).cancel()
        else:
            following[asked["open"]] = asyncio.create_task(_until_closed(follow, asked))
    for task in following.values():
        task.cancel()
    await asyncio.gather(*following.values(), return_exceptions=True)


async def _until_closed(follow: Follow, asked: Asked) -> None:
    def tell(seen: dict[str, Any]) -> None:
        say({"stream": asked["open"], **seen})

    with suppress(asyncio.CancelledError):
        try:
            await follow(asked, tell)
        except Exception as error:
            tell({"saw": "broken", "why": repr(error)})
            raise


async def _input() -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=2**20)
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    return reader


def headers_of(asked: Asked) -> dict[str, str]:
    """The token and the place that a caller gives."""
    headers = {}
    if asked["token"] is not None:
        headers["Authorization"] = f"Bearer {asked['token']}"
    if asked["last_event_id"] is not None:
        headers["Last-Event-ID"] = asked["last_event_id"]
    return headers
