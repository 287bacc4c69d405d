"""Follows streams with curl: its output, taken apart by the reader that the other tests use."""

from __future__ import annotations

import asyncio
import json
import subprocess

from tests.doors.streams.clients.lines import Asked, Tell, headers_of, speak
from tests.doors.streams.reading import Parser

_LIMIT = 2**20


async def follow(asked: Asked, tell: Tell) -> None:
    headers = {"Accept": "text/event-stream", **headers_of(asked)}
    words = [word for name, value in headers.items() for word in ("--header", f"{name}: {value}")]
    curl = await asyncio.create_subprocess_exec(
        "curl",
        *("--no-buffer", "--silent", "--include", "--globoff"),
        *words,
        asked["url"],
        stdout=asyncio.subprocess.PIPE,
        limit=_LIMIT,
    )
    assert curl.stdout is not None, "opened as a pipe"
    try:
        await _read(curl.stdout, tell)
        # 18: the answer was cut off.
        tell({"saw": "closed", "exit": await curl.wait()})
    finally:
        if curl.returncode is None:
            curl.kill()
            await curl.wait()


async def _read(output: asyncio.StreamReader, tell: Tell) -> None:
    try:
        head = await output.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return
    status = int(head.split(b" ", 2)[1])
    tell({"saw": "open"} if status == 200 else {"saw": "refused", "status": status})
    parser = Parser()
    while data := await output.read(65536):
        for item in parser.feed(data) if status == 200 else ():
            told = json.dumps(item.data, ensure_ascii=False)
            tell({"saw": "event", "event": item.event, "data": told, "id": item.id})


def _version() -> str:
    said = subprocess.run(["curl", "--version"], capture_output=True, text=True, check=True)
    return said.stdout.split()[1]


if __name__ == "__main__":
    asyncio.run(speak(_version(), follow))
