"""Server-sent events as they are read: what the bytes mean, wherever they are cut (WHATWG)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import pairwise

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earnest.client.calling import Caller, Query
from earnest.client.errors import Unreachable
from earnest.client.following import MAX_FRAME, follow
from earnest.domain.errors import Busy

STREAM = "text/event-stream"


class Notes:
    """A reader that notes every frame."""

    path = "/v1/events"

    def __init__(self) -> None:
        self.query: Query = {}
        self.place = ""
        self.ended = False
        self.broken = False
        self.frames: list[tuple[str, str, str]] = []

    def take(self, frame: httpx2.ServerSentEvent) -> str | None:
        self.frames.append((frame.event, frame.data, frame.id))
        self.ended = frame.event == "end"
        return None


async def read(*chunks: bytes) -> list[tuple[str, str, str]]:
    """The frames before `end`, of an answer that comes in these chunks."""

    async def body() -> AsyncIterator[bytes]:
        for chunk in (*chunks, b"\n\nevent: end\ndata: 0\n\n"):
            yield chunk

    def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"Content-Type": STREAM}, content=body())

    http = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    caller, notes = Caller("http://server.test", "ern_x", patience=0, http=http), Notes()
    assert [told async for told in follow(caller, notes)] == []
    await caller.close()
    return notes.frames[:-1]


ALL = (
    b": connected\n\n"
    b"id: e-1\ndata: one\n\n"
    b"event: named\r\nid: e-2\r\ndata: two\r\ndata:  and more\r\n\r\n"
    b"id: e-3\rdata:three\r\r"
    b"retry: 5\n\n"
    b"id: bad\0id\ndata: four\n\n"
    b"unknown: field\ndata\n\n"
    b'data: {"\xe4\xb8\x96": "\xf0\x9f\x99\x82"}\n\n'
)
MEANT = [
    ("message", "one", "e-1"),
    ("named", "two\n and more", "e-2"),
    ("message", "three", "e-3"),
    ("message", "four", "e-3"),
    ("message", '{"世": "🙂"}', "e-3"),
]


async def test_frames_are_read_as_they_are_meant() -> None:
    assert await read(ALL) == MEANT


async def test_every_byte_may_come_by_itself() -> None:
    assert await read(*(ALL[at : at + 1] for at in range(len(ALL)))) == MEANT


@given(st.lists(st.integers(0, len(ALL)), max_size=6))
@settings(max_examples=60)
async def test_it_does_not_matter_where_the_bytes_are_cut(cuts: list[int]) -> None:
    ends = [0, *sorted(cuts), len(ALL)]
    assert await read(*(ALL[a:b] for a, b in pairwise(ends))) == MEANT


async def test_a_frame_that_never_ended_is_not_told() -> None:
    def answer(_: httpx2.Request) -> httpx2.Response:
        content = b"id: 1\ndata: whole\n\nid: 2\ndata: half of i"
        return httpx2.Response(200, headers={"Content-Type": STREAM}, content=content)

    http = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    caller, notes = Caller("http://server.test", "ern_x", patience=0, http=http), Notes()
    with pytest.raises(Busy, match="come again"):
        async for _ in follow(caller, notes):
            pass
    await caller.close()
    assert notes.frames == [("message", "whole", "1")]


async def test_a_line_of_a_megabyte_is_read_and_one_without_end_is_not() -> None:
    large = b"x" * (MAX_FRAME - 100)
    assert await read(b"data: " + large + b"\n\n") == [("message", large.decode(), "")]
    with pytest.raises(Unreachable, match="exceeded"):
        await read(*[b"data: " + b"x" * 65_536] + [b"x" * 65_536] * 20)
