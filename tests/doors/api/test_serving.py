"""The API on a real socket: the port, what comes in by it, and how it ends."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx2
import pytest

from earnest.domain.errors import SettingInvalid
from earnest.doors.api import serving
from earnest.doors.api.application import build_api
from earnest.doors.api.gate import MAX_BODY_BYTES
from earnest.doors.api.serving import Serving, listen, serve
from earnest.engine.inspection.readiness import Readiness
from earnest.engine.process.engine import Engine
from earnest.store.database import Database

Asgi = Callable[..., Any]
BODY = {"kind": "shop.echo", "input": 1}


@asynccontextmanager
async def _serving(app: Asgi) -> AsyncIterator[Serving]:
    """The application on a free port."""
    served = Serving(app, listen("127.0.0.1", 0))
    running = asyncio.create_task(served.run())
    try:
        await served.started.wait()
        yield served
    finally:
        served.stop()
        await running


@pytest.fixture
async def served(engine: Engine) -> AsyncIterator[Serving]:
    async with _serving(build_api(engine, ready=lambda: Readiness(True))) as found:
        yield found


async def _raw(url: str, *parts: bytes) -> tuple[int, dict[str, str], bytes]:
    """Sends bytes as they are, reads to the end of the connection: status, headers, body."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        for part in parts:
            writer.write(part)
            with suppress(ConnectionError):
                await writer.drain()
        async with asyncio.timeout(10):
            data = await reader.read()
    finally:
        writer.close()
    head, _, body = data.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(status.split()[1]), headers, body


def _post(token: str, *more: str) -> bytes:
    lines = [
        "POST /v1/runs HTTP/1.1",
        "Host: earnest",
        f"Authorization: Bearer {token}",
        "Content-Type: application/json",
        *more,
    ]
    return "\r\n".join([*lines, "", ""]).encode()


# ---- the port ----------------------------------------------------------------------------------


async def test_a_taken_port_is_said_in_one_line_with_what_to_do() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingInvalid) as refusal:
            listen("127.0.0.1", port)
    assert refusal.value.detail == (
        f"port {port} on 127.0.0.1 is taken; choose another with --port or EARNEST_PORT"
    )


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 65_536), ("no.such.host.invalid", 0)])
async def test_a_place_that_cannot_be_listened_at_is_said_in_one_line(host: str, port: int) -> None:
    with pytest.raises(SettingInvalid) as refusal:
        listen(host, port)
    assert "\n" not in refusal.value.detail


async def test_a_port_is_free_again_as_soon_as_its_server_has_ended(engine: Engine) -> None:
    app = build_api(engine, ready=lambda: Readiness(True))
    async with _serving(app) as served:
        port = int(served.url.rsplit(":", 1)[1])
        async with httpx2.AsyncClient(base_url=served.url) as client:
            assert (await client.get("/livez")).status_code == 200
    listen("127.0.0.1", port).close()


async def test_connections_inherit_a_small_buffer_and_an_end_to_waiting() -> None:
    """P10: a client that does not read is noticed."""
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            buffer = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
            waits = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    # The kernel doubles what was asked for, for its own book-keeping.
    assert 64 * 1024 <= buffer <= 2 * 64 * 1024
    assert 0 < waits <= 30_000


async def test_an_ipv6_address_is_written_so_that_it_can_be_used(engine: Engine) -> None:
    try:
        listener = listen("::1", 0)
    except SettingInvalid:
        pytest.skip("this machine has no IPv6")
    with listener:
        assert serving.address_of(listener).startswith("http://[::1]:")


async def test_serve_says_where_it_answers_and_ends_when_it_is_cancelled(engine: Engine) -> None:
    where: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    app = build_api(engine, ready=lambda: Readiness(True))
    running = asyncio.create_task(serve(app, "127.0.0.1", 0, ready=where.set_result))
    async with httpx2.AsyncClient(base_url=await where) as client:
        assert (await client.get("/livez")).status_code == 200
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_the_signals_of_the_process_are_left_alone(engine: Engine) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    async with _serving(build_api(engine, ready=lambda: Readiness(True))):
        after = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    assert after == before


# ---- what comes in -----------------------------------------------------------------------------


