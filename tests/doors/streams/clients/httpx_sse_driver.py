"""Follows streams with httpx-sse, in the loop that its documentation shows for coming again."""

from __future__ import annotations

import asyncio
from importlib.metadata import version

import httpx
from httpx_sse import ServerSentEvent, aconnect_sse

from tests.doors.streams.clients.lines import Asked, Tell, headers_of, speak

_NO_RETRY = 1.0
_OPEN_END = httpx.Timeout(10, read=60)


async def follow(asked: Asked, tell: Tell) -> None:
    headers, wait = headers_of(asked), _NO_RETRY
    async with httpx.AsyncClient(timeout=_OPEN_END) as client:
        while True:
            try:
                async with aconnect_sse(client, "GET", asked["url"], headers=headers) as source:
                    if source.response.status_code != 200:
                        tell({"saw": "closed", "status": source.response.status_code})
                        return
                    tell({"saw": "open"})
                    async for sse in source.aiter_sse():
                        wait = wait if sse.retry is None else sse.retry / 1000
                        # A frame that only says when to come again is given as an event of no data.
                        if sse.data:
                            _note(sse, headers, tell)
            except httpx.TransportError:
                pass
            tell({"saw": "away"})
            await asyncio.sleep(wait)


def _note(sse: ServerSentEvent, headers: dict[str, str], tell: Tell) -> None:
    if sse.id:
        headers["Last-Event-ID"] = sse.id
    tell({"saw": "event", "event": sse.event, "data": sse.data, "id": sse.id})


if __name__ == "__main__":
    asyncio.run(speak(f"{version('httpx-sse')} on httpx {version('httpx')}", follow))
