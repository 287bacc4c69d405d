"""The one client for requests whose address somebody else has named: a webhook, an upload by link.

A name is resolved once, what it resolves to is checked, and the connection is made to exactly that
address: a name that answers otherwise the next time (DNS rebinding) gains nothing. If one of its
addresses is refused, so is the name. Redirects are not followed, and whoever follows one passes the
same check. Proxies of the environment are not used: they would resolve for themselves. Time and the
size of an answer are bounded; what a server announces of its encoding is not unpacked.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import httpcore2
import httpx2

from earnest.engine.process.addresses import (
    VARIABLE,
    AddressPolicy,
    AddressRefused,
    read_address,
)

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""The addresses of a name, for a port."""

MAX_URL = 2000
MOST_BYTES = 64 * 1024


async def resolve(host: str, port: int) -> list[str]:
    """Asks the system. Raises `OSError`."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def check_url(url: str, policy: AddressPolicy) -> httpx2.URL:
    """The parsed URL of something that may be called at all; its name is looked up when it is.
    Plain `http` is for networks that the deployment allowed. Raises `AddressRefused`."""
    try:
        parsed = httpx2.URL(url)
        port = parsed.port
    except (httpx2.InvalidURL, ValueError, TypeError) as error:
        raise AddressRefused("that is no URL; write https://host/path") from error
    if len(url) > MAX_URL or not parsed.host or not url.isprintable():
        raise AddressRefused(f"a URL has a host and at most {MAX_URL} printable characters")
    schemes = ("https", "http") if policy.allows_some else ("https",)
    if parsed.scheme not in schemes:
        raise AddressRefused("only https is called; write https://host/path")
    if parsed.userinfo or parsed.fragment:
        raise AddressRefused("leave user, password and fragment out of the URL")
    if port is not None and port < 1024 and port not in (80, 443):
        raise AddressRefused(f"port {port} belongs to another protocol; use 443, or one from 1024")
    _check_literal(parsed.host, policy)
    return parsed


def _check_literal(host: str, policy: AddressPolicy) -> None:
    """An address that stands in the URL itself can be told at once."""
    try:
        address = read_address(host)
    except AddressRefused:
        return
    if not policy.allows(address):
        raise _refusal(host)


class _PinnedBackend(httpcore2.AsyncNetworkBackend):
    """Connects to an address that it has checked itself."""

    def __init__(self, policy: AddressPolicy, resolve: Resolve) -> None:
        self._policy = policy
        self._resolve = resolve
        self._below = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        try:
            async with asyncio.timeout(timeout):
                addresses = await self._checked(host, port)
        except TimeoutError:
            raise httpcore2.ConnectTimeout("the name was not resolved in time") from None
        last: Exception = httpcore2.ConnectError("the name has no address")
        for address in addresses:
            try:
                return await self._below.connect_tcp(
                    address, port, timeout, local_address, socket_options
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                last = error
        raise last

    async def _checked(self, host: str, port: int) -> list[str]:
        try:
            found = await self._resolve(host, port)
        except OSError as error:
            raise httpcore2.ConnectError("the name was not resolved") from error
        if not all(self._policy.allows(read_address(one)) for one in found):
            raise _refusal(host)
        return found

    async def connect_unix_socket(self, *_: Any, **__: Any) -> httpcore2.AsyncNetworkStream:
        raise AddressRefused("no socket of this machine is called")

    async def sleep(self, seconds: float) -> None:
        await self._below.sleep(seconds)


class GuardedTransport(httpx2.AsyncHTTPTransport):
    """A transport of httpx2 that calls only what the policy allows."""

    _pool: Any

    def __init__(
        self,
        policy: AddressPolicy,
        resolve: Resolve = resolve,
        *,
        trust: ssl.SSLContext | None = None,
        connections: int = 100,
    ) -> None:
        super().__init__(trust_env=False)
        self._policy = policy
        assert isinstance(self._pool, httpcore2.AsyncConnectionPool), "the guard has to be in it"
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=trust or ssl.create_default_context(),
            max_connections=connections,
            keepalive_expiry=5.0,
            network_backend=_PinnedBackend(policy, resolve),
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        # Here too: a redirect that somebody chose to follow has passed no other check.
        check_url(str(request.url), self._policy)
        return await super().handle_async_request(request)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: at most so many bytes of the body; `whole` says whether that is all."""

    status: int
    headers: httpx2.Headers
    body: bytes
    whole: bool


class GuardedClient:
    """Sends requests for others. `trust` replaces the system's certificates."""

    def __init__(
        self,
        policy: AddressPolicy | None = None,
        resolve: Resolve = resolve,
        *,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        self.policy = AddressPolicy.from_environment() if policy is None else policy
        # For whoever needs more than `request`, such as a stream: nothing of the guard is lost.
        self.http = httpx2.AsyncClient(
            transport=GuardedTransport(self.policy, resolve, trust=trust),
            trust_env=False,
            follow_redirects=False,
        )

    async def __aenter__(self) -> GuardedClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.http.aclose()

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
        seconds: float = 15.0,
        most_bytes: int = MOST_BYTES,
    ) -> Answer:
        """One request, over in `seconds` from its beginning to the last byte that is read. Raises
        `AddressRefused`, `TimeoutError` and httpx2's errors."""
        asked = {"Accept-Encoding": "identity", **(headers or {})}
        async with (
            asyncio.timeout(seconds),
            self.http.stream(
                method, url, headers=asked, content=content, timeout=seconds
            ) as response,
        ):
            body = bytearray()
            async for piece in response.aiter_raw():
                body += piece
                if len(body) > most_bytes:
                    return _answer(response, bytes(body[:most_bytes]), whole=False)
            return _answer(response, bytes(body), whole=True)


def _answer(response: httpx2.Response, body: bytes, *, whole: bool) -> Answer:
    return Answer(response.status_code, response.headers, body, whole)


def _refusal(host: str) -> AddressRefused:
    return AddressRefused(
        f"{host[:200]} is not on the public internet; a deployment allows its own networks with "
        f"{VARIABLE}"
    )
