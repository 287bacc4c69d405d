"""The table of `http_failures`, each row over real sockets, for both libraries, sync and async."""

from __future__ import annotations

import asyncio
import socket
import ssl
import traceback
from collections.abc import Callable, Iterator
from http import HTTPStatus
from types import FunctionType
from typing import Any

import httpx
import httpx2
import pytest

from earnest.domain.errors import EarnestError, NotSent, Refused
from earnest.engine.operations.http_failures import classify
from tests.engine import far_end as far
from tests.engine.far_end import Caller, far_end

CALLERS = [Caller(library, is_async) for library in (httpx2, httpx) for is_async in (False, True)]
LIBRARIES = [httpx2, httpx]
MORE_THAN_BUFFERS_HOLD = 64 * 1024 * 1024
DOUBTFUL_4XX = {408, 409, 425, 429}

each_caller = pytest.mark.parametrize("caller", CALLERS, ids=repr)
each_library = pytest.mark.parametrize("library", LIBRARIES, ids=lambda it: it.__name__)


def raised(error: BaseException, name: str) -> BaseException:
    """The error, after checking that the far end provoked the failure that it was made for."""
    assert type(error).__name__ == name, repr(error)
    return error


# ---- surely not sent ---------------------------------------------------------------------------


@each_caller
def test_a_refused_connection_was_not_sent(caller: Caller) -> None:
    error = raised(caller.failure(f"http://{far.closed_port()}/refunds"), "ConnectError")
    assert type(classify(error)) is NotSent


@each_caller
def test_of_several_addresses_all_refused_none_was_sent_to(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = int(far.closed_port().partition(":")[2])
    found = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", port, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_names: found)
    error = raised(caller.failure(f"http://two.test:{port}/refunds"), "ConnectError")
    assert type(classify(error)) is NotSent


@each_caller
def test_a_name_that_is_not_resolved_was_not_sent(caller: Caller) -> None:
    error = raised(caller.failure("http://bank.invalid/refunds"), "ConnectError")
    assert type(classify(error)) is NotSent


@each_caller
@pytest.mark.parametrize("script", [far.speak_gibberish, far.close_at_once])
def test_a_failed_tls_handshake_was_not_sent(caller: Caller, script: far.Script) -> None:
    with far_end(script) as address:
        error = raised(caller.failure(f"https://{address}/refunds"), "ConnectError")
    assert type(classify(error)) is NotSent


@each_caller
def test_a_tls_handshake_that_takes_too_long_was_not_sent(caller: Caller) -> None:
    timeout = caller.module.Timeout(5.0, connect=0.1)
    with far_end(far.stall) as address:
        error = caller.failure(f"https://{address}/refunds", timeout=timeout)
    assert type(classify(raised(error, "ConnectTimeout"))) is NotSent


@each_caller
def test_a_connection_that_is_not_accepted_in_time_was_not_sent(caller: Caller) -> None:
    timeout = caller.module.Timeout(5.0, connect=0.1)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        address = full.getsockname()
        with socket.create_connection(address), socket.socket() as second:
            second.setblocking(False)
            second.connect_ex(address)
            error = caller.failure(f"http://{far.address_of(full)}/refunds", timeout=timeout)
    assert type(classify(raised(error, "ConnectTimeout"))) is NotSent


@each_library
def test_a_request_that_got_no_connection_from_the_pool_was_not_sent(library: Any) -> None:
    limits, timeout = library.Limits(max_connections=1), library.Timeout(5.0, pool=0.05)
    with (
        far_end(far.answer_without(200)) as address,
        library.Client(limits=limits, timeout=timeout, trust_env=False) as client,
        client.stream("GET", f"http://{address}/refunds"),
    ):
        error = _failure_of(lambda: client.post(f"http://{address}/refunds"))
    assert type(classify(raised(error, "PoolTimeout"))) is NotSent


@each_library
async def test_an_async_request_that_got_no_connection_from_the_pool_was_not_sent(
    library: Any,
) -> None:
    limits, timeout = library.Limits(max_connections=1), library.Timeout(5.0, pool=0.05)
    with far_end(far.answer_without(200)) as address:
        async with (
            library.AsyncClient(limits=limits, timeout=timeout, trust_env=False) as client,
            client.stream("GET", f"http://{address}/refunds"),
        ):
            with pytest.raises(library.PoolTimeout) as caught:
                await client.post(f"http://{address}/refunds")
    assert type(classify(caught.value)) is NotSent


@each_caller
@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("ftp://bank/refunds", "UnsupportedProtocol"),
        ("/refunds", "UnsupportedProtocol"),
        ("http://bank:port/refunds", "InvalidURL"),
        ("http://[::1/refunds", "InvalidURL"),
    ],
)
def test_an_address_that_leads_nowhere_was_not_sent(caller: Caller, url: str, name: str) -> None:
    assert type(classify(raised(caller.failure(url), name))) is NotSent


