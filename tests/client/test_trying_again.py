"""What is tried again, how often, with what, and when no more."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx2
import pytest

from earnest import Client, EarnestError
from earnest.client.errors import OutcomeUnknown, UnexpectedAnswer, Unreachable
from earnest.client.patience import retry_after
from earnest.domain import errors

RUN = {
    "id": "run_1",
    "kind": "k",
    "lane": "default",
    "status": "queued",
    "version": 1,
    "revision": 1,
    "lineage_id": "run_1",
    "retry_of": None,
    "conversation_id": None,
    "parent_run_id": None,
    "attempt": 0,
    "priority": 0,
    "error": None,
    "labels": {},
    "cancel_requested": False,
    "last_seq": 1,
    "created_at": "2026-01-01T00:00:00Z",
    "started_at": None,
    "finished_at": None,
    "output": None,
    "max_attempts": 3,
    "failures": 0,
    "due_at": None,
    "deadline_at": None,
    "input": None,
    "context": {},
    "something_new": True,
}

Answer = httpx2.Response | Exception


def problem(status: int, code: str, **members: Any) -> httpx2.Response:
    body = {"code": code, "status": status, "detail": "as it is", "request_id": "r-1", **members}
    return httpx2.Response(status, json=body)


class Server:
    """Gives these answers, one each; the last one again and again."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self.asked: list[httpx2.Request] = []

    def client(self, patience: float = 10) -> Client:
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(self))
        return Client("http://server.test/at", "ern_x", patience=patience, http=http)

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append(request)
        answer = self._answers[min(len(self.asked), len(self._answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer


GOOD = httpx2.Response(202, json=RUN)
BREAKS: list[Answer] = [
    httpx2.ConnectError("refused"),
    httpx2.ReadError("reset"),
    httpx2.RemoteProtocolError("cut"),
    httpx2.ReadTimeout("silent"),
    problem(503, "busy"),
    problem(429, "backlog_full"),
    httpx2.Response(502, text="<html>"),
    httpx2.Response(504, text="<html>"),
]


@pytest.mark.parametrize("broken", BREAKS, ids=repr)
async def test_what_broke_is_sent_again_to_the_letter(broken: Answer) -> None:
    server = Server(broken, broken, GOOD)
    async with server.client() as client:
        run = await client.submit("k", {"b": 1, "a": [2]})
    assert run.id == "run_1"
    assert len(server.asked) == 3
    first, *others = [(one.content, one.headers["idempotency-key"]) for one in server.asked]
    assert others == [first, first]
    assert server.asked[0].url == "http://server.test/at/v1/runs"


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 410, 412, 413, 415, 428, 500])
async def test_what_was_refused_is_told_at_once(status: int) -> None:
    server = Server(problem(status, "conflict"))
    async with server.client() as client:
        with pytest.raises(EarnestError):
            await client.submit("k")
    assert len(server.asked) == 1


async def test_the_server_says_when_to_come_again() -> None:
    busy = problem(503, "busy")
    busy.headers["Retry-After"] = "1"
    async with Server(busy, GOOD).client() as client:
        began = time.monotonic()
        await client.submit("k")
        assert 1.0 <= time.monotonic() - began < 5


async def test_patience_ends_with_what_was_told_last() -> None:
    busy = problem(429, "backlog_full")
    busy.headers["Retry-After"] = "30"
    server = Server(busy)
    async with server.client(patience=5) as client:
        began = time.monotonic()
        with pytest.raises(EarnestError) as told:
            await client.submit("k")
        assert time.monotonic() - began < 2, "it would not have been let in before"
    assert (told.value.code, told.value.status) == ("backlog_full", 429)
    assert len(server.asked) == 1


async def test_who_is_never_reached_is_told_the_key_to_try_again_with() -> None:
    server = Server(httpx2.ConnectError("refused"))
    async with server.client(patience=1) as client:
        with pytest.raises(Unreachable) as told:
            await client.submit("k")
    assert told.value.fields["key"] == server.asked[0].headers["idempotency-key"].strip('"')
    assert len(server.asked) >= 2
    assert "server.test" in told.value.detail


UNKNOWN: list[Answer] = [
    httpx2.Response(502, text="<html>"),
    httpx2.Response(504),
    problem(503, "busy"),
    problem(500, "internal_error"),
    httpx2.Response(404, text="nginx"),
    httpx2.Response(200, text="<html>"),
    httpx2.ReadError("reset"),
]


@pytest.mark.parametrize("told_last", UNKNOWN, ids=repr)
async def test_what_may_have_been_done_is_never_told_as_a_refusal(told_last: Answer) -> None:
    """P1: whoever is told "refused" asks anew, and two would be made of one."""
    server = Server(told_last)
    async with server.client(patience=0.1) as client:
        for change in (
            client.submit("k", key='of "mine"'),
            client.signal("run_1", "go", key='of "mine"'),
            client.retry("run_1", key='of "mine"'),
            client.upload(b"bytes", key='of "mine"'),
            client.upload(iter([b"bytes"]), key='of "mine"'),
        ):
            with pytest.raises(OutcomeUnknown) as told:
                await change
            assert told.value.fields["key"] == 'of "mine"'


LOST: list[Answer] = [httpx2.Response(504), httpx2.ReadError("reset"), problem(503, "busy")]
SAID_FIRST = [(401, "unauthenticated"), (403, "forbidden"), (429, "backlog_full")]


@pytest.mark.parametrize("lost", LOST, ids=repr)
@pytest.mark.parametrize(("status", "code"), SAID_FIRST)
async def test_what_is_said_before_a_request_is_looked_at_tells_nothing_of_an_earlier_try(
    lost: Answer, status: int, code: str
) -> None:
    async with Server(lost, problem(status, code)).client(patience=0.8) as client:
        with pytest.raises(OutcomeUnknown, match=code) as told:
            await client.submit("k")
    assert (told.value.request_id, "key" in told.value.fields) == ("r-1", True)


@pytest.mark.parametrize("never", [httpx2.ConnectError("refused"), problem(429, "backlog_full")])
async def test_a_refusal_is_one_where_no_earlier_try_can_have_been_taken(never: Answer) -> None:
    async with Server(never, problem(403, "forbidden")).client() as client:
        with pytest.raises(errors.Forbidden):
            await client.submit("k")


async def test_a_definite_answer_to_a_later_try_is_believed() -> None:
    lost = httpx2.Response(504)
    async with Server(lost, problem(409, "idempotency_conflict")).client() as client:
        with pytest.raises(errors.IdempotencyConflict):
            await client.submit("k")


async def test_a_read_is_told_what_was_said() -> None:
    async with Server(problem(503, "busy")).client(patience=0) as client:
        with pytest.raises(errors.Busy):
            await client.get("run_1")


@pytest.mark.parametrize("scheme", ["http", "ftp"])
def test_an_address_with_a_password_is_refused_without_telling_it(scheme: str) -> None:
    with pytest.raises(errors.InvalidRequest, match=r"server\.test") as told:
        Client(f"{scheme}://ann:hush@server.test/at?token=hush#hush", "ern_x")
    assert "hush" not in str(told.value)


async def test_an_answer_of_something_else_is_told_as_that() -> None:
    for answer in (httpx2.Response(404, text="nginx"), httpx2.Response(302), GOOD_AS_TEXT):
        async with Server(answer).client() as client:
            with pytest.raises(UnexpectedAnswer):
                await client.get("run_1")


async def test_a_stream_is_not_opened_again_where_it_is_answered_by_something_else() -> None:
    server = Server(httpx2.Response(404, text="nginx"))
    async with server.client() as client:
        with pytest.raises(UnexpectedAnswer):
            await anext(client.feed())
    assert len(server.asked) == 1


GOOD_AS_TEXT = httpx2.Response(200, text="<html>")

KNOWN: list[tuple[int, dict[str, Any], type[EarnestError]]] = [
    (409, {"code": "idempotency_conflict"}, errors.IdempotencyConflict),
    (409, {"code": "conflict", "reason": "under_review"}, errors.UnderReview),
    (400, {"code": "invalid_request", "reason": "unknown_kind"}, errors.UnknownKind),
    (412, {"code": "version_mismatch"}, errors.StaleVersion),
    (410, {"code": "resync_required", "head_seq": 4}, errors.ResyncRequired),
    (409, {"code": "conflict", "reason": "of_tomorrow"}, errors.Conflict),
    (418, {"code": "of_tomorrow"}, EarnestError),
]


@pytest.mark.parametrize(("status", "body", "kind"), KNOWN, ids=str)
async def test_a_problem_is_raised_as_what_it_is(
    status: int, body: dict[str, Any], kind: type[EarnestError]
) -> None:
    async with Server(problem(status, **body)).client() as client:
        with pytest.raises(kind) as told:
            await client.get("run_1")
    assert told.value.code == body.get("reason", body["code"])
    assert (told.value.status, told.value.detail) == (status, "as it is")
    assert told.value.request_id == "r-1"
    assert told.value.fields == {name: body[name] for name in ("head_seq",) if name in body}


def test_a_time_to_come_again_is_seconds_or_a_date() -> None:
    assert retry_after("7") == 7
    soon = retry_after(format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True))
    assert 25 < soon <= 30
    past = format_datetime(datetime.now(UTC) - timedelta(hours=1), usegmt=True)
    assert [retry_after(text) for text in (None, "", "-1", "soon", "1.5", past)] == [0] * 6
