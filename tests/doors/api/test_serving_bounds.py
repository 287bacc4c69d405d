"""What may come in by a socket and how long it may take: who sends without end, or never ends, is
told so and let go, and the others notice nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from earnest.doors.api import incoming, serving
from earnest.doors.api.application import build_api
from earnest.doors.api.serving import Serving, listen
from earnest.engine.inspection.readiness import Readiness
from earnest.engine.process.engine import Engine
from earnest.store.blobs_folder import FolderBlobs

Told = tuple[int, dict[str, str], bytes]


@asynccontextmanager
async def _serving(app: Any) -> AsyncIterator[Serving]:
    served = Serving(app, listen("127.0.0.1", 0))
    running = asyncio.create_task(served.run())
    try:
        await served.started.wait()
        yield served
    finally:
        served.stop()
        await running


@pytest.fixture
async def served(engine: Engine, tmp_path: Path) -> AsyncIterator[Serving]:
    engine.blobs = FolderBlobs(tmp_path / "artifacts")
    async with _serving(build_api(engine, ready=lambda: Readiness(True))) as found:
        yield found


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "HEAD_SECONDS", 0.2)
    monkeypatch.setattr(incoming, "PROGRESS_SECONDS", 0.2)


async def _open(served: Serving) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = served.url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


async def _ask(served: Serving, *parts: bytes) -> bytes:
    """Sends the parts and reads until the server closes."""
    reader, writer = await _open(served)
    try:
        for part in parts:
            with suppress(ConnectionError):
                writer.write(part)
                await writer.drain()
        async with asyncio.timeout(10):
            return await reader.read()
    finally:
        writer.close()


def _read(data: bytes) -> Told:
    head, _, body = data.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    return int(status.split()[1]), dict(line.lower().split(": ", 1) for line in lines), body


def _is_refused(data: bytes, status: int) -> None:
    told, headers, body = _read(data)
    problem = json.loads(body)
    assert (told, problem["status"], problem["code"]) == (status, status, "invalid_request")
    assert headers["content-type"] == "application/problem+json"
    assert headers["connection"] == "close"
    assert headers["x-request-id"] == problem["request_id"]


def _get(path: str = "/livez", *fields: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: earnest", *fields, "", ""]).encode()


def _post(token: str, *fields: str, path: str = "/v1/runs") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: earnest", f"Authorization: Bearer {token}"]
    typed = ["Content-Type: application/json", "Idempotency-Key: k"]
    return "\r\n".join([*lines, *typed, *fields, "", ""]).encode()


# ---- how much ----------------------------------------------------------------------------------


async def test_a_head_without_end_is_refused_when_it_is_too_long(served: Serving) -> None:
    begun = b"GET /livez HTTP/1.1\r\nHost: x\r\nX: "
    _is_refused(await _ask(served, begun, *[b"b" * 65_536] * 16), 431)


async def test_a_complete_head_that_is_too_long_is_refused(served: Serving) -> None:
    fields = [f"X-{number}: {'b' * 1000}" for number in range(40)]
    _is_refused(await _ask(served, _get("/livez", *fields)), 431)


async def test_a_head_of_too_many_fields_is_refused_and_one_of_as_many_as_may_be_is_not(
    served: Serving,
) -> None:
    fields = [f"X-{number}: b" for number in range(incoming.FIELDS - 2)]
    assert _read(await _ask(served, _get("/livez", "Connection: close", *fields)))[0] == 200
    _is_refused(await _ask(served, _get("/livez", "X: 1", "Connection: close", *fields)), 431)


async def test_an_address_that_is_too_long_is_refused(served: Serving) -> None:
    _is_refused(await _ask(served, _get("/v1/runs?q=" + "a" * incoming.ADDRESS_BYTES)), 414)


async def test_trailers_and_chunk_extensions_without_end_are_refused(
    served: Serving, tokens: dict[str, str]
) -> None:
    head = _post(tokens["member"], "Transfer-Encoding: chunked") + b"1\r\n{\r\n"
    _is_refused(await _ask(served, head, b"0\r\nX: ", *[b"b" * 65_536] * 4), 431)
    _is_refused(await _ask(served, head, b"1;", *[b"b" * 65_536] * 4), 431)


async def test_many_requests_at_once_over_one_connection_are_no_long_head(served: Serving) -> None:
    many = _get("/livez", "X: " + "b" * 1000) * 60
    data = await _ask(served, many + _get("/livez", "Connection: close"))
    assert data.count(b"HTTP/1.1 200") == 61


@pytest.mark.parametrize("text", [b"hello\r\n\r\n", b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n"])
async def test_what_is_not_http_is_told_so_in_the_form_of_every_refusal(
    served: Serving, text: bytes
) -> None:
    _is_refused(await _ask(served, text), 400)


async def test_what_is_refused_behind_a_request_does_not_disturb_its_answer() -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        asked.set()
        await answer.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async with _serving(slow) as served:
        asking = asyncio.create_task(_ask(served, _get() + b"\x00\x01"))
        await asked.wait()
        answer.set()
        data = await asking
    assert (_read(data)[0], data.count(b"HTTP/1.1")) == (204, 1)


# ---- how long ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("impatient")
async def test_a_head_that_never_ends_is_let_go_although_bytes_come(served: Serving) -> None:
    reader, writer = await _open(served)
    writer.write(b"GET /livez HTTP/1.1\r\n")
    reading = asyncio.create_task(reader.read())
    async with asyncio.timeout(10):
        while not (await asyncio.wait({reading}, timeout=0.05))[0]:
            writer.write(b"X: 1\r\n")
    _is_refused(reading.result(), 408)
    writer.close()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("path", ["/v1/runs", "/v1/artifacts"])
async def test_a_body_that_stops_is_let_go(
    served: Serving, tokens: dict[str, str], path: str
) -> None:
    head = _post(tokens["member"], "Content-Length: 100", path=path)
    _is_refused(await _ask(served, head + b'{"kind"'), 408)


async def test_a_body_that_comes_in_drops_is_let_go_after_its_time(
    served: Serving, tokens: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incoming, "BODY_SECONDS", 0.5)
    reader, writer = await _open(served)
    writer.write(_post(tokens["member"], "Content-Length: 100000"))
    reading = asyncio.create_task(reader.read())
    async with asyncio.timeout(10):
        while not (await asyncio.wait({reading}, timeout=0.05))[0]:
            writer.write(b" ")
    _is_refused(reading.result(), 408)
    writer.close()


@pytest.mark.usefixtures("impatient")
async def test_a_file_may_take_longer_than_a_body_as_long_as_it_goes_on(
    served: Serving, tokens: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incoming, "BODY_SECONDS", 0.2)
    reader, writer = await _open(served)
    fields = ["Content-Length: 10", "Connection: close"]
    head = _post(tokens["member"], *fields, path="/v1/artifacts")
    writer.write(head.replace(b"application/json", b"text/plain"))
    reading = asyncio.create_task(reader.read())
    for _ in range(10):
        writer.write(b"a")
        await asyncio.wait({reading}, timeout=0.06)
    async with asyncio.timeout(10):
        assert _read(await reading)[0] == 201
    writer.close()


@pytest.mark.usefixtures("impatient")
async def test_what_is_ours_to_answer_has_no_time_of_its_sender() -> None:
    async def slow(scope: Any, receive: Any, send: Any) -> None:
        loop = asyncio.get_running_loop()
        late = loop.create_future()
        loop.call_later(0.6, late.set_result, None)
        await late
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async with _serving(slow) as served:
        whole = _get("/livez", "Connection: close")
        asks_leave = ["Expect: 100-continue", "Content-Length: 5", "Connection: close"]
        assert _read(await _ask(served, whole))[0] == 204
        assert _read(await _ask(served, _get("/livez", *asks_leave)))[0] == 204


async def test_who_says_nothing_is_closed_without_a_word(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_KEEP_ALIVE", 0.2)
    async with _serving(build_api(engine, ready=lambda: Readiness(True))) as served:
        assert await _ask(served) == b""
        assert await _ask(served, b"\r\n") == b""
        assert _read(await _ask(served, _get()))[0] == 200