@each_caller
def test_a_proxy_that_opens_no_tunnel_has_passed_nothing_on(caller: Caller) -> None:
    with far_end(far.answer(502)) as address:
        error = caller.failure("https://bank.test/refunds", proxy=f"http://{address}")
    assert type(classify(raised(error, "ProxyError"))) is NotSent


@each_caller
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_cannot_be_reached_has_passed_nothing_on(caller: Caller, scheme: str) -> None:
    proxy = f"http://{far.closed_port()}"
    error = raised(caller.failure(f"{scheme}://bank.test/refunds", proxy=proxy), "ConnectError")
    assert type(classify(error)) is NotSent


@each_caller
def test_a_transport_that_retries_connecting_has_sent_nothing(caller: Caller) -> None:
    kind = "AsyncHTTPTransport" if caller.is_async else "HTTPTransport"
    transport = getattr(caller.module, kind)(retries=1)
    error = caller.failure(f"http://{far.closed_port()}/refunds", transport=transport)
    assert type(classify(raised(error, "ConnectError"))) is NotSent


@each_library
def test_a_failure_to_connect_raised_without_a_client_is_believed(library: Any) -> None:
    assert type(classify(library.ConnectError("refused"))) is NotSent
    assert type(classify(_failure_of(_raising(library.PoolTimeout("full"))))) is NotSent
    assert type(classify(_failure_of(_raising(library.InvalidURL("no host"))))) is NotSent


@each_library
def test_a_subclass_counts_as_what_it_is_derived_from(library: Any) -> None:
    kind = type("BankUnreachable", (library.ConnectError,), {})
    assert type(classify(kind("refused"))) is NotSent


@each_caller
def test_what_was_not_sent_is_described_without_the_query(caller: Caller) -> None:
    outcome = classify(caller.failure(f"http://{far.closed_port()}/refunds?token=secret"))
    assert isinstance(outcome, NotSent)
    assert outcome.detail.startswith("ConnectError: ")
    assert outcome.detail.endswith(" (POST 127.0.0.1/refunds)")


# ---- surely refused ----------------------------------------------------------------------------


@each_library
@pytest.mark.parametrize("status", [s.value for s in HTTPStatus if s >= 200])
def test_every_status_is_refused_doubtful_or_no_failure(library: Any, status: int) -> None:
    request = library.Request("POST", "http://bank.test/refunds")
    response = library.Response(status, request=request)
    expected = Refused if 400 <= status < 500 and status not in DOUBTFUL_4XX else type(None)
    if status < 300:
        assert response.raise_for_status() is response
    else:
        assert type(classify(_failure_of(response.raise_for_status))) is expected


@each_caller
@pytest.mark.parametrize("status", [400, 404, 422, 499])
def test_a_definite_4xx_is_refused_and_keeps_status_and_body(caller: Caller, status: int) -> None:
    with far_end(far.answer(status, b'{"error": "no such order"}')) as address:
        outcome = classify(caller.failure(f"http://{address}/refunds"))
    assert isinstance(outcome, Refused)
    assert outcome.detail == (f"the provider answered {status} Status (POST 127.0.0.1/refunds)")
    assert outcome.fields == {"http_status": status, "body": '{"error": "no such order"}'}


@each_caller
@pytest.mark.parametrize("status", [301, 303, 304, 408, 409, 425, 429, 500, 502, 503, 504])
def test_any_other_status_is_doubt(caller: Caller, status: int) -> None:
    with far_end(far.answer(status, b"", location="http://elsewhere.test/")) as address:
        error = raised(caller.failure(f"http://{address}/refunds"), "HTTPStatusError")
    assert classify(error) is None


@each_caller
def test_a_body_that_a_database_cannot_keep_is_made_fit(caller: Caller) -> None:
    with far_end(far.answer(400, b"\0\xff" + b"x" * 100_000)) as address:
        outcome = classify(caller.failure(f"http://{address}/refunds"))
    assert isinstance(outcome, Refused)
    assert outcome.fields["body"] == "\ufffd\ufffd" + "x" * 1_998


