"""Calls: one request to the API with all its tries, until it is known what came of it.

A try that broke, was turned away (429, 503) or lost on the way (502, 504) is followed by another
one, the same to the letter, while patience lasts. That is safe since every request of this client
is: it reads, or carries a key, or says what it says about one version. A refusal is raised at once.

A request that changes something is refused only by an answer that proves that nothing was done.
Something in between may have passed it on before it answered 502 or 504, and the server's own 5xx
may come after a commit. Once a try has ended so, what is said before a request is looked at (who
are you? too many) does not tell of that try either: then the outcome is unknown.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from importlib.metadata import version
from typing import Any, TypeVar
from urllib.parse import quote

import httpx2
import msgspec

from earnest.client.errors import OutcomeUnknown, UnexpectedAnswer, Unreachable
from earnest.client.patience import Patience, retry_after
from earnest.client.problems import error_of
from earnest.domain.errors import EarnestError, InvalidRequest

T = TypeVar("T")

Content = bytes | AsyncIterator[bytes]
Query = Mapping[str, Any]
Send = Callable[[], Awaitable[httpx2.Response]]

AGAIN = frozenset({429, 502, 503, 504})
_SAID_FIRST = frozenset({401, 403, 429})
"""Said before a key is looked for: it tells nothing of an earlier try."""
_NEVER_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
PATIENCE = 60.0
"""Seconds."""
SILENCE = 30.0
"""Seconds without a byte after which a connection is taken for dead. A stream says every 15 that it
lives."""
CONNECTING = 10.0

_PAGE = 100
_MAX_KEY = 255
_KEY = "Idempotency-Key"


class Caller:
    """Speaks to one API as one principal. `token` may be a function, for one that is rotated while
    the client lives."""

    def __init__(
        self,
        url: str,
        token: str | Callable[[], str],
        *,
        patience: float = PATIENCE,
        silence: float = SILENCE,
        http: httpx2.AsyncClient | None = None,
    ) -> None:
        self.patience = patience
        self._url = checked_url(url)
        self._token = token
        self._timeout = httpx2.Timeout(SILENCE, connect=CONNECTING, pool=None)
        self._streaming = httpx2.Timeout(silence, connect=CONNECTING, pool=None)
        # As many streams at once as the caller wants; the server has its own bounds.
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=20)
        self._http = http or httpx2.AsyncClient(limits=limits)

    async def close(self) -> None:
        await self._http.aclose()

    # ---- whole answers -------------------------------------------------------------------------

    async def read(self, type: type[T], path: str, query: Query | None = None) -> T:
        """What is there, as a value of the type."""
        return decoded(await self.ask("GET", path, query=query), type)

    async def write(
        self,
        type: type[T],
        path: str,
        body: Any = None,
        *,
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
    ) -> T:
        """Sends a body, and gives what was answered as a value of the type."""
        told = dict(headers or {})
        content = b""
        if body is not None:
            content, told["Content-Type"] = encoded(body), "application/json"
        answer = await self.ask(method, path, headers=told, content=content)
        return Changes(told).decoded(answer, type)

    async def pages(
        self, type: type[T], path: str, query: Query | None = None
    ) -> AsyncGenerator[T, None]:
        """The items of a list, page by page."""
        asked = {"limit": _PAGE, **(query or {})}
        while True:
            page = decoded(await self.ask("GET", path, query=asked), _Page)
            for item in page.items:
                yield _decoded(item, type)
            if page.next_cursor is None:
                return
            asked = {**asked, "cursor": page.next_cursor}

    async def ask(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        headers: Mapping[str, str] | None = None,
        content: bytes = b"",
    ) -> httpx2.Response:
        """The answer, when all is well. Raises what was refused. When patience ends: `Unreachable`
        or what the server said last; `OutcomeUnknown` for a change that may have been made."""
        patience = Patience(self.patience)

        async def send() -> httpx2.Response:
            async with asyncio.timeout(patience.left):
                request = self.request(method, path, query, headers, content)
                return await self._http.send(request)

        return await self.try_until(patience, send, None if method == "GET" else Changes(headers))

    async def try_until(
        self, patience: Patience, send: Send, changes: Changes | None
    ) -> httpx2.Response:
        """Sends until there is a definite answer, or patience ends. `changes`: what is sent changes
        something."""
        while True:
            at_least = 0.0
            failure: EarnestError
            try:
                answer = await send()
            except (httpx2.TransportError, TimeoutError) as error:
                failure = self.unreachable(error)
                if changes is not None:
                    failure = changes.after_a_break(failure, error)
            else:
                if answer.is_success:
                    return answer
                failure = error_of(answer)
                if changes is not None:
                    failure = changes.after_an_answer(failure, answer.status_code)
                if answer.status_code not in AGAIN:
                    raise failure
                at_least = retry_after(answer.headers.get("retry-after"))
            await patience.pause(failure, at_least)

    # ---- answers that stay open ----------------------------------------------------------------

    @asynccontextmanager
    async def opened(
        self, path: str, *, query: Query | None = None, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[httpx2.Response]:
        """The answer to one GET whose body is read bit by bit. Raises what was refused, with
        `Retry-After` in its field `retry_after`; and `httpx2.TransportError`."""
        request = self.request("GET", path, query, headers, streaming=True)
        answer = await self._http.send(request, stream=True)
        try:
            if not answer.is_success:
                await answer.aread()
                failure = error_of(answer)
                failure.fields["retry_after"] = retry_after(answer.headers.get("retry-after"))
                raise failure
            yield answer
        finally:
            await answer.aclose()

    def request(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        headers: Mapping[str, str] | None = None,
        content: Content = b"",
        *,
        streaming: bool = False,
    ) -> httpx2.Request:
        token = self._token if isinstance(self._token, str) else self._token()
        if not (token and token.isascii() and token.isprintable()):
            raise InvalidRequest("the token is one that `earnest tokens issue` has printed: ern_…")
        told = {"User-Agent": f"earnest/{version('earnest')}", "Accept": "application/json"}
        return self._http.build_request(
            method,
            self._url + path,
            params=_shown_query(query or {}),
            headers={**told, **(headers or {}), "Authorization": f"Bearer {token}"},
            content=content or None,
            timeout=self._streaming if streaming else self._timeout,
        )

    async def send(self, request: httpx2.Request) -> httpx2.Response:
        """One try."""
        return await self._http.send(request)

    def unreachable(self, error: Exception) -> Unreachable:
        told = str(error) or type(error).__name__
        failure = Unreachable(f"{self._url} gave no answer in time ({told})")
        failure.__cause__ = error
        return failure


@dataclass
class Changes:
    """A request that changes something, over all its tries. `lost`: one of them may have been
    taken. Makes of a failure what may be said of the request."""

    headers: Mapping[str, str] | None
    lost: bool = field(default=False, init=False)

    def after_a_break(self, failure: EarnestError, error: Exception) -> EarnestError:
        self.lost = self.lost or not isinstance(error, _NEVER_SENT)
        return self._named(failure)

    def after_an_answer(self, failure: EarnestError, status: int) -> EarnestError:
        self.lost = self.lost or status >= 500
        if isinstance(failure, OutcomeUnknown):
            return self._named(failure)
        if status < 500 and not (self.lost and status in _SAID_FIRST):
            return failure
        told = f"it is not known what came of it; told last: {failure.code}: {failure.detail}"
        unknown = OutcomeUnknown(told, fields=dict(failure.fields))
        unknown.__cause__, unknown.request_id = failure, failure.request_id
        return self._named(unknown)

    def decoded(self, answer: httpx2.Response, type: type[T]) -> T:
        """Raises `UnexpectedAnswer`."""
        try:
            return decoded(answer, type)
        except UnexpectedAnswer as error:
            self._named(error)
            raise

    def _named(self, failure: EarnestError) -> EarnestError:
        quoted = (self.headers or {}).get(_KEY)
        if quoted is not None:
            failure.fields["key"] = re.sub(r"\\(.)", r"\1", quoted[1:-1])
        return failure


class _Page(msgspec.Struct):
    items: list[msgspec.Raw]
    next_cursor: str | None = None


def path_of(*parts: str) -> str:
    """The path of a thing whose id may be any text."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def keyed(key: str | None) -> dict[str, str]:
    """The header that names a request; a key is made where none is given. Raises `InvalidRequest`
    for one that the API would not take."""
    if key is None:
        key = secrets.token_urlsafe(24)
    if not (0 < len(key) <= _MAX_KEY and key.isascii() and key.isprintable()):
        raise InvalidRequest(f"a key has 1 to {_MAX_KEY} printable characters of ASCII")
    return {_KEY: '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'}


