"""Operations as rows: each move names the version it was judged on and leaves a line of history."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from earnest.domain import ids
from earnest.domain.errors import StaleVersion
from earnest.domain.operation import (
    EffectTerms,
    LookupAnswer,
    Operation,
    OperationState,
    Recovery,
    ReleaseReason,
)
from earnest.store import executions, operations
from earnest.store.database import Database, Tx, UniqueViolation
from earnest.store.operations import Note
from earnest.store.statements import sql
from earnest.testing.clock import START, ManualClock
from tests.store.given import (
    BY,
    ME,
    SCOPE,
    YOU,
    begun,
    blocked,
    claimed,
    doubted,
    locked,
    new_operation,
    operation,
    reserved,
)

pytestmark = pytest.mark.usefixtures("clock")

LOOKUP = EffectTerms("bank.refund", Recovery.LOOKUP)
HOLD = EffectTerms("bank.refund", Recovery.HOLD, keeps_resource=False)
TOKEN = ids.new_token()


async def _confirm(tx: Tx, made: Operation) -> None:
    await operations.confirm(
        tx, made, BY, receipt=b'{"id": "r-1"}', external_ref="r-1", resolution=None
    )


async def _release(tx: Tx, made: Operation, reason: str = "not_sent") -> None:
    await operations.release(tx, made, BY, reason=ReleaseReason(reason))


async def _begin(tx: Tx, made: Operation) -> None:
    await operations.begin(
        tx, made, BY, send_token=TOKEN, instance_id=YOU, span=timedelta(seconds=30)
    )


async def _doubt(tx: Tx, made: Operation) -> None:
    await operations.doubt(tx, made, BY, ask_in=None)


async def _reserve_again(tx: Tx, made: Operation) -> None:
    await operations.reserve_again(tx, made, 2, BY)


# ---- legal and illegal moves --------------------------------------------------------------------

Move = Callable[[Tx, Operation], Awaitable[None]]
MOVES: dict[str, Move] = {
    "begin": _begin,
    "confirm": _confirm,
    "release": _release,
    "doubt": _doubt,
    "reserve again": _reserve_again,
}

STATES = {
    "reserved": (),
    "submitting": ("begin",),
    "unknown": ("begin", "doubt"),
    "submitted": ("begin", "confirm"),
    "released": ("begin", "release"),
}

# What each move leaves behind where it is legal. `begin` out of doubt is sending again.
LEGAL = {
    ("begin", "reserved"): "submitting",
    ("begin", "submitting"): "submitting",
    ("begin", "unknown"): "submitting",
    ("confirm", "submitting"): "submitted",
    ("confirm", "unknown"): "submitted",
    ("release", "reserved"): "released",
    ("release", "submitting"): "released",
    ("release", "unknown"): "released",
    ("doubt", "submitting"): "unknown",
    ("reserve again", "released"): "reserved",
}


async def _in_state(tx: Tx, state: str, **terms: Any) -> Operation:
    made = await reserved(tx, **terms)
    for name in STATES[state]:
        await MOVES[name](tx, made)
        made = await operation(tx, made.operation_id)
    assert made.state == state
    return made


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", MOVES)
async def test_a_move_leaves_only_the_states_of_the_table(
    database: Database, name: str, state: str
) -> None:
    target = LEGAL.get((name, state))
    async with database.connection() as tx:
        made = await _in_state(tx, state)
        if target is None:
            with pytest.raises(StaleVersion):
                await MOVES[name](tx, made)
            assert await operation(tx, made.operation_id) == made
        else:
            await MOVES[name](tx, made)
            moved = await operation(tx, made.operation_id)
            assert (moved.state, moved.version) == (target, made.version + 1)


@pytest.mark.parametrize(("name", "state"), [(name, state) for name, state in LEGAL])
async def test_a_move_judged_on_an_older_version_is_refused(
    database: Database, name: str, state: str
) -> None:
    async with database.connection() as tx:
        made = await _in_state(tx, state)
        await MOVES[name](tx, made)
        with pytest.raises(StaleVersion):
            await MOVES[name](tx, made)


async def test_every_move_leaves_its_line_of_history(database: Database) -> None:
    async with database.connection() as tx:
        made = await reserved(tx)
        await operations.begin(
            tx, made, Note("begin", "owner", 3, {"why": "now"}), send_token=TOKEN, instance_id=ME,
            span=made.timeout,
        )  # fmt: skip
    told = await operations.moves(database, SCOPE, made.operation_id)
    assert [(move.version, move.state) for move in told] == [
        (1, OperationState.RESERVED),
        (2, OperationState.SUBMITTING),
    ]
    assert (told[1].move, told[1].by, told[1].attempt, told[1].detail) == (
        "begin",
        "owner",
        3,
        {"why": "now"},
    )


@pytest.mark.parametrize("recovery", [Recovery.LOOKUP, Recovery.HOLD])
@pytest.mark.parametrize("state", ["submitting", "unknown"])
async def test_only_a_resend_is_sent_again(
    database: Database, recovery: Recovery, state: str
) -> None:
    async with database.connection() as tx:
        made = await _in_state(tx, state, terms=EffectTerms("bank.refund", recovery))
        with pytest.raises(StaleVersion):
            await _begin(tx, made)


@pytest.mark.parametrize("reason", ["refused", "given_up"])
async def test_what_was_refused_or_given_up_is_not_reserved_again(
    database: Database, reason: str
) -> None:
    async with database.connection() as tx:
        made = await begun(tx)
        await _release(tx, made, reason)
        with pytest.raises(StaleVersion):
            await _reserve_again(tx, await operation(tx, made.operation_id))


# ---- what a move writes -------------------------------------------------------------------------


async def test_the_first_begin_fixes_the_window_and_each_begin_its_call(
    database: Database, clock: ManualClock
) -> None:
    async with database.connection() as tx:
        made = await begun(tx)
        assert (made.first_begun_at, made.call_until) == (START, START + made.timeout)
        await clock.advance(seconds=10)
        await _begin(tx, made)
        again = await operation(tx, made.operation_id)
    assert again.first_begun_at == START
    assert again.submitting_at == START + timedelta(seconds=10)
    assert (again.send_count, again.send_token, again.instance_id) == (2, TOKEN, YOU)


async def test_a_doubt_is_asked_about_only_where_somebody_can_be_asked(
    database: Database, clock: ManualClock
) -> None:
    async with database.connection() as tx:
        asked = await doubted(tx, timedelta(seconds=5))
        held = await doubted(tx, None)
    assert (asked.unknown_since, asked.lookup_due_at) == (START, START + timedelta(seconds=5))
    assert (held.unknown_since, held.lookup_due_at) == (START, None)


async def test_a_receipt_keeps_what_the_provider_calls_it(database: Database) -> None:
    async with database.connection() as tx:
        made = await doubted(tx)
        await operations.confirm(
            tx, made, BY, receipt=b'{"id": "r-1"}', external_ref="r-1", resolution={"by": "bob"}
        )
        stored = await operation(tx, made.operation_id)
    assert (stored.receipt, stored.external_ref) == ({"id": "r-1"}, "r-1")
    assert (stored.submitted_at, stored.unknown_since) == (START, None)
    assert stored.resolution == {"by": "bob"}


async def test_reserving_again_forgets_the_release_and_keeps_the_id(database: Database) -> None:
    async with database.connection() as tx:
        made = await begun(tx)
        await _release(tx, made)
        released = await operation(tx, made.operation_id)
        assert (released.release_reason, released.live) == (ReleaseReason.NOT_SENT, False)
        await _reserve_again(tx, released)
        again = await operation(tx, made.operation_id)
    assert (again.state, again.live, again.attempt) == ("reserved", True, 2)
    assert (again.release_reason, again.released_at, again.send_token) == (None, None, None)
    assert again.send_count == 1


async def test_an_id_is_reserved_once(database: Database) -> None:
    new = new_operation()
    async with database.connection() as tx:
        assert await operations.reserve(tx, new, BY)
        assert not await operations.reserve(tx, new, BY)
        found = await operations.lock(tx, SCOPE, new.operation_id)
    assert found is not None
    assert (found[0].version, found[1]) == (1, START)


# ---- one resource key, one live intent (P15) ----------------------------------------------------


async def test_a_resource_key_has_one_live_intent(database: Database) -> None:
    async with database.connection() as tx:
        first = await reserved(tx, resource_key="order-1")
        assert not await operations.reserve(tx, new_operation(resource_key="order-1"), BY)
        assert await reserved(tx, resource_key="order-2")
        other_kind = EffectTerms("bank.charge", Recovery.HOLD)
        assert await reserved(tx, resource_key="order-1", terms=other_kind)
        found = await operations.live_intent(tx, SCOPE, "bank.refund", "order-1")
    assert found == first.operation_id


async def test_concurrent_creates_of_one_resource_have_one_winner(database: Database) -> None:
    async with database.connection() as one, database.connection() as other:
        transaction = one.transaction()
        await transaction.start()
        await reserved(one, resource_key="order-1")
        second = new_operation(resource_key="order-1")
        waiting = asyncio.create_task(operations.reserve(other, second, BY))
        await blocked(database, other)
        await transaction.commit()
        assert not await waiting


@pytest.mark.parametrize(("keeps", "live"), [(True, True), (False, False)])
async def test_a_success_keeps_its_resource_only_where_its_kind_says_so(
    database: Database, keeps: bool, live: bool
) -> None:
    terms = EffectTerms("bank.refund", Recovery.HOLD, keeps_resource=keeps)
    async with database.connection() as tx:
        made = await begun(tx, terms=terms, resource_key="order-1")
        await _confirm(tx, made)
        found = await operations.live_intent(tx, SCOPE, "bank.refund", "order-1")
    assert (found == made.operation_id) is live


async def test_a_freed_resource_leaves_a_tombstone_and_takes_a_new_id(database: Database) -> None:
    async with database.connection() as tx:
        made = await begun(tx, resource_key="order-1")
        await _confirm(tx, made)
        confirmed = await operation(tx, made.operation_id)
        for _ in range(2):
            await operations.free_resource(tx, confirmed, BY)
        assert await reserved(tx, resource_key="order-1")
        tombstone = await operation(tx, made.operation_id)
    assert (tombstone.state, tombstone.live) == ("submitted", False)
    assert tombstone.version == confirmed.version + 1


async def test_what_was_released_cannot_come_back_beside_another_live_intent(
    database: Database,
) -> None:
    async with database.connection() as tx:
        made = await begun(tx, resource_key="order-1")
        await _release(tx, made)
        await reserved(tx, resource_key="order-1")
        with pytest.raises(UniqueViolation):
            await _reserve_again(tx, await operation(tx, made.operation_id))


# ---- questions ----------------------------------------------------------------------------------

CLAIM = timedelta(seconds=30)


async def test_due_questions_are_taken_once(database: Database, clock: ManualClock) -> None:
    async with database.connection() as tx:
        due = await doubted(tx, timedelta(0))
        await doubted(tx, timedelta(seconds=31))
        await doubted(tx, None)
        kinds = ["bank.refund"]
        taken = await operations.take_due_questions(tx, kinds, CLAIM, 10)
        assert taken == [(SCOPE, due.operation_id)]
        assert await operations.take_due_questions(tx, kinds, CLAIM, 10) == []
        await clock.advance(seconds=30)
        assert await operations.take_due_questions(tx, kinds, CLAIM, 10) == taken


async def test_only_questions_of_known_effects_are_taken(database: Database) -> None:
    async with database.connection() as tx:
        await doubted(tx)
        assert await operations.take_due_questions(tx, ["bank.charge"], CLAIM, 10) == []
        assert await operations.take_due_questions(tx, [], CLAIM, 10) == []


async def test_two_processes_share_the_questions_and_wait_for_nobody(database: Database) -> None:
    async with database.connection() as one, database.connection() as other:
        first, second = await doubted(one), await doubted(one)
        async with one.transaction():
            mine = await operations.take_due_questions(one, ["bank.refund"], CLAIM, 1)
            yours = await operations.take_due_questions(other, ["bank.refund"], CLAIM, 10)
    assert {*mine, *yours} == {(SCOPE, first.operation_id), (SCOPE, second.operation_id)}
    assert len(mine) == len(yours) == 1


async def test_an_answer_that_settles_nothing_is_counted_and_asked_again(
    database: Database,
) -> None:
    async with database.connection() as tx:
        made = await doubted(tx)
        for answer in (LookupAnswer.ABSENT, LookupAnswer.INCONCLUSIVE):
            await operations.note_lookup(tx, made, answer, "why", timedelta(seconds=9))
        stored = await operation(tx, made.operation_id)
    assert (stored.lookup_count, stored.version) == (2, made.version)
    assert stored.lookup_due_at == START + timedelta(seconds=9)
    told = await operations.lookups(database, SCOPE, made.operation_id)
    assert [(one.number, one.answer) for one in told] == [(1, "absent"), (2, "inconclusive")]


async def test_an_answer_about_an_older_version_is_not_counted(database: Database) -> None:
    async with database.connection() as tx:
        made = await doubted(tx)
        await _begin(tx, made)
        await operations.note_lookup(tx, made, LookupAnswer.ABSENT, "why", None)
    assert await operations.lookups(database, SCOPE, made.operation_id) == []


async def test_calls_are_overdue_when_nobody_watches_them(
    database: Database, clock: ManualClock
) -> None:
    grace = timedelta(seconds=45)

    async def overdue(*dead: Any) -> set[Any]:
        rows = await database.fetch("overdue_calls", grace, list(dead), 10)
        return {row["operation_id"] for row in rows}

    (held, queued, unknown) = await claimed(database, 3)
    async with database.connection() as tx:
        alone = await begun(tx)
        for taken in (held, queued, unknown):
            await begun(tx, run_id=taken.run_id)
        async with tx.transaction():
            await executions.requeue(tx, await locked(tx, queued.run_id), [])
            await executions.doubt(tx, await locked(tx, unknown.run_id), [])
        (of_unknown,) = await operations.of_run(tx, SCOPE, unknown.run_id)
    assert await overdue() == set()
    assert await overdue(ME) == {alone.operation_id, of_unknown.operation_id}
    await clock.advance(seconds=75)
    assert await overdue() == {alone.operation_id, of_unknown.operation_id}


# ---- reading ------------------------------------------------------------------------------------


async def test_the_desk_shows_the_longest_doubt_first(
    database: Database, clock: ManualClock
) -> None:
    async with database.connection() as tx:
        made = []
        for _ in range(3):
            made.append(await doubted(tx))
            await clock.advance(seconds=1)
        await begun(tx)
    first = await operations.listed(database, SCOPE, "unknown", None, 2)
    assert [one.operation_id for one in first] == [one.operation_id for one in made[:2]]
    after = (first[1].unknown_since or START, first[1].operation_id)
    rest = await operations.listed(database, SCOPE, "unknown", after, 2)
    assert [one.operation_id for one in rest] == [made[2].operation_id]


async def test_a_finding_is_kept_once_with_its_operation_however_often_it_is_put(
    database: Database,
) -> None:
    finding_id = ids.new_id()
    async with database.connection() as tx:
        made = await begun(tx)
        for _ in range(2):
            await operations.put_finding(tx, made, finding_id, "late_receipt", {"id": 7})
    (found,) = await operations.findings(database, SCOPE, made.operation_id)
    assert found == {"kind": "late_receipt", "detail": {"id": 7}, "at": START}


async def test_an_operation_is_seen_only_in_its_scope_and_by_whom_it_belongs_to(
    database: Database,
) -> None:
    async with database.connection() as tx:
        made = await begun(tx)
        assert await operations.find(tx, SCOPE, made.operation_id, "alice") == made
        assert await operations.find(tx, SCOPE, made.operation_id, "bob") is None
        assert await operations.find(tx, "other", made.operation_id) is None
        assert await tx.fetch(sql("operations_of"), "other", made.operation_id) == []