@each_library
def test_a_refusal_whose_body_was_not_read_is_a_refusal(library: Any) -> None:
    with (
        far_end(far.answer_without(404)) as address,
        library.Client(trust_env=False) as client,
        client.stream("POST", f"http://{address}/refunds") as response,
    ):
        outcome = classify(_failure_of(response.raise_for_status))
    assert isinstance(outcome, Refused)
    assert outcome.fields == {"http_status": 404, "body": None}


@each_caller
def test_a_refusal_after_the_challenge_of_a_digest_is_a_refusal(caller: Caller) -> None:
    challenge = far.answer(401, WWW_Authenticate='Digest realm="bank", nonce="1", qop="auth"')
    with far_end(challenge, far.answer(422)) as address:
        auth = caller.module.DigestAuth("user", "password")
        error = caller.failure(f"http://{address}/refunds", auth=auth)
    assert isinstance(outcome := classify(error), Refused)
    assert outcome.fields["http_status"] == 422


@each_library
def test_a_refusal_raised_by_a_response_hook_is_a_refusal(library: Any) -> None:
    with far_end(far.answer(404)) as address:
        error = _hooked_failure(library, f"http://{address}/refunds")
    assert isinstance(classify(error), Refused)


@pytest.mark.parametrize("error", [NotSent("the till is closed"), Refused("no")])
def test_what_an_effect_says_itself_is_believed(error: EarnestError) -> None:
    assert classify(error) is error


# ---- doubt: the request may have arrived -------------------------------------------------------


@each_caller
def test_an_answer_that_does_not_come_is_doubt(caller: Caller) -> None:
    timeout = caller.module.Timeout(5.0, read=0.1)
    with far_end(far.stall_after_request) as address:
        error = caller.failure(f"http://{address}/refunds", timeout=timeout)
    assert classify(raised(error, "ReadTimeout")) is None


@each_caller
def test_an_answer_that_breaks_off_is_doubt(caller: Caller) -> None:
    timeout = caller.module.Timeout(5.0, read=0.1)
    with far_end(far.answer_without(200)) as address:
        error = caller.failure(f"http://{address}/refunds", timeout=timeout)
    assert classify(raised(error, "ReadTimeout")) is None


@each_caller
@pytest.mark.parametrize("script", [far.close_at_once, far.close_after_request])
def test_a_server_that_accepts_and_closes_leaves_a_doubt(
    caller: Caller, script: far.Script
) -> None:
    with far_end(script) as address:
        error = caller.failure(f"http://{address}/refunds")
    assert type(error).__name__ in {"RemoteProtocolError", "ReadError"}
    assert classify(error) is None


@each_caller
def test_an_answer_that_is_not_http_is_doubt(caller: Caller) -> None:
    with far_end(far.speak_gibberish) as address:
        error = caller.failure(f"http://{address}/refunds")
    assert classify(raised(error, "RemoteProtocolError")) is None


@each_caller
def test_a_body_that_was_written_by_half_is_doubt(caller: Caller) -> None:
    with far_end(far.reset_after_some_bytes) as address:
        error = caller.failure(f"http://{address}/refunds", content=bytes(MORE_THAN_BUFFERS_HOLD))
    assert isinstance(error, caller.module.TransportError)
    assert classify(error) is None


@each_caller
def test_a_body_that_is_not_taken_in_time_is_doubt(caller: Caller) -> None:
    timeout = caller.module.Timeout(5.0, write=0.1)
    with far_end(far.stall) as address:
        error = caller.failure(
            f"http://{address}/refunds", content=bytes(MORE_THAN_BUFFERS_HOLD), timeout=timeout
        )
    assert classify(raised(error, "WriteTimeout")) is None


@each_caller
def test_a_kept_connection_that_breaks_while_it_is_used_again_is_doubt(caller: Caller) -> None:
    with far_end(far.answer_then_close_while_written_to) as address:
        error = caller.failure(f"http://{address}/refunds", times=2)
    assert isinstance(error, caller.module.TransportError)
    assert classify(error) is None


@each_caller
def test_a_forwarding_proxy_that_answers_5xx_is_doubt(caller: Caller) -> None:
    with far_end(far.answer(502)) as address:
        error = caller.failure("http://bank.test/refunds", proxy=f"http://{address}")
    assert classify(raised(error, "HTTPStatusError")) is None