async def test_a_run_is_submitted_and_read_over_a_socket(
    served: Serving, tokens: dict[str, str]
) -> None:
    headers = {"Authorization": f"Bearer {tokens['member']}", "Idempotency-Key": "k"}
    async with httpx2.AsyncClient(base_url=served.url, headers=headers) as client:
        made = await client.post("/v1/runs", json=BODY)
        assert made.status_code == 202
        assert (await client.get(made.headers["location"])).json() == made.json()
        assert "server" not in made.headers


async def test_fifty_posts_over_fifty_connections_with_one_key_make_one_run(
    served: Serving, tokens: dict[str, str]
) -> None:
    """P7."""
    headers = {"Authorization": f"Bearer {tokens['member']}", "Idempotency-Key": "k"}

    async def post() -> httpx2.Response:
        async with httpx2.AsyncClient(base_url=served.url, headers=headers) as client:
            return await client.post("/v1/runs", json=BODY, timeout=30)

    answers = await asyncio.gather(*(post() for _ in range(50)))
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["id"] for answer in answers}) == 1


async def test_an_announced_body_over_the_limit_is_refused_before_it_is_sent(
    served: Serving, tokens: dict[str, str]
) -> None:
    head = _post(tokens["member"], f"Content-Length: {MAX_BODY_BYTES + 1}", "Idempotency-Key: k")
    status, headers, body = await _raw(served.url, head)
    assert (status, json.loads(body)["code"]) == (413, "payload_too_large")
    assert headers["connection"] == "close"


async def test_a_body_in_chunks_over_the_limit_is_cut_off(
    served: Serving, tokens: dict[str, str]
) -> None:
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    head = _post(tokens["member"], "Transfer-Encoding: chunked", "Idempotency-Key: k")
    status, _, body = await _raw(served.url, head, *[chunk] * 17)
    assert (status, json.loads(body)["code"]) == (413, "payload_too_large")


async def test_who_waits_for_leave_to_send_is_refused_without_a_token_before_sending(
    served: Serving,
) -> None:
    head = _post("ern_none", "Content-Length: 100", "Expect: 100-continue", "Connection: close")
    status, _, body = await _raw(served.url, head)
    assert (status, json.loads(body)["code"]) == (401, "unauthenticated")


async def test_a_caller_that_leaves_in_the_middle_of_its_body_harms_nobody(
    served: Serving, tokens: dict[str, str]
) -> None:
    host, port = served.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(_post(tokens["member"], "Content-Length: 100", "Idempotency-Key: k") + b'{"kind"')
    await writer.drain()
    writer.transport.abort()
    headers = {"Authorization": f"Bearer {tokens['member']}"}
    async with httpx2.AsyncClient(base_url=served.url, headers=headers) as client:
        assert (await client.get("/v1/runs")).json()["items"] == []


# ---- the end -----------------------------------------------------------------------------------


class _Slow:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.answer = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked.set()
        await self.answer.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})


async def test_what_is_on_its_way_when_the_server_stops_is_still_answered() -> None:
    slow = _Slow()
    async with _serving(slow) as served, httpx2.AsyncClient(base_url=served.url) as client:
        asking = asyncio.create_task(client.get("/"))
        await slow.asked.wait()
        served.stop()
        slow.answer.set()
        assert (await asking).status_code == 204


async def test_what_never_answers_does_not_keep_the_server_from_ending(
    engine: Engine, tokens: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """P19: the caller is told to come again, not that something broke."""
    monkeypatch.setattr(serving, "GRACE", 0.2)
    asked, never = asyncio.Event(), asyncio.Event()

    async def hang(*_: object) -> None:
        asked.set()
        await never.wait()

    app = build_api(engine, ready=lambda: Readiness(True))
    headers = {"Authorization": f"Bearer {tokens['member']}"}
    async with (
        asyncio.timeout(5),
        _serving(app) as served,
        httpx2.AsyncClient(base_url=served.url, headers=headers) as client,
    ):
        await client.get("/v1/runs")
        monkeypatch.setattr(Database, "fetch", hang)
        asking = asyncio.create_task(client.get("/v1/runs"))
        await asked.wait()
        served.stop()
        answer = await asking
    assert (answer.status_code, answer.json()["code"]) == (503, "busy")
