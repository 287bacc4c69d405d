"""What a failed HTTP call says about its effect: surely not sent, surely refused, or in doubt.

`classify` serves `httpx2` and `httpx` and imports neither: it knows their exceptions by class name
and root module. `NotSent` and `Refused` release an operation; `None` is doubt, and doubt is the
answer to everything that is not listed:

| the call ended with | says | because |
| --- | --- | --- |
| `ConnectError` | `NotSent` | refused, unreachable, name not resolved, TLS handshake failed: |
| | | all of this comes before the first byte of a request |
| `ConnectTimeout` | `NotSent` | the same, by time; of several addresses none was written to |
| `PoolTimeout` | `NotSent` | no connection became free |
| `ProxyError` | `NotSent` | the proxy did not open the tunnel, so no request went through it |
| `UnsupportedProtocol`, `InvalidURL` | `NotSent` | there is nobody to connect to |
| status 4xx, but not those below | `Refused` | a definite no |
| status 408, 409, 425, 429 | doubt | may be said after or beside the effect |
| status 1xx, 3xx, 5xx | doubt | the effect may have happened |
| `ReadTimeout`, `ReadError`, `RemoteProtocolError` | doubt | the request may have arrived |
| `WriteTimeout`, `WriteError` | doubt | a part has arrived; also a kept connection that broke |
| `LocalProtocolError`, `TooManyRedirects`, `DecodingError`, ... | doubt | too late to know |
| anything else, cancellation and groups of exceptions too | doubt | not an HTTP failure we know |

**About this call.** An exception tells only how the last request ended. If there was an earlier one
that may have had the effect, "not sent" and "refused" become doubt. Earlier requests are seen

* in the answers that were received first, such as a redirect that was followed (only a definite
  4xx, such as the 401 before a digest, is harmless);
* in the exceptions in whose handling this one was raised (`__cause__`, `__context__`), unless they
  too were not sent or refused;
* in a transport that is not the library's own, which may have tried several times.

A loop that forgets its earlier exceptions cannot be seen, nor can a client library that retries
inside: so an exception of another library that only has one of ours as its cause is doubt. The
`submit` of an effect makes one call.

There is no `raise_for_outcome`: `response.raise_for_status()` of both libraries lets 2xx pass and
raises for everything else, 3xx included.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from http import HTTPStatus
from types import FrameType
from typing import Any

from earnest.domain.errors import NotSent, Refused
from earnest.domain.foreign_errors import said_by

LIBRARIES = frozenset({"httpx2", "httpx"})
BEFORE_THE_REQUEST = frozenset(
    {
        "ConnectError",
        "ConnectTimeout",
        "PoolTimeout",
        "ProxyError",
        "UnsupportedProtocol",
        "InvalidURL",
    }
)
INDEFINITE = frozenset(
    {
        HTTPStatus.REQUEST_TIMEOUT,
        HTTPStatus.CONFLICT,
        HTTPStatus.TOO_EARLY,
        HTTPStatus.TOO_MANY_REQUESTS,
    }
)
LONGEST_BODY = 2_000

# Names inside both libraries; a library that changed them would be doubted, not believed.
HANDLES_REDIRECTS = "_send_handling_redirects"
SENDS_ONE_REQUEST = "_send_single_request"


def classify(error: BaseException) -> NotSent | Refused | None:
    """What `error` says about the effect of the call that raised it; `None` when in doubt.

    A `NotSent` or `Refused` that the effect raised itself is believed and returned as it is.
    `Refused` carries `http_status` and the first part of the answer's `body`, if it was read.
    """
    if isinstance(error, NotSent | Refused):
        return error
    outcome = _outcome(error)
    if outcome is None or any(_left_a_doubt(earlier) for earlier in _behind(error)):
        return None
    return outcome


def _outcome(error: BaseException) -> NotSent | Refused | None:
    """What the error says, looked at alone."""
    name = _library_name(error)
    if not _is_about_the_first_request(error):
        return None
    if name == "HTTPStatusError":
        return _refusal(error)
    if name in BEFORE_THE_REQUEST and _failed_before_its_request(error):
        return NotSent(f"{name}: {said_by(error)}{_request_line(error)}")
    return None


def _library_name(error: BaseException) -> str | None:
    """The library's name for this error; a subclass of a user counts as what it is derived from."""
    for kind in type(error).__mro__:
        if _root(kind.__module__) in LIBRARIES:
            return kind.__name__
    return None


