"""Far ends that misbehave in one exact way each, over real sockets, and two ways to call them."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

TRUST = ssl.create_default_context()  # loading certificates for each client takes most of a test

Script = Callable[[socket.socket], None]


@contextmanager
def far_end(*scripts: Script) -> Iterator[str]:
    """The address (`host:port`) of a server that treats its n-th connection by the n-th script.

    Connections stay open until the end unless a script closes them.
    """
    lines: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_serve, args=(listener, scripts, lines))
        thread.start()
        try:
            yield address_of(listener)
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            for line in lines:
                line.close()
            thread.join()


def address_of(listener: socket.socket) -> str:
    return f"127.0.0.1:{listener.getsockname()[1]}"


def _serve(
    listener: socket.socket, scripts: tuple[Script, ...], lines: list[socket.socket]
) -> None:
    for script in scripts:
        try:
            line, _ = listener.accept()
            lines.append(line)
            script(line)
        except OSError:  # the test is over, or the caller went away as it meant to
            continue


def closed_port() -> str:
    """An address at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return address_of(listener)


# ---- scripts -----------------------------------------------------------------------------------


def stall(line: socket.socket) -> None:
    """Read nothing, say nothing, stay connected."""


def close_at_once(line: socket.socket) -> None:
    """Accept, and hang up."""
    line.close()


def close_after_request(line: socket.socket) -> None:
    """Read a request, and hang up."""
    read_request(line)
    line.close()


def stall_after_request(line: socket.socket) -> None:
    """Read a request, and say nothing."""
    read_request(line)


def reset_after_some_bytes(line: socket.socket) -> None:
    """Read a little of a request, and reset the connection in its middle."""
    line.recv(1_000)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    line.close()


def answer(status: int, body: bytes = b"{}", **headers: str) -> Script:
    """Answer one request, and close."""

    def script(line: socket.socket) -> None:
        read_request(line)
        line.sendall(response(status, body, connection="close", **headers))
        line.close()

    return script


def answer_without(status: int) -> Script:
    """Answer with headers only, and let the caller wait for the body."""

    def script(line: socket.socket) -> None:
        read_request(line)
        line.sendall(b"HTTP/1.1 %d Status\r\nContent-Length: 10\r\n\r\n" % status)

    return script


def answer_then_close_while_written_to(line: socket.socket) -> None:
    """Answer a first request and keep the connection; hang up in the middle of a second one."""
    read_request(line)
    line.sendall(response(200))
    reset_after_some_bytes(line)


def speak_gibberish(line: socket.socket) -> None:
    """Answer a request with what is not HTTP; to a TLS greeting, with what is not TLS."""
    line.recv(65_536)
    line.sendall(b"good morning\r\n\r\n")
    line.close()


def response(status: int, body: bytes = b"{}", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Status", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def read_request(line: socket.socket) -> bytes:
    """Headers and as much body as they announce."""
    stream = line.makefile("rb")
    head = b""
    while (row := stream.readline()).strip():
        head += row
    announced = [row for row in head.lower().splitlines() if row.startswith(b"content-length:")]
    length = int(announced[0].partition(b":")[2]) if announced else 0
    return head + stream.read(length)


# ---- callers -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Caller:
    """One library, used with or without `async`."""

    module: ModuleType
    is_async: bool

    def __repr__(self) -> str:
        return f"{self.module.__name__}-{'async' if self.is_async else 'sync'}"

    def failure(
        self,
        url: str,
        *,
        method: str = "POST",
        content: bytes = b"{}",
        times: int = 1,
        auth: Any = None,
        **client: Any,
    ) -> BaseException:
        """What the last of `times` requests raises, also for a status that is not 2xx."""
        settings = {"trust_env": False, "timeout": 5.0, "verify": TRUST} | client
        request = {"method": method, "url": url, "content": content, "auth": auth}
        if self.is_async:
            return asyncio.run(self._async_failure(settings, request, times))
        return self._sync_failure(settings, request, times)

    def _sync_failure(
        self, settings: dict[str, Any], request: dict[str, Any], times: int
    ) -> BaseException:
        try:
            with self.module.Client(**settings) as client:
                for _ in range(times):
                    client.request(**request).raise_for_status()
        except Exception as error:
            return error
        raise AssertionError("the call did not fail")

    async def _async_failure(
        self, settings: dict[str, Any], request: dict[str, Any], times: int
    ) -> BaseException:
        try:
            async with self.module.AsyncClient(**settings) as client:
                for _ in range(times):
                    (await client.request(**request)).raise_for_status()
        except Exception as error:
            return error
        raise AssertionError("the call did not fail")