# ---- doubt: another request may have had the effect --------------------------------------------


@each_caller
@pytest.mark.parametrize("status", [303, 307])
def test_a_redirect_to_a_closed_port_is_doubt(caller: Caller, status: int) -> None:
    elsewhere = f"http://{far.closed_port()}/"
    with far_end(far.answer(status, location=elsewhere)) as address:
        error = caller.failure(f"http://{address}/refunds", follow_redirects=True)
    assert classify(raised(error, "ConnectError")) is None


@each_caller
def test_a_redirect_to_where_no_request_can_go_is_doubt(caller: Caller) -> None:
    with far_end(far.answer(303, location="ftp://elsewhere.test/")) as address:
        error = caller.failure(f"http://{address}/refunds", follow_redirects=True)
    assert classify(raised(error, "UnsupportedProtocol")) is None


@each_caller
def test_a_redirect_to_a_refusal_is_doubt(caller: Caller) -> None:
    with far_end(far.answer(303, location="/refunds/17"), far.answer(404)) as address:
        error = caller.failure(f"http://{address}/refunds", follow_redirects=True)
    assert classify(raised(error, "HTTPStatusError")) is None


@each_library
def test_a_redirect_to_a_refusal_that_a_hook_raises_is_doubt(library: Any) -> None:
    with far_end(far.answer(303, location="/refunds/17"), far.answer(404)) as address:
        error = _hooked_failure(library, f"http://{address}/refunds")
    assert classify(raised(error, "HTTPStatusError")) is None


@each_library
@pytest.mark.parametrize("failing", ["connect", "parse"])
def test_a_response_hook_that_fails_after_the_answer_is_doubt(library: Any, failing: str) -> None:
    def connect(_: Any) -> None:
        library.post(f"http://{far.closed_port()}/", trust_env=False)

    def parse(_: Any) -> None:
        library.URL("http://bank:port/")

    hook = connect if failing == "connect" else parse
    with (
        far_end(far.answer(200)) as address,
        library.Client(event_hooks={"response": [hook]}, trust_env=False) as client,
    ):
        error = _failure_of(lambda: client.post(f"http://{address}/refunds"))
    assert type(error).__name__ in {"ConnectError", "InvalidURL"}
    assert classify(error) is None


@each_caller
def test_an_unfollowed_redirect_to_no_address_is_doubt(caller: Caller) -> None:
    with far_end(far.answer(303, location="http://bank:port/")) as address:
        assert classify(caller.failure(f"http://{address}/refunds")) is None


@each_library
def test_an_address_parsed_outside_of_a_call_may_stand_in_an_answer(library: Any) -> None:
    error = _failure_of(lambda: library.URL("http://bank:port/receipts/17"))
    assert classify(raised(error, "InvalidURL")) is None


@each_caller
def test_an_answered_challenge_does_not_hide_an_earlier_effect(caller: Caller) -> None:
    class PayThenAsk(caller.module.Auth):  # type: ignore[name-defined, misc]
        def auth_flow(self, request: Any) -> Iterator[Any]:
            yield request
            yield caller.module.Request("POST", f"http://{far.closed_port()}/")

    with far_end(far.answer(200)) as address:
        error = caller.failure(f"http://{address}/refunds", auth=PayThenAsk())
    assert classify(raised(error, "ConnectError")) is None


@each_caller
def test_a_second_try_in_the_handling_of_a_doubt_is_doubt(caller: Caller) -> None:
    timeout = caller.module.Timeout(5.0, read=0.1)
    with far_end(far.stall_after_request) as address:
        first = caller.failure(f"http://{address}/refunds", timeout=timeout)
    second = _second_try(caller, first, f"http://{far.closed_port()}/refunds")
    assert classify(raised(second, "ConnectError")) is None


@each_caller
def test_a_refusal_in_the_handling_of_a_doubt_is_doubt(caller: Caller) -> None:
    with far_end(far.answer(500), far.answer(422)) as address:
        first = caller.failure(f"http://{address}/refunds")
        second = _second_try(caller, first, f"http://{address}/refunds")
    assert classify(raised(second, "HTTPStatusError")) is None


@each_caller
def test_a_second_try_after_one_that_was_not_sent_was_not_sent(caller: Caller) -> None:
    first = caller.failure(f"http://{far.closed_port()}/refunds")
    second = _second_try(caller, first, f"http://{far.closed_port()}/refunds")
    assert type(classify(second)) is NotSent


