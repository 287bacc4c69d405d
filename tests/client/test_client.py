"""The client on a real server: each call, each refusal, and what it gives back."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import pytest
from msgspec import Struct
from msgspec.structs import replace
from pydantic import BaseModel

from earnest import Client
from earnest.client.errors import RunCancelled, RunFailed
from earnest.client.values import Event, Resync, TextPiece, TextReset
from earnest.domain.errors import (
    Conflict,
    Forbidden,
    IdempotencyConflict,
    InvalidRequest,
    NotFound,
    ProposalChanged,
    StaleVersion,
    Unauthenticated,
)
from earnest.domain.operation import OperationState
from earnest.domain.run import CancelOutcome, RunStatus
from earnest.testing.simulator import Simulator
from tests.client.house import House

T = TypeVar("T", bound=Struct)


class Message(BaseModel):
    message: str


@dataclass
class PlainMessage:
    message: str


# ---- runs --------------------------------------------------------------------------------------


async def test_a_run_is_submitted_and_its_output_is_waited_for(client: Client) -> None:
    run = await client.submit("demo.echo", {"message": "hi"}, key="waited-for", priority=3)
    assert (run.kind, run.priority, run.input) == ("demo.echo", 3, {"message": "hi"})
    assert await client.wait(run.id, timeout=30) == {"message": "hi"}
    found = await client.get(run.id)
    assert (found.status, found.final) == (RunStatus.SUCCEEDED, True)
    assert isinstance(found.finished_at, datetime)


@pytest.mark.parametrize(
    "input", [Message(message="m"), PlainMessage("m"), {"message": "m"}], ids=str
)
async def test_models_are_sent_as_what_they_are_in_json(client: Client, input: object) -> None:
    run = await client.submit("demo.echo", input)
    assert run.input == {"message": "m"}


async def test_what_has_no_form_in_json_is_refused_before_it_is_sent(client: Client) -> None:
    with pytest.raises(InvalidRequest, match="object has no form in JSON"):
        await client.submit("demo.echo", object())


async def test_the_same_key_and_request_are_the_same_run(client: Client) -> None:
    """P7."""
    runs = await asyncio.gather(
        *(client.submit("demo.echo", {"message": "m"}, key='ten "at" once') for _ in range(10))
    )
    assert len({run.id for run in runs}) == 1
    with pytest.raises(IdempotencyConflict) as refused:
        await client.submit("demo.echo", {"message": "other"}, key='ten "at" once')
    assert (refused.value.status, refused.value.code) == (409, "idempotency_conflict")
    assert refused.value.request_id


async def test_without_a_key_every_submit_is_a_run(client: Client) -> None:
    made = {(await client.submit("demo.echo", {"message": "m"})).id for _ in range(2)}
    assert len(made) == 2


@pytest.mark.parametrize("key", ["", "ä", "a\nb", "x" * 256])
async def test_a_key_that_cannot_be_sent_is_refused(client: Client, key: str) -> None:
    with pytest.raises(InvalidRequest, match="a key has 1 to 255 printable characters"):
        await client.submit("demo.echo", {"message": "m"}, key=key)


async def test_a_refusal_says_what_is_wrong_and_where(client: Client) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await client.submit("demo.echo", {"massage": "m"})
    assert refused.value.status == 400
    assert refused.value.fields["errors"]
    with pytest.raises(InvalidRequest) as unknown:
        await client.submit("no.such.kind")
    assert unknown.value.code == "unknown_kind"
    with pytest.raises(NotFound):
        await client.get("run_01m8pcwfhaehp9wtdgvb78ck3m")
    with pytest.raises(NotFound):
        await client.get("../tokens")


async def test_a_wrong_token_is_told_at_once(shared: House) -> None:
    async with Client(shared.url, "ern_no_token") as stranger:
        with pytest.raises(Unauthenticated):
            await stranger.submit("demo.echo", {"message": "m"})
        with pytest.raises(Unauthenticated):
            async for _ in stranger.feed():
                pass


async def test_a_token_may_be_one_of_now(shared: House) -> None:
    given = iter([shared.tokens["member"], shared.tokens["other"]])
    async with Client(shared.url, lambda: next(given)) as client:
        run = await client.submit("demo.echo", {"message": "m"})
        with pytest.raises(NotFound):
            await client.get(run.id)


async def test_lists_go_on_over_their_pages(shared: House, client: Client) -> None:
    labels = {"batch": "pages"}
    made = [
        (await client.submit("demo.echo", {"message": str(number)}, labels=labels)).id
        for number in range(103)
    ]
    found = [run.id async for run in client.runs(labels=labels)]
    assert found == made[::-1]
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    assert [run async for run in client.runs(labels=labels, created_after=tomorrow)] == []
    async with Client(shared.url, shared.tokens["other"]) as other:
        assert [run async for run in other.runs(labels=labels)] == []


async def test_a_run_that_ends_badly_raises_what_it_ended_as(client: Client) -> None:
    run = await client.submit("demo.sleep", {"seconds": 600})
    waiting = asyncio.create_task(client.wait(run.id))
    async with aclosing(client.events(run.id)) as events:
        async for event in events:
            if event.type == "attempt.started":
                break
    assert (await client.cancel(run.id)).outcome is CancelOutcome.REQUESTED
    with pytest.raises(RunCancelled) as cancelled:
        await waiting
    assert cancelled.value.run.status is RunStatus.CANCELLED
    again = await client.cancel(run.id)
    assert (again.outcome, again.run.status) == (CancelOutcome.CANCELLED, RunStatus.CANCELLED)
    retried = await client.retry(run.id, key="again")
    assert (retried.revision, retried.retry_of) == (2, run.id)
    assert (await client.retry(run.id, key="again")).id == retried.id
    await client.cancel(retried.id)


async def test_a_failed_run_says_why(shared: House, client: Client, simulator: Simulator) -> None:
    simulator.put_fault("bank", "refuse", match="refused-1")
    asked = {"order_id": "refused-1", "amount": "20.00", "bank": "keyed"}
    run = await client.submit("demo.refund", asked)
    with pytest.raises(RunFailed, match="refused") as failed:
        await client.wait(run.id, timeout=30)
    assert failed.value.fields["error"]["code"] == "refused"


async def test_a_time_limit_ends_the_waiting_and_not_the_run(client: Client) -> None:
    run = await client.submit("demo.sleep", {"seconds": 600})
    with pytest.raises(TimeoutError, match=r"had not ended after 0\.3 s; it goes on"):
        await client.wait(run.id, timeout=0.3)
    assert not (await client.get(run.id)).final
    assert [one.code for one in (await client.explain(run.id)).reasons]
    await client.cancel(run.id)


async def test_a_signal_is_stored_once_for_its_key(client: Client) -> None:
    run = await client.submit("demo.sleep", {"seconds": 600})
    first = await client.signal(run.id, "go", {"by": "hand"}, key="signal-1")
    assert await client.signal(run.id, "go", {"by": "hand"}, key="signal-1") == first
    assert (first.name, first.number) == ("go", 1)
    await client.cancel(run.id)


# ---- streams -----------------------------------------------------------------------------------


async def test_events_are_given_from_the_first_to_the_last(client: Client) -> None:
    run = await client.submit("demo.steps", {"count": 5})
    events = [event async for event in client.events(run.id)]
    assert [event.seq for event in events if isinstance(event, Event)] == list(
        range(1, len(events) + 1)
    )
    assert (events[0].type, events[-1].type) == ("run.submitted", "run.succeeded")
    rest = [event async for event in client.events(run.id, after=events[2].id)]
    assert rest == events[3:]
    assert [event async for event in client.events(run.id, after=len(events))] == []


async def test_a_place_of_another_life_is_told_by_a_resync(client: Client) -> None:
    """P9."""
    run = await client.submit("demo.echo", {"message": "m"})
    await client.wait(run.id)
    (told,) = [one async for one in client.events(run.id, after="elsewhen-3")]
    assert isinstance(told, Resync)
    assert told.type == "resync_required"
    assert told.snapshot is not None
    assert (told.snapshot.status, told.snapshot.output) == ("succeeded", {"message": "m"})
    assert told.snapshot.last_seq == told.head_seq


async def test_what_is_no_place_is_refused_at_once(client: Client) -> None:
    with pytest.raises(InvalidRequest, match="'abc' is no place among events"):
        client.events("run_x", after="abc")


async def test_text_comes_piece_by_piece_and_once(client: Client) -> None:
    run = await client.submit("demo.text", {"words": 20, "delay_ms": 20})
    pieces = [piece async for piece in client.text(run.id)]
    output = await client.wait(run.id)
    assert "".join(piece.content for piece in pieces) == output["text"]
    assert len(pieces) > 1
    assert not any(isinstance(piece, TextReset) for piece in pieces)
    first = pieces[0]
    assert isinstance(first, TextPiece)
    assert [one async for one in client.text(run.id, after=first.sequence)] == pieces[1:]


async def test_the_feed_tells_of_what_one_may_see_and_goes_on_from_a_cursor(
    shared: House, client: Client
) -> None:
    async with Client(shared.url, shared.tokens["other"]) as other:
        first = await other.submit("demo.echo", {"message": "first"})
        told = await _until_final(other, None, first.id)
        hidden = await client.submit("demo.echo", {"message": "hidden"})
        second = await other.submit("demo.echo", {"message": "second"})
        after = await _until_final(other, told[-1].id, second.id)
        assert {event.run_id for event in after} == {second.id}
        assert hidden.id not in {event.run_id for event in told}
        assert [event.seq for event in after] == list(range(1, len(after) + 1))
        assert await _until_final(other, after[0].id, second.id) == after[1:]


async def _until_final(client: Client, cursor: str | None, run_id: str) -> list[Event]:
    """What the feed tells up to the end of a run."""
    told = []
    async with aclosing(client.feed(cursor)) as feed:
        async for event in feed:
            assert isinstance(event, Event)
            told.append(event)
            if event.run_id == run_id and event.final:
                break
    return told


# ---- the desk ----------------------------------------------------------------------------------


async def test_a_decision_is_about_what_was_read(shared: House, client: Client) -> None:
    """P11."""
    asked = {"order_id": "desk-1", "amount": "20.00", "bank": "keyed", "needs_approval": True}
    run = await client.submit("demo.refund", asked)
    async with aclosing(client.events(run.id)) as events:
        async for event in events:
            if event.type == "approval.requested":
                break
    async with Client(shared.url, shared.tokens["approver"]) as approver:
        (waiting,) = [one async for one in approver.approvals() if one.run_id == run.id]
        assert waiting.proposal["order_id"] == "desk-1"
        changed = _with(waiting, digest="0" * 64)
        with pytest.raises(ProposalChanged):
            await approver.decide(changed, "approve")
        with pytest.raises(StaleVersion):
            await approver.decide(_with(waiting, version=99), "approve")
        decided = await approver.decide(waiting, "approve", note="as agreed")
        again = await approver.decide(waiting, "approve", note="as agreed")
        assert (again.status, again.version) == ("approved", decided.version)
        assert (again.decided_at, again.note) == (decided.decided_at, decided.note)
        with pytest.raises(Conflict):
            await approver.decide(waiting, "reject")
        assert (await approver.approval(waiting.id)).note == "as agreed"
    with pytest.raises(Forbidden):
        await client.decide(waiting, "approve")
    assert (await client.wait(run.id, timeout=30))["receipt"]


async def test_a_doubt_is_found_on_the_desk_and_settled(
    shared: House, client: Client, simulator: Simulator
) -> None:
    """P3."""
    simulator.put_fault("bank", "accept_then_drop", match="doubt-1")
    asked = {"order_id": "doubt-1", "amount": "20.00", "bank": "opaque"}
    run = await client.submit("demo.refund", asked)
    async with aclosing(client.events(run.id)) as events:
        async for event in events:
            if event.type == "run.unknown":
                break
    async with Client(shared.url, shared.tokens["operator"]) as operator:
        (doubt,) = [one async for one in operator.operations() if one.run_id == run.id]
        assert doubt.state is OperationState.UNKNOWN
        with pytest.raises(StaleVersion):
            await operator.resolve(_with(doubt, version=99), "released", evidence="none")
        settled = await operator.resolve(
            doubt, "submitted", evidence="on the statement", receipt={"id": "r-1"}
        )
        assert settled.state is OperationState.SUBMITTED
        assert settled.history
        with pytest.raises(Conflict):
            await operator.resolve(doubt, "released", evidence="another opinion")
        assert (await operator.operation(doubt.id)).receipt == {"id": "r-1"}
    assert await client.wait(run.id, timeout=30) == {"receipt": {"id": "r-1"}}
    assert [one.id async for one in client.operations_of(run.id)] == [doubt.id]


# ---- tokens ------------------------------------------------------------------------------------


async def test_a_rotated_token_keeps_its_keys(shared: House) -> None:
    async with Client(shared.url, shared.tokens["admin"]) as admin:
        issued = await admin.issue_token("other", name="before", key="issue-1")
        assert issued.token
        assert (await admin.issue_token("other", name="before", key="issue-1")).token is None
        async with Client(shared.url, issued.token) as before:
            run = await before.submit("demo.echo", {"message": "m"}, key="kept")
        rotated = await admin.rotate_token(issued.id, overlap_seconds=0)
        assert rotated.token
        async with Client(shared.url, rotated.token) as after:
            assert (await after.submit("demo.echo", {"message": "m"}, key="kept")).id == run.id
        assert (await admin.revoke_token(rotated.id)).revoked_at is not None
        assert rotated.id not in [one.id async for one in admin.tokens(live=True)]


async def test_webhooks_are_added_listed_and_removed(shared: House) -> None:
    async with Client(shared.url, shared.tokens["admin"]) as admin:
        made = await admin.add_webhook("https://example.com/hook", ["run.*"], key="hook-1")
        assert made.secret
        assert [one.id async for one in admin.webhooks()] == [made.id]
        await admin.remove_webhook(made.id)
        assert [one async for one in admin.webhooks()] == []


# ---- the address -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", ["", "localhost:8321", "ftp://x", "http://", "http://x/?a=b", "http://a:b@x"]
)
def test_an_address_that_is_none_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(InvalidRequest, match="use one like http://localhost:8321"):
        Client(url, "ern_x")


@pytest.mark.parametrize("token", ["", "ern_\n", "Bär"])
async def test_a_token_that_cannot_be_sent_is_refused(shared: House, token: str) -> None:
    async with Client(shared.url, token) as client:
        with pytest.raises(InvalidRequest, match="earnest tokens issue"):
            await client.get("run_x")


def _with(value: T, **changed: object) -> T:
    return replace(value, **changed)