def decoded(answer: httpx2.Response, type: type[T]) -> T:
    """Raises `UnexpectedAnswer`."""
    return _decoded(answer.content, type)


def encoded(body: Any) -> bytes:
    """JSON of plain values, dates, dataclasses, msgspec's and pydantic's models. Raises
    `InvalidRequest` for anything else."""
    try:
        return msgspec.json.encode(body, enc_hook=_plain)
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise InvalidRequest(f"this cannot be sent as JSON: {error}") from error


def _plain(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if dump is None or isinstance(value, type):
        raise TypeError(f"a {type(value).__name__} has no form in JSON")
    return dump(mode="json")


def _decoded(data: bytes | msgspec.Raw, type: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=type)
    except msgspec.MsgspecError as error:
        raise UnexpectedAnswer(f"the answer is none that this client knows: {error}") from error


def _shown_query(query: Query) -> dict[str, Any]:
    shown = {name: value for name, value in query.items() if value is not None}
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in shown.items()
    }


def checked_url(url: str) -> str:
    """Raises `InvalidRequest` for what is no address of an API."""
    try:
        parsed = httpx2.URL(url)
    except (httpx2.InvalidURL, TypeError):
        parsed = httpx2.URL()
    more = parsed.query or parsed.fragment or parsed.userinfo
    if parsed.scheme not in ("http", "https") or not parsed.host or more:
        raise InvalidRequest(
            f"{_without_secrets(parsed)} is no address of an API: use one like "
            "http://localhost:8321, without a password and without a query"
        )
    return str(parsed).rstrip("/")


def _without_secrets(url: httpx2.URL) -> str:
    """As much of an address as may be told: a password or a token may stand in the rest."""
    shown = f"{url.scheme}://{url.host}{url.path}" if url.host else ""
    return repr(shown) if shown else "this"