@each_library
async def test_a_second_try_after_a_call_that_was_cut_off_is_doubt(library: Any) -> None:
    async def post_twice(client: Any, address: str) -> None:
        try:
            async with asyncio.timeout(0.1):
                await client.post(f"http://{address}/refunds")
        except TimeoutError:
            await client.post(f"http://{far.closed_port()}/refunds")

    with far_end(far.stall_after_request) as address:
        async with library.AsyncClient(trust_env=False) as client:
            with pytest.raises(library.ConnectError) as caught:
                await post_twice(client, address)
    assert classify(caught.value) is None


@each_library
def test_a_transport_that_is_not_the_librarys_own_may_have_sent_before(library: Any) -> None:
    class Persistent(library.BaseTransport):  # type: ignore[misc]
        def handle_request(self, request: Any) -> Any:
            raise library.ConnectError("refused, the second time")

    with library.Client(transport=Persistent()) as client:
        error = _failure_of(lambda: client.post("http://bank.test/refunds"))
    assert classify(raised(error, "ConnectError")) is None


@each_library
def test_an_error_of_another_library_is_doubt_whatever_its_cause(library: Any) -> None:
    def call() -> None:
        try:
            raise library.ConnectError("refused, the third time")
        except library.ConnectError as error:
            raise ConnectionError("gave up") from error

    assert classify(_failure_of(call)) is None


@each_caller
def test_a_traceback_that_was_cleared_is_no_evidence(caller: Caller) -> None:
    error = raised(caller.failure(f"http://{far.closed_port()}/refunds"), "ConnectError")
    traceback.clear_frames(error.__traceback__)
    assert classify(error) is None


@each_library
def test_a_cleared_traceback_of_a_hook_is_no_evidence_of_a_first_refusal(library: Any) -> None:
    with far_end(far.answer(404)) as address:
        error = _hooked_failure(library, f"http://{address}/refunds")
    traceback.clear_frames(error.__traceback__)
    assert classify(raised(error, "HTTPStatusError")) is None


@each_library
def test_a_library_that_sends_in_another_way_than_known_is_doubted(library: Any) -> None:
    def send() -> None:
        raise refused  # type: ignore[name-defined]  # noqa: F821

    names = {"__name__": f"{library.__name__}._client", "refused": library.ConnectError("no")}
    assert classify(_failure_of(FunctionType(send.__code__, names))) is None


# ---- doubt: not an HTTP failure that is known --------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(),
        socket.gaierror(),
        ssl.SSLError(),
        TimeoutError(),
        ValueError("receipt without an id"),
        asyncio.CancelledError(),
        KeyboardInterrupt(),
        ExceptionGroup("several", [httpx2.ConnectError("refused")]),
        type("ConnectError", (Exception,), {"__module__": "httpx_but_not_quite"})(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_unknown_exception_is_doubt(error: BaseException) -> None:
    assert classify(error) is None


@each_library
def test_every_other_error_of_the_libraries_is_doubt(library: Any) -> None:
    known = {
        *("ConnectError", "ConnectTimeout", "PoolTimeout", "ProxyError"),
        *("UnsupportedProtocol", "InvalidURL", "HTTPStatusError"),
    }
    others = [
        kind
        for name, kind in vars(library).items()
        if isinstance(kind, type) and issubclass(kind, Exception) and name not in known
    ]
    assert len(others) > 15
    assert [classify(kind.__new__(kind)) for kind in others] == [None] * len(others)


# ---- provoking failures ------------------------------------------------------------------------


def _failure_of(call: Callable[[], Any]) -> BaseException:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("the call did not fail")


def _raising(error: Exception) -> Callable[[], None]:
    def call() -> None:
        raise error

    return call


def _second_try(caller: Caller, first: BaseException, url: str) -> BaseException:
    """How a call ends that is made in the `except` of the first one."""
    try:
        raise first
    except Exception:
        return caller.failure(url)


def _hooked_failure(library: Any, url: str) -> BaseException:
    """What a response hook raises that checks the status, with redirects followed."""

    def check(response: Any) -> None:
        if response.status_code >= 400:
            response.raise_for_status()

    hooks = {"response": [check]}
    with library.Client(event_hooks=hooks, follow_redirects=True, trust_env=False) as client:
        return _failure_of(lambda: client.post(url))