def _root(module: str) -> str:
    return module.partition(".")[0]


# ---- refused -----------------------------------------------------------------------------------


def _refusal(error: Any) -> Refused | None:
    response = getattr(error, "response", None)
    if response is None or not all(map(_is_definite, (*response.history, response))):
        return None
    status = response.status_code
    detail = f"the provider answered {status} {response.reason_phrase}{_request_line(error)}"
    return Refused(detail, fields={"http_status": status, "body": _body(response)})


def _is_definite(response: Any) -> bool:
    status = response.status_code
    return 400 <= status < 500 and status not in INDEFINITE


def _body(response: Any) -> str | None:
    """The first part of the body as text that a database can keep; `None` if it was not read."""
    try:
        text: str = response.content.decode("utf-8", "replace")
    except RuntimeError:  # a streamed answer: reading it is not ours to do
        return None
    return text[:LONGEST_BODY].replace("\0", "\N{REPLACEMENT CHARACTER}")


def _request_line(error: Any) -> str:
    """Method, host and path; a query may hold secrets."""
    try:
        request = error.request
    except (AttributeError, RuntimeError):
        return ""
    return f" ({request.method} {request.url.host}{request.url.path})"


# ---- not sent ----------------------------------------------------------------------------------


def _failed_before_its_request(error: BaseException) -> bool:
    """Whether the traceback agrees that the client failed in connecting for its first request."""
    inside = [frame for frame in _frames(error) if _is_of_library(frame)]
    names = {frame.f_code.co_name for frame in inside if _is_of_client(frame)}
    if not names:  # a transport used directly; but a URL parsed alone may stand in an answer
        return not inside or _library_name(error) != "InvalidURL"
    # A client that sends fails in its transport, unless the user's own hook raised. A library that
    # has renamed these functions is doubted too.
    return "send" not in names or names >= {HANDLES_REDIRECTS, SENDS_ONE_REQUEST}


# ---- about this call ---------------------------------------------------------------------------


def _is_about_the_first_request(error: BaseException) -> bool:
    """Whether the clients in the traceback had no earlier answer that may stand for an effect."""
    clients = [frame for frame in _frames(error) if _is_of_client(frame)]
    return all(_had_no_answer(frame) and _has_own_transport(frame) for frame in clients)


def _had_no_answer(frame: FrameType) -> bool:
    seen = frame.f_locals
    if frame.f_code.co_name == HANDLES_REDIRECTS and "history" not in seen:
        return False  # the traceback was cleared, so it is no evidence
    answers = [*seen.get("history", ())]
    if "response" in seen:
        answers.append(seen["response"])
    return all(map(_is_definite, answers))


def _has_own_transport(frame: FrameType) -> bool:
    """Whether the library itself sends, and not a transport that may try several times."""
    if frame.f_code.co_name != SENDS_ONE_REQUEST:
        return True
    return _root(type(frame.f_locals.get("transport")).__module__) in LIBRARIES


def _left_a_doubt(earlier: BaseException) -> bool:
    """Whether this is how another request ended, and not as surely not sent or refused."""
    of_a_call = _library_name(earlier) is not None or any(map(_is_of_client, _frames(earlier)))
    return of_a_call and _outcome(earlier) is None


def _behind(error: BaseException) -> Iterator[BaseException]:
    """Every exception that `error` was raised from or in the handling of, however far back."""
    seen, waiting = {id(error)}, [error]
    while waiting:
        last = waiting.pop()
        for earlier in (last.__cause__, last.__context__):
            if earlier is not None and id(earlier) not in seen:
                seen.add(id(earlier))
                waiting.append(earlier)
                yield earlier


def _frames(error: BaseException) -> Iterator[FrameType]:
    return (frame for frame, _ in traceback.walk_tb(error.__traceback__))


def _is_of_library(frame: FrameType) -> bool:
    return _root(_module(frame)) in LIBRARIES


def _is_of_client(frame: FrameType) -> bool:
    return _is_of_library(frame) and _module(frame).endswith("._client")


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
